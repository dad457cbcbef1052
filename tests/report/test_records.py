"""Records are found wherever they lie, once each, and what they hold is not trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opendg.errors import OpenDGError
from opendg.report.records import find_records, name_variants
from tests.report.conftest import TRAINED
from tests.report.pages import record_of


def names(paths: list[Path]) -> list[str]:
    return sorted(found.entry["name"] for found in find_records(paths)[0])


def test_a_run_a_folder_of_runs_and_a_file_are_all_found(runs: Path) -> None:
    assert names([runs]) == sorted(TRAINED)
    assert names([runs.parent]) == [f"runs/{name}" for name in sorted(TRAINED)]
    assert names([runs / "erm-wood", runs / "erm-ink"]) == ["erm-ink", "erm-wood"]
    assert names([runs / "erm-wood" / "evaluation-selected.json"]) == ["erm-wood"]


def test_a_record_in_two_places_is_taken_once_with_its_predictions(runs: Path, tmp_path: Path) -> None:
    shutil.copy(runs / "erm-wood" / "evaluation-selected.json", tmp_path / "erm-on-wood.json")
    for order in ([tmp_path, runs], [runs, tmp_path]):
        found, _ = find_records(order)
        assert len(found) == len(TRAINED)
        assert all(each.predictions for each in found)
    (alone,), _ = find_records([tmp_path])
    assert alone.entry["name"] == "erm-on-wood"
    assert alone.predictions is None


def test_what_cannot_be_shown_is_named(runs: Path, tmp_path: Path) -> None:
    for name in ("erm-wood", "erm-ink", "medic-wood"):
        shutil.copytree(runs / name, tmp_path / name)
    (tmp_path / "erm-ink" / "evaluation-selected.json").unlink()
    torn = tmp_path / "medic-wood" / "evaluation-selected.json"
    torn.write_text(torn.read_text()[:200])
    (tmp_path / "notes.json").write_text('{"not": "a record"}')
    found, left_out = find_records([tmp_path])
    assert [each.entry["name"] for each in found] == ["erm-wood"]
    assert sorted(text.split()[0] for text in left_out) == ["erm-ink", "medic-wood:"]
    assert any("opendg evaluate" in text for text in left_out)


def test_nothing_to_show_is_an_error(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="No record was found: evaluate"):
        find_records([tmp_path])
    shutil.copytree(runs / "erm-ink", tmp_path / "run")
    (tmp_path / "run" / "evaluation-selected.json").unlink()
    with pytest.raises(OpenDGError, match="run is not evaluated yet"):
        find_records([tmp_path])
    with pytest.raises(OpenDGError, match="There is no '.*nowhere'"):
        find_records([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("key", "value"),
    [("seed", "seven"), ("acc", float("nan")), ("acc", True), ("n_known", 1e400), ("known", "dog"), ("unknown", None)],
)
def test_odd_values_become_none_or_text(runs: Path, tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "odd.json").write_text(json.dumps(record_of(runs / "erm-wood") | {key: value}))
    (found,), _ = find_records([tmp_path])
    assert found.entry[key] in (None, [])


@pytest.mark.parametrize("change", [{"protocol": None}, {"method": ["erm"]}, {"scores": []}, {"target": 3}])
def test_a_record_without_its_names_is_left_out(runs: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    shutil.copytree(runs / "erm-wood", tmp_path / "run")
    record = record_of(runs / "erm-wood") | change
    (tmp_path / "run" / "evaluation-selected.json").write_text(json.dumps(record))
    shutil.copytree(runs / "erm-ink", tmp_path / "good")
    found, left_out = find_records([tmp_path])
    assert [each.entry["name"] for each in found] == ["good"]
    assert left_out[0].startswith("run: ")


def test_a_deeply_nested_file_is_no_record(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "erm-wood", tmp_path / "good")
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert names([tmp_path]) == ["good"]


def test_variants_say_what_differs_and_groups_are_what_may_be_averaged(runs: Path) -> None:
    entries = [found.entry for found in find_records([runs])[0]]
    name_variants(entries)
    by_name = {entry["name"]: entry for entry in entries}
    assert by_name["erm-wood"]["variant"] == "ova=true"
    assert by_name["plain-wood"]["variant"] == "ova=false"
    assert by_name["medic-wood"]["variant"] == ""
    assert by_name["other-wood"]["variant"] == "ova=true"  # though alone under its protocol: see below
    by_name["medic-ink"]["backbone"] = "resnet18.tv_in1k"
    name_variants(entries)
    assert by_name["erm-wood"]["variant"] == "ova=true, convnet"
    assert by_name["medic-ink"]["variant"] == "resnet18.tv_in1k"
    by_name["medic-ink"]["backbone"] = "convnet"
    name_variants(entries)
    group = {name: entry["group"] for name, entry in by_name.items()}
    assert group["erm-wood"] == group["erm-ink"]
    assert len(set(group.values())) == 4
    assert group["other-wood"] not in (group["erm-wood"], group["plain-wood"])
    del by_name["erm-ink"]["origin"]["recipe"]["average_start"]  # a record from before there was such a part
    name_variants(entries)
    assert by_name["erm-wood"]["group"] == by_name["erm-ink"]["group"]
    by_name["erm-ink"]["origin"]["starting_weights"] = "0123abcd"
    name_variants(entries)
    assert by_name["erm-wood"]["group"] != by_name["erm-ink"]["group"]
    assert by_name["erm-ink"]["variant"] == "from=0123abcd, ova=true"
    by_name["medic-wood"]["origin"]["starting_weights"] = None  # a record from before it was kept
    name_variants(entries)
    assert by_name["medic-wood"]["variant"] == "from=not recorded"


def test_a_head_that_the_method_is_without_by_default_is_always_named(runs: Path) -> None:
    entries = [found.entry for found in find_records([runs / "erm-wood", runs / "medic-wood"])[0]]
    name_variants(entries)
    assert {entry["method"]: entry["variant"] for entry in entries} == {"erm": "ova=true", "medic": ""}


def test_trials_of_a_search_are_shown_only_where_its_folder_is_given(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "erm-ink", tmp_path / "runs" / "erm-ink")
    for target in ("ink", "wood"):
        search = tmp_path / "tune" / target
        (search / "records").mkdir(parents=True)
        (search / "tune.json").write_text("{}")
        shutil.copy(runs / f"erm-{target}" / "evaluation-selected.json", search / "records" / "000.json")
    found, left_out = find_records([tmp_path])
    assert [each.entry["name"] for each in found] == ["runs/erm-ink"]
    assert left_out == ["2 searches for settings are left out: give the folder of one to see its trials."]
    assert names([tmp_path / "tune" / "wood"]) == ["records/000"]
    assert names([tmp_path / "tune" / "wood" / "records"]) == ["000"]
    with pytest.raises(OpenDGError, match="No record was found, as 2 searches"):
        find_records([tmp_path / "tune"])
