from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from opendg.cli import main
from tests.e2e.forks import Forks


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
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Commands in processes of their own."""
    with closing(Forks(tmp_path_factory.mktemp("forks"))) as made:
        yield made
