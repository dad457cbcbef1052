from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from opendg.cli import main
from opendg.training.train import train
from tests.e2e.forks import Forks
from tests.tiny import quick, write_tree


class Said(NamedTuple):
    """What a command left: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def opendg(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process, through the function that the installed script calls."""

    def run(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["opendg", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small dataset. Tests that change it make their own."""
    return write_tree(tmp_path_factory.mktemp("data") / "signs")


@pytest.fixture(scope="session")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of MEDIC that has learnt something. Tests that change it copy it."""
    out = tmp_path_factory.mktemp("runs") / "trained"
    return train("medic", str(tree), out=out, **quick(iterations=60, batch=3, optimizer="adam", lr=1e-3)).path


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Commands in processes of their own."""
    with closing(Forks(tmp_path_factory.mktemp("forks"))) as made:
        yield made
