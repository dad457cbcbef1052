"""`opendg reproduce`: what is missing is run, tables and figures come from records, and a forecast needs no data."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from opendg.bench.estimate import AROUND
from opendg.bench.ledger import Ledger
from opendg.bench.plan import Plan, list_plans, load_plan, parse_plan, place
from opendg.bench.produce import produce, titled
from opendg.bench.published import TABLES
from opendg.bench.records import Result
from opendg.bench.reproduce import asked_for, forecast, keep_records, results_of, run_plan, site_of
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.methods.registry import list_methods
from tests.bench.parts import Inline, refused, signs
from tests.bench.results import result
from tests.tiny import CLASSES, write_tree

Finished = tuple[Plan, Path]


@pytest.mark.parametrize("name", [*TABLES, "rotating-unknown", "thresholds", "tsne", "openness"])
def test_a_forecast_needs_neither_data_nor_gpu(name: str, tmp_path: Path) -> None:
    plan = asked_for(name, None, few=False, seeds=[0], methods=["erm"])
    found = forecast(plan, tmp_path / "none", None)
    assert set(found.states.values()) == {"left"}
    assert len(found.states) == len(plan.cells())
    assert found.sources
    assert found.seconds > AROUND * len(found.states)
    once, twice = (forecast(plan.override(iterations=n), tmp_path / "none", None).seconds for n in (1000, 2000))
    assert twice - once == pytest.approx(once - AROUND * len(found.states)), "iterations cost what they cost"
    assert not (tmp_path / "none").exists()


def test_the_dry_run_says_what_would_run(tmp_path: Path) -> None:
    words = ["reproduce", "rotating-unknown", "--runs", str(tmp_path), "--dry-run"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "84 runs in the plan: 84 left" in result.output
    assert "About" in result.output
    assert ("This machine has no GPU" in result.output) is not torch.cuda.is_available()
    said = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert len(said["runs"]) == 84
    assert said["seconds"] == pytest.approx(sum(said["runs"].values()))


def test_a_forecast_counts_what_runs_have_made_already(tmp_path: Path) -> None:
    """A quarter is left of the first; the second is trained, and only a score is lacking."""
    text = 'data = "pacs"\nmethods = [{ method = "erm" }]\nrecipe = { iterations = 4000 }\nscores = ["entropy"]'
    plan = parse_plan("some", text).override(targets=("photo", "sketch"))
    whole = next(iter(forecast(plan, tmp_path, None).estimates.values())).seconds
    ledger = Ledger(tmp_path)
    ledger.prepare()
    for (name, (cell, _)), steps in zip(place(plan.cells()).items(), (3000, 4000), strict=True):
        ledger.begin(name, cell)
        (tmp_path / name).mkdir()
        (tmp_path / name / "log.jsonl").write_text(json.dumps({"step": steps}) + "\n")
    found = forecast(plan, tmp_path, None)
    assert set(found.states.values()) == {"interrupted"}
    assert [one.seconds for one in found.estimates.values()] == pytest.approx([AROUND + (whole - AROUND) / 4, AROUND])


def test_finished_runs_set_the_pace_of_the_forecast(finished: Finished) -> None:
    plan, runs = finished
    known = forecast(plan, runs, None)
    assert set(known.states.values()) == {"done"}
    assert known.seconds == 0
    longer = forecast(plan.override(iterations=24), runs, None)
    assert longer.sources == ["runs of this folder"]
    spent = sum(json.loads(path.read_text())["attempts"][0]["seconds"] for path in (runs / "ledger").glob("*.json"))
    assert 0.5 * spent < longer.seconds < 3 * spent, "by the runs that there are, whatever part iterations have in them"


@pytest.mark.slow
def test_reproduce_runs_what_is_missing_and_writes_the_table(tree: Path, tmp_path: Path) -> None:
    """The command as a user has it; then the same table from its records alone."""
    plan, runs, out = tmp_path / "signs.toml", tmp_path / "runs", tmp_path / "out"
    plan.write_text(signs(tree))
    words = ["reproduce", str(plan), "--device", "cpu", "--note", "Four signs."]
    first = CliRunner().invoke(app, [*words, "--runs", str(runs), "--out", str(out)])
    assert first.exit_code == 0, first.output
    assert "MEDIC-bcls" in first.output
    assert "Four signs." in first.output
    assert len(list((out / "records").glob("*.json"))) == 4
    before = {name: (out / name).read_bytes() for name in ("signs.md", "signs.tex", "signs.csv")}
    for name in before:
        (out / name).unlink()
    again = CliRunner().invoke(app, [*words, "--records", str(out / "records"), "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert {name: (out / name).read_bytes() for name in before} == before


def test_a_table_is_of_all_records_beside_it(finished: Finished, tmp_path: Path) -> None:
    """So that one seed may be run today and another tomorrow."""
    plan, runs = finished
    for seed in (0, 1):
        one = plan.override(seeds=[seed])
        results, records = keep_records(one, results_of(one, runs, None), tmp_path)
        assert {result.seed for result in results} == set(range(seed + 1))
    assert records == tmp_path / "records"
    assert len(results) == len(results_of(plan, runs, None))


def test_a_table_has_the_numbers_of_the_records(finished: Finished, tmp_path: Path) -> None:
    plan, runs = finished
    produce(plan, results_of(plan, runs, None), tmp_path)
    rows = list(csv.DictReader(StringIO((tmp_path / "signs.csv").read_text())))
    (found,) = [r for r in rows if (r["row"], r["column"], r["metric"]) == ("MEDIC-bcls", "wood", "oscr")]
    values = [
        json.loads(path.read_text())["scores"]["bcls"]["oscr"]
        for path in runs.glob("medic-wood-*/evaluation-averaged.json")
    ]
    assert len(values) == int(found["n"]) == 2
    assert float(found["mean"]) == pytest.approx(100 * np.mean(values), abs=1e-4)
    assert float(found["spread"]) == pytest.approx(100 * np.std(values, ddof=1), abs=1e-4)
    assert "averaged weights (over 0.5 of the run)" in found["selection"]
    selected = produce(plan, results_of(plan, runs, None), tmp_path, take="selected").tables[0]
    assert selected.facts["selection"] == "the last iterate"


def of(dataset: str, **more: Any) -> Result:
    one = result("erm", **more)
    said = one.record["protocol"].replace("pacs", dataset)
    return Result(one.record | {"dataset": dataset, "protocol": said}, one.path)


def test_a_plan_of_several_datasets_has_a_table_for_each(tmp_path: Path) -> None:
    """Also where one is there so far: a table keeps its name when the others come."""
    text = 'title = "T"\ndata = ["pacs", "vlcs"]\nmethods = [{ method = "erm" }]\n[show]\npublished = "pacs-resnet18"'
    plan = parse_plan("wide", text)
    found = [of("vlcs", value=0.3), of("pacs", value=0.5)]
    made = produce(plan, found, tmp_path)
    assert [(table.name, table.title) for table in made.tables] == [("wide-pacs", "T: pacs"), ("wide-vlcs", "T: vlcs")]
    names = {f"wide-{data}.{suffix}" for data in plan.data for suffix in ("md", "tex", "csv")}
    assert {path.name for path in made.files} == names == {path.name for path in tmp_path.iterdir()}
    pacs, vlcs = made.tables
    assert (pacs.reference is None, vlcs.reference is None) == (False, True)
    assert vlcs.value(vlcs.rows[0], "photo", "oscr").mean == pytest.approx(30.0)
    assert [table.name for table in produce(plan, found[:1], tmp_path).tables] == ["wide-vlcs"]


def test_a_plan_of_several_divisions_has_a_table_for_each(tmp_path: Path) -> None:
    text = 'data = "pacs"\ndivisions = [{ unknown = ["dog"] }, { unknown = ["horse"] }]\nmethods = [{ method = "erm" }]'
    made = produce(parse_plan("parts", text), [of("pacs", unknown=(name,)) for name in ("dog", "horse")], tmp_path)
    assert [table.name for table in made.tables] == ["parts-pacs-shared-6+1-dog", "parts-pacs-shared-6+1-horse"]
    assert (tmp_path / "parts-pacs-shared-6+1-horse.md").is_file()
    one = parse_plan("one", 'data = "pacs"\nmethods = [{ method = "erm" }]')
    with pytest.raises(OpenDGError, match="of 2 protocols"):
        produce(one, [of("pacs", unknown=(name,)) for name in ("dog", "horse")], tmp_path)


def test_a_table_by_division_is_of_one_dataset_and_told_before_it_is_trained(tree: Path, tmp_path: Path) -> None:
    text = f'data = ["pacs", "{tree}"]\nmethods = [{{ method = "erm" }}]\ndivisions = [{{ known = 3 }}]\n'
    with pytest.raises(OpenDGError, match="'rotating' is of one dataset, and these are pacs and signs"):
        forecast(parse_plan("wide", f'{text}[show]\nkind = "rotating"'), tmp_path, None)


def test_quick_is_short_and_has_a_name_of_its_own() -> None:
    plan = asked_for("pacs-resnet18", None, few=True)
    assert plan.name == "pacs-resnet18-quick"
    assert plan.seeds == (0,)
    assert {cell.recipe["iterations"] for cell in plan.cells()} == {20}
    assert "not a result" in plan.title


def test_tuned_settings_come_from_a_plan_of_the_users(tmp_path: Path) -> None:
    file = tmp_path / "tuned.toml"
    file.write_text(
        'data = "pacs"\nbackbone = "resnet18.tv_in1k"\nmethods = [{ method = "medic", settings = { alpha = 0.3 } }]'
    )
    plan = asked_for("pacs-resnet18", file, few=False)
    assert (plan.name, plan.show.published) == ("pacs-resnet18", "pacs-resnet18")
    assert [entry.settings for entry in plan.methods] == [{"alpha": 0.3}]


def test_a_misspelt_method_is_not_left_out_in_silence(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(signs(tree, methods='[{ method = "erm" }, { method = "medik" }]'))
    with pytest.raises(OpenDGError, match="There is no method 'medik' in the plan 'mine': did you mean 'medic'"):
        asked_for(str(file), None, few=False)


def test_an_unfinished_plan_is_a_sentence(finished: Finished) -> None:
    plan, runs = finished
    with pytest.raises(OpenDGError, match="No run of signs is finished"):
        results_of(plan.override(seeds=[9]), runs, None)


@pytest.mark.parametrize("name", ["pacs-resnet18", "thresholds", "rotating-unknown", "openness-digits"])
def test_records_of_another_dataset_are_refused(finished: Finished, tmp_path: Path, name: str) -> None:
    """A table that is headed PACS has numbers of PACS."""
    _, runs = finished
    said = refused("reproduce", name, "--records", str(runs), "--out", str(tmp_path / "out"))
    assert "These records are of signs, and" in said
    assert not (tmp_path / "out").exists(), "nothing is left behind"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--score", "foo"], "There is no score 'foo'"),
        (["--score", "vim"], "No record has the score 'vim'"),
        (["--take", "average"], "There are no weights 'average'"),
        (["--seeds", "0"], "--seeds would be without effect"),
    ],
)
def test_what_cannot_be_drawn_leaves_nothing_behind(
    finished: Finished, tree: Path, tmp_path: Path, more: list[str], sentence: str
) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text(signs(tree, more='[show]\nkind = "oscr"'))
    words = ["reproduce", str(plan), "--records", str(finished[1]), "--out", str(tmp_path / "out"), *more]
    assert sentence in refused(*words)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_runs(tree: Path, tmp_path: Path) -> None:
    plan, file = tmp_path / "mine.toml", tmp_path / "file"
    plan.write_text(signs(tree))
    file.touch()
    words = ["reproduce", str(plan), "--runs", str(tmp_path / "runs"), "--out", str(file / "out")]
    assert "is a file" in refused(*words)
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_vanishes_is_a_sentence(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpenDGError, match="could not be written"):
        keep_records(finished[0], results_of(*finished, None), tmp_path / "file" / "out")


@pytest.mark.parametrize("command", ["reproduce", "bench run"])
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pacs-resnet18", "--root", "nowhere"], "give with --root the folder that holds PACS"),
        (["MINE", "--backbone", "resnet1"], "There is no backbone 'resnet1'"),
        (["MINE", "--weights", "nowhere.safetensors"], "There is no weight file"),
    ],
)
def test_what_would_fail_in_every_run_is_refused_before_the_first(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(signs(tree))
    asked = ["mine.toml" if word == "MINE" else word for word in words]
    assert sentence in refused(*command.split(), *asked, "--device", "cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"], "nothing is left behind"


def test_a_dry_run_knows_which_backbones_there_are(tmp_path: Path) -> None:
    words = ["bench", "run", "pacs-resnet18", "--runs", str(tmp_path / "runs"), "--backbone", "resnet1818", "--dry-run"]
    assert "There is no backbone 'resnet1818': did you mean" in refused(*words)


def test_thresholds_of_sources_without_unknown_images_are_refused_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = write_tree(tmp_path / "signs")
    for domain in ("chalk", "ink", "neon"):
        shutil.rmtree(tree / domain / "ring")
    plan = f'data = "{tree}"\ntargets = ["wood"]\nunknown = ["ring"]\nmethods = [{{ method = "erm" }}]\n'
    Path("mine.toml").write_text(f'{plan}[show]\nkind = "thresholds"\nscore = "cls"')
    words = ["reproduce", "mine.toml", "--device", "cpu", "--iterations", "2", "--backbone", "convnet"]
    assert "(chalk, ink, neon) have no image of an unknown class, which the threshold figure needs" in refused(*words)
    assert not Path("runs").exists()


def test_another_backbone_than_the_plans_is_in_the_title(finished: Finished) -> None:
    plan, runs = finished
    results = results_of(plan, runs, None)
    assert titled(plan, results).title == "Signs"
    assert titled(replace(plan, backbone="resnet50.tv_in1k"), results).title == "Signs - here with convnet"


@pytest.mark.parametrize(
    ("plan", "unknown", "said"),
    [
        ("pacs-resnet18", ("person",), ""),
        ("pacs-resnet18", ("dog",), ""),
        ("pacs-resnet18", ("dog", "person"), "5 known and 2 unknown"),
        ("closed-pacs", ("person",), "resnet18, 6 known and 1 unknown"),
        ("rotating-unknown", ("horse",), ""),
        ("openness-pacs", ("dog", "elephant", "giraffe", "guitar", "horse", "house"), "1 known and 6 unknown"),
    ],
)
def test_another_division_than_the_plans_is_in_the_title(plan: str, unknown: tuple[str, ...], said: str) -> None:
    chosen = load_plan(plan)
    expected = f"{chosen.title} - here with {said}" if said else chosen.title
    assert titled(chosen, [result("erm", unknown=unknown)]).title == expected


@pytest.mark.parametrize(
    ("division", "said"),
    [
        ('known = ["dog", "horse"]', "6 known and 1 unknown"),
        ('unknown = ["dog"]', ""),
        ('unknown = ["dog", "horse"]', "6 known and 1 unknown"),
        ("", ""),  # as the catalogue has it
        ("divisions = [{ known = 3 }, { known = 6 }]", ""),
    ],
)
def test_a_division_may_be_given_in_several_ways(division: str, said: str) -> None:
    plan = parse_plan("mine", f'title = "T"\ndata = "pacs"\n{division}\nmethods = [{{ method = "erm" }}]')
    assert titled(plan, [result("erm")]).title == (f"T - here with {said}" if said else "T")


def test_a_division_that_the_data_alone_would_say_is_not_in_the_title() -> None:
    plan = parse_plan("mine", 'title = "T"\ndata = "data/signs"\nmethods = [{ method = "erm" }]')
    assert titled(plan, [of("signs")]).title == "T"


@pytest.mark.slow
def test_a_table_that_lacks_runs_says_so_and_ends_with_1(tmp_path: Path) -> None:
    """One of the target's images is broken: the run that is tested on it fails, the others do not."""
    tree = write_tree(tmp_path / "data" / "signs", each=10)
    plan = tmp_path / "mine.toml"
    plan.write_text(signs(tree, methods='[{ method = "erm" }]'))
    words = [
        "reproduce",
        str(plan),
        "--device",
        "cpu",
        "--runs",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert CliRunner().invoke(app, [*words, "--targets", "wood"]).exit_code == 0
    for image in (tree / "ink").rglob("*.*"):
        image.write_bytes(bytes(image.stat().st_size))  # of the same size: other files would be other data
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 1, said.output
    assert "1 of 2 runs failed and are missing." in (tmp_path / "out" / "mine.md").read_text()


def test_every_table_and_figure_of_the_paper_has_a_plan() -> None:
    figures_too = {"thresholds", "tsne", "openness", "openness-pacs", "openness-digits", "oscr", "confusion"}
    beyond = {"rotating-unknown", "methods-pacs", "methods-digits"}
    assert set(list_plans()) == {*TABLES} | beyond | figures_too
    assert all(load_plan(name).title for name in list_plans())


def test_plans_of_every_method_have_every_method() -> None:
    pacs, digits = ({line.method for line in load_plan(f"methods-{name}").methods} for name in ("pacs", "digits"))
    assert pacs == set(list_methods())
    assert pacs - digits == {"miro", "dson"}  # which refuse the ConvNet


def test_plans_are_listed() -> None:
    result = CliRunner().invoke(app, ["bench", "plans"])
    assert result.exit_code == 0
    assert all(name in result.output for name in list_plans())


@pytest.mark.slow
def test_each_class_takes_its_turn_as_the_unknown_one(tree: Path, tmp_path: Path, inline: Inline) -> None:
    """From the plan to the paired comparison, in real runs; then the same from the records alone."""
    turns = ", ".join(f'{{ unknown = ["{name}"] }}' for name in CLASSES)
    methods = '[{ method = "erm", settings = { ova = true } }, { method = "medic" }]'
    text = signs(tree, f'divisions = [{turns}]\n[show]\nkind = "rotating"', methods=methods)
    plan = parse_plan("turns", text.replace('unknown = ["ring"]\n', "\n", 1))
    states = run_plan(plan, site_of(tmp_path / "runs", None, device="cpu"), inline)
    assert list(states.values()) == ["done"] * 16
    results = results_of(plan, tmp_path / "runs", None)
    made = produce(plan, results, tmp_path / "out")
    assert made.tables[0].columns == CLASSES
    (own,) = [one for one in made.comparisons if {one.first, one.second} == {"ERM-cls", "MEDIC-bcls"}]
    assert own.pairs == 8
    assert own.low <= own.difference <= own.high
    page = (tmp_path / "out" / "turns.md").read_text()
    assert "95 % interval by bootstrap" in page
    kept, _ = keep_records(plan, results, tmp_path)
    produce(plan, kept, tmp_path / "again")
    assert (tmp_path / "again" / "turns.md").read_text() == page
