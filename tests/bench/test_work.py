"""The work on one cell: what it keeps, where it finds the data, what it counts, and what it leaves to others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from opendg.bench.cells import Cell
from opendg.bench.grid import Grid
from opendg.bench.ledger import Ledger
from opendg.bench.plan import Plan, place
from opendg.bench.reproduce import run_plan, site_of
from opendg.bench.work import Count, Order, Site, perform
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import evaluate
from opendg.training.train import start
from tests.bench.parts import Inline, plan_of
from tests.tiny import write_tree


def one(tree: Path, more: str = "", recipe: str = "") -> Plan:
    """A plan of one run."""
    plan = plan_of(tree, more, methods=f'[{{ method = "erm", recipe = {{ {recipe} }} }}]')
    return plan.override(targets=("wood",))


def scores(runs: Path, name: str) -> set[str]:
    return set(json.loads((runs / name / "evaluation-selected.json").read_text())["scores"])


# Scores


def test_plans_that_ask_for_different_scores_share_a_run(tree: Path, tmp_path: Path, inline: Inline) -> None:
    site = site_of(tmp_path, None, device="cpu")
    for asked in ("entropy", "knn", "entropy", "knn"):
        (name,) = run_plan(one(tree, f'scores = ["{asked}"]'), site, inline)
    assert len(inline.orders) == 2, "each score was evaluated once"
    assert scores(tmp_path, name) >= {"cls", "entropy", "knn"}


def test_a_score_that_a_run_does_not_allow_costs_it_no_other(tree: Path, tmp_path: Path, inline: Inline) -> None:
    """ViM looks into a linear head: ERM has one, ARPL keeps points instead."""
    plan = plan_of(tree, 'scores = ["cls", "vim"]', methods='[{ method = "erm" }, { method = "arpl" }]')
    states = run_plan(plan.override(targets=("wood",)), site_of(tmp_path, None, device="cpu"), inline)
    assert set(states.values()) == {"done"}
    assert {name.split("-")[0]: "vim" in scores(tmp_path, name) for name in states} == {"erm": True, "arpl": False}


def test_an_evaluation_by_hand_takes_nothing_from_a_table(tree: Path, tmp_path: Path, inline: Inline) -> None:
    site = site_of(tmp_path, None, device="cpu")
    (name,) = run_plan(one(tree), site, inline)
    before = scores(tmp_path, name)
    evaluate(tmp_path / name, scores="entropy", weights="selected", device="cpu")
    assert scores(tmp_path, name) == before | {"entropy"}


def test_a_run_that_is_made_anew_has_the_scores_of_its_own_record_only(
    tree: Path, tmp_path: Path, inline: Inline
) -> None:
    site = site_of(tmp_path, None, device="cpu")
    (name,) = run_plan(one(tree, 'scores = ["entropy"]'), site, inline)
    shutil.rmtree(tmp_path / name)
    run_plan(one(tree), site, inline)
    assert Ledger(tmp_path).state(name, ("entropy",)) == "interrupted"


# Data


def test_a_root_is_of_no_concern_to_a_folder(tree: Path, tmp_path: Path, inline: Inline) -> None:
    (tmp_path / "root").mkdir()
    states = run_plan(one(tree), site_of(tmp_path / "runs", tmp_path / "root", device="cpu"), inline)
    assert set(states.values()) == {"done"}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "first" / "signs", each=4)


def test_a_folder_may_move(mine: Path, tmp_path: Path, inline: Inline) -> None:
    site = site_of(tmp_path / "runs", None, device="cpu")
    run_plan(one(mine), site, inline)
    moved = mine.rename(tmp_path / "signs")
    assert set(run_plan(one(moved, 'scores = ["entropy"]'), site, inline).values()) == {"done"}


def replace_image(tree: Path) -> None:
    with (tree / "ink" / "bar" / "000.png").open("ab") as file:
        file.write(b"more")


def add_image(tree: Path) -> None:
    shutil.copy(tree / "wood" / "ring" / "000.png", tree / "wood" / "ring" / "new.png")


@pytest.mark.parametrize("change", [replace_image, add_image])
def test_runs_of_other_images_are_not_taken_for_done(mine: Path, tmp_path: Path, inline: Inline, change: Any) -> None:
    site = site_of(tmp_path / "runs", None, device="cpu")
    run_plan(one(mine), site, inline)
    assert set(run_plan(one(mine), site, inline).values()) == {"done"}
    other = Path(shutil.copytree(mine, tmp_path / "second" / "signs"))
    change(other)
    with pytest.raises(OpenDGError, match="have changed or lie elsewhere: use another --runs"):
        run_plan(one(other), site, inline)
    assert len(inline.orders) == 1


# Attempts


def test_a_run_that_another_runner_saw_fail_is_not_tried_again(tree: Path, tmp_path: Path, inline: Inline) -> None:
    site = site_of(tmp_path, None, device="cpu")
    cells = {name: cell for name, (cell, _) in place(one(tree, recipe="lr = 1e30").cells()).items()}
    first, second = (Grid(cells, site, inline) for _ in range(2))
    (name,) = first.run()
    assert second.run(retry_failed=True) == {name: "failed"}, "it began before the first one failed"
    assert inline.orders == [name], "no worker was asked"
    assert perform(Order(name, cells[name], site, tried=0)).state == "failed"
    assert len(Ledger(tmp_path).read(name).attempts) == 1
    later = Grid(cells, site, inline)
    assert later.run(retry_failed=True) == {name: "failed"}
    assert len(Ledger(tmp_path).read(name).attempts) == 2


@pytest.mark.parametrize(("whole", "counted"), [(True, 30), (False, 120)])
def test_iterations_are_counted_from_where_a_run_went_on(tree: Path, tmp_path: Path, whole: bool, counted: int) -> None:
    """Its log had come to step 100, its newest checkpoint is of step 90; or they are all torn."""
    ((name, (cell, _)),) = place(one(tree, recipe="iterations = 120").cells()).items()
    asked: dict[str, Any] = {"device": "cpu", "track": "none", "checkpoint_every": 30} | cell.asked()
    run, iterations = start(cell.method, cell.data, cell.target, out=tmp_path / name, **asked)
    while next(iterations) < 101:
        pass
    iterations.close()  # type: ignore[attr-defined]
    for path in () if whole else run.checkpoints.glob("*.safetensors"):
        path.write_bytes(b"torn")
    ledger = Ledger(tmp_path)
    ledger.prepare()
    assert ledger.steps(name) == 100
    assert perform(Order(name, cell, Site(str(tmp_path), device="cpu"))).state == "done"
    assert ledger.read(name).last["iterations"] == counted


def test_a_run_that_is_only_evaluated_counts_nothing() -> None:
    assert Count(0).iterations == 0
    assert Count(50).iterations == 0


def test_an_order_travels_as_json() -> None:
    order = Order("one", Cell("erm", "pacs", "sketch", scores=("cls",)), Site("runs"), runs=3, tried=2)
    assert Order.from_json(json.loads(json.dumps(order.to_json()))) == order


# The command line


def test_runs_are_counted_by_method_whatever_the_target_is_called(tmp_path: Path) -> None:
    tree, plan = write_tree(tmp_path / "signs", domains=("ink", "neon", "real-world"), each=2), tmp_path / "p.toml"
    plan.write_text(
        f'data = "{tree}"\ntargets = ["real-world"]\nmethods = [{{ method = "erm" }}]\nbackbone = "convnet"'
    )
    done = CliRunner().invoke(app, ["bench", "run", str(plan), "--runs", str(tmp_path / "runs"), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "erm" in done.stdout
    assert "erm-real" not in done.stdout
