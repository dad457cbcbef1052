"""Which commit a run names as that of the code that trained it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from opendg.training import origin


def checkout(folder: Path, *tracked: Path) -> str:
    """A repository with one commit of these files; its commit."""
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", "-C", str(folder)]
    for words in (["init", "-q"], ["add", *map(str, tracked)], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module as a file of a project's."""
    monkeypatch.delenv("OPENDG_COMMIT", raising=False)
    place = tmp_path / "project" / "lib" / "origin.py"
    place.parent.mkdir(parents=True)
    shutil.copy(origin.__file__, place)
    monkeypatch.setattr(origin, "__file__", str(place))
    return place


def test_a_checkout_names_its_commit_and_whether_it_was_changed(module: Path) -> None:
    commit = checkout(module.parents[1], module)
    assert origin._commit() == commit
    module.write_text(module.read_text() + "\n")
    assert origin._commit() == f"{commit}+"


def test_an_installation_inside_another_checkout_names_none(module: Path) -> None:
    (module.parents[1] / "theirs.py").touch()
    checkout(module.parents[1], module.parents[1] / "theirs.py")
    assert origin._commit() is None


def test_where_there_is_no_checkout_the_environment_may_say_it(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin._commit() is None
    monkeypatch.setenv("OPENDG_COMMIT", "0123456789ab")
    assert origin._commit() == "0123456789ab"
