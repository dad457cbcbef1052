"""Which records a folder holds: those of results, and of a search only where its folder is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opendg.bench.records import load_records
from opendg.errors import OpenDGError
from tests.bench.results import record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """runs/ with a run, and tune/photo, a search with one trial of another learning rate."""
    for place, lr in (("runs/medic", 0.1), ("tune/photo/records", 0.5)):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "evaluation-selected.json").write_text(json.dumps(record("medic", lr=lr)))
    (tmp_path / "tune" / "photo" / "tune.json").write_text("{}")
    return tmp_path


def test_trials_of_a_search_are_no_results(folder: Path) -> None:
    assert [result.record["recipe"]["lr"] for result in load_records(folder)] == [0.1]
    with pytest.raises(OpenDGError, match="holds no records.* trials of a search .*give the folder of one"):
        load_records(folder / "tune")


@pytest.mark.parametrize("inside", ["tune/photo", "tune/photo/records"])
def test_trials_are_read_where_their_search_is_given(folder: Path, inside: str) -> None:
    assert [result.record["recipe"]["lr"] for result in load_records(folder / inside)] == [0.5]
