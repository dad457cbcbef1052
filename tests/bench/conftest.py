"""A small tree of real images, and a folder of runs that several tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opendg.bench.plan import Plan, parse_plan
from opendg.bench.reproduce import run_plan, site_of
from tests.bench.parts import Inline, signs
from tests.tiny import write_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("data") / "signs", each=10)


@pytest.fixture
def inline() -> Iterator[Inline]:
    runner = Inline()
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def finished(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan and a folder with all of its runs: two methods, two targets, two seeds, averaged weights."""
    runs = tmp_path_factory.mktemp("finished")
    recipe = 'recipe = { iterations = 12, batch = 2, augment = "digits", average_over = 0.5 }\nseeds = [0, 1]'
    text = signs(tree).replace('recipe = { iterations = 4, batch = 2, augment = "digits" }', recipe)
    plan, runner = parse_plan("signs", text), Inline()
    states = run_plan(plan, site_of(runs, None, device="cpu"), runner)
    runner.close()
    assert set(states.values()) == {"done"}
    return plan, runs
