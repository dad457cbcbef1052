"""Which records a folder holds: those of results, and of a search only where its folder is given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opendg.bench.header import recipe_words
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


def test_records_of_before_a_part_of_the_recipe_are_of_runs_without_it(tmp_path: Path) -> None:
    before, zero, some = (record("medic", average_over=0.5, average_start=share) for share in (0.0, 0.0, 0.2))
    del before["recipe"]["average_start"]
    for name, written in (("before", before), ("some", some), ("zero", zero)):
        (tmp_path / f"{name}.json").write_text(json.dumps(written))
    rows = {result.path.stem: result.row for result in load_records(tmp_path)}
    assert rows["before"] == rows["zero"] != rows["some"]


def test_older_averages_are_rows_of_their_own(tmp_path: Path) -> None:
    """They looked back otherwise; runs that kept none are what they were."""
    plain, warmed, none = (record("medic") for _ in range(3))
    for old, decay in ((warmed, 0.9995), (none, 0.0)):
        del old["recipe"]["average_over"], old["recipe"]["average_start"]
        old["recipe"]["average"] = decay
    asked = {"plain": plain, "none": none, "warmed": warmed, "half": record("medic", average_over=0.5)}
    asked["corrected"] = warmed | {"selection": "averaged weights (decay 0.9995, bias-corrected)"}
    for name, written in asked.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(written))
    found = {result.path.stem: result for result in load_records(tmp_path)}
    assert found["none"].row == found["plain"].row
    assert found["corrected"].record["recipe"]["average_over"] == pytest.approx(0.5)  # 2,000 of 4,000 iterations
    assert len({found[name].row for name in ("plain", "warmed", "half")}) == 3
    said = {name: recipe_words(result.record["recipe"]) for name, result in found.items()}
    assert "averaged over the last tenth of it (a decay that warms up to 0.9995)" in said["warmed"]
    assert said["half"].endswith("averaged over 0.5 of it")
    assert "averaged" not in said["plain"]


@pytest.mark.parametrize("inside", ["tune/photo", "tune/photo/records"])
def test_trials_are_read_where_their_search_is_given(folder: Path, inside: str) -> None:
    assert [result.record["recipe"]["lr"] for result in load_records(folder / inside)] == [0.5]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("protocol", None), ("known", 3), ("seed", "a"), ("recipe", []), ("recipe.lr", None), ("scores", []),
        ("scores.cls", None), ("scores.cls.oscr", "hi"), ("scores.cls.oscr", float("nan")),
        ("scores.cls.h@oracle10", "x"), ("acc", None),
    ],
)  # fmt: skip
def test_a_damaged_record_is_told_by_what_is_wrong_in_it(tmp_path: Path, place: str, value: object) -> None:
    damaged = record("medic")
    *above, key = place.split(".")
    inner = damaged
    for name in above:
        inner = inner[name]
    inner[key] = value
    (tmp_path / "one.json").write_text(json.dumps(damaged))
    with pytest.raises(OpenDGError, match=f"one.json' is no whole record \\({place} is wrong\\)"):
        load_records(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", "3"])
def test_what_is_named_as_an_evaluation_is_not_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.json").write_text(json.dumps(record("medic")))
    (tmp_path / "other.json").write_text(text)
    assert len(load_records(tmp_path)) == 1
    (tmp_path / "evaluation-selected.json").write_text(text)
    with pytest.raises(OpenDGError, match="evaluation-selected.json' is no whole record"):
        load_records(tmp_path)
