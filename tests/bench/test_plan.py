"""Plans: from TOML to cells, and the names that runs get."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opendg.bench import check
from opendg.bench.cells import Cell, run_name
from opendg.bench.plan import Entry, Plan, Show, list_plans, load_plan, parse_plan, place
from opendg.bench.produce import FIGURES, PAGES
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.config import Config, read_config, write_config
from opendg.training.job import Job
from opendg.training.job import plan as plan_job
from tests.bench.parts import plan_of, signs


def test_a_plan_spans_methods_targets_seeds_divisions_and_settings() -> None:
    text = """
        data = ["pacs", "digits-dg"]
        seeds = [0, 1, 2]
        divisions = [{ known = 4 }, { known = 6 }]
        methods = [{ method = "erm" }, { method = "medic", vary = { order = [1, 2], alpha = [0.01, 0.1, 1.0] } }]
    """
    cells = parse_plan("wide", text).cells()
    assert len(cells) == 2 * 4 * 3 * 2 * (1 + 2 * 3)
    assert {cell.target for cell in cells if cell.data == "digits-dg"} == {"mnist", "mnist_m", "svhn", "syn"}
    assert {tuple(cell.settings.values()) for cell in cells if cell.method == "medic"} == {
        (order, alpha) for order in (1, 2) for alpha in (0.01, 0.1, 1.0)
    }
    assert cells[0].seed == cells[len(cells) // 6 - 1].seed == 0, "a table fills seed by seed"
    assert len(place(cells)) == len(cells), "no two of them are the same run"


def test_a_cell_is_what_train_makes_of_it(tree: Path) -> None:
    """The job planned on the names of the dataset is the job of the dataset."""
    for name, (cell, job) in place(plan_of(tree).cells()).items():
        real, _, _ = plan_job(cell.method, cell.data, [cell.target], **cell.asked())
        assert run_name(real) == name
        assert replace(real, data=job.data) == job


def test_several_targets_of_one_run_are_joined_as_on_the_command_line(tree: Path) -> None:
    plan = plan_of(tree, methods='[{ method = "erm" }]').override(targets=["ink, wood"])
    ((name, (_, job)),) = place(plan.cells()).items()
    assert job.protocol.targets == ("ink", "wood")
    assert name.startswith("erm-ink+wood-0-")


@pytest.mark.parametrize("data", ["pacs", "digits-dg"])
def test_names_do_not_depend_on_where_the_data_lie(shared: Path, data: str) -> None:
    plan = parse_plan("one", f'data = "{data}"\nmethods = [{{ method = "erm" }}]\nweights = "none"')
    assert list(place(plan.cells())) == list(place(plan.cells(shared / "data"), shared / "data", need_data=True))


def test_the_name_follows_what_defines_a_run_and_not_where_it_lies(tree: Path, tmp_path: Path) -> None:
    cell = plan_of(tree).cells()[0]
    (name,) = place([cell])
    moved = tmp_path / "elsewhere" / "signs"
    moved.parent.mkdir()
    moved.symlink_to(tree)
    assert list(place([replace(cell, data=str(moved), scores=("energy",))])) == [name]
    others = [
        replace(cell, seed=1), replace(cell, target="neon"), replace(cell, method="mldg"),
        replace(cell, settings={"ova": True}), replace(cell, recipe=cell.recipe | {"lr": 0.5}),
        replace(cell, unknown=["dot"]), replace(cell, split_seed=1), replace(cell, backbone="resnet18", weights="none"),
    ]  # fmt: skip
    assert len({name, *place(others)}) == 1 + len(others)


def test_a_run_that_two_entries_ask_for_is_read_with_the_scores_of_both(tree: Path) -> None:
    entries = [
        '{ method = "erm", label = "A", scores = ["cls", "knn"] }', '{ method = "medic" }',
        '{ method = "erm", label = "B", settings = { ova = false }, scores = ["knn", "vim"] }',
    ]  # fmt: skip
    cells = plan_of(tree, methods=f"[{', '.join(entries)}]").cells()
    assert len(cells) == 6
    placed = place(cells)
    assert [(cell.method, cell.target, cell.scores) for cell, _ in placed.values()] == [
        ("erm", "ink", ("cls", "knn", "vim")), ("medic", "ink", ()),
        ("erm", "wood", ("cls", "knn", "vim")), ("medic", "wood", ()),
    ]  # fmt: skip


def test_weights_count_by_content(tree: Path, tmp_path: Path) -> None:
    cell = plan_of(tree).cells()[0]
    for file, content in (("a", b"one"), ("b", b"one"), ("c", b"two")):
        (tmp_path / file).write_bytes(content)
    a, b, c = (list(place([replace(cell, weights=str(tmp_path / file))])) for file in "abc")
    assert a == b != c
    (tmp_path / "a").write_bytes(b"two")
    assert list(place([replace(cell, weights=str(tmp_path / "a"))])) == c
    with pytest.raises(OpenDGError, match="There is no weight file"):
        place([replace(cell, weights=str(tmp_path / "d"))])


def test_a_cell_travels_as_json(tree: Path) -> None:
    cell = plan_of(tree, 'scores = ["cls", "own"]').cells()[0]
    assert Cell.from_json(cell.to_json()) == cell


def test_the_command_of_a_cell_trains_the_same_run(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that a record carries has no path of this machine; it is given beside the data."""
    methods = '[{ method = "medic", settings = { order = 2 }, recipe = { weight_decay = 0.001 } }]'
    cell = plan_of(tree, "split_seed = 3", methods=methods).cells()[0]
    assert str(tree.parent) not in cell.command()
    monkeypatch.chdir(tree.parent)
    words = [*shlex.split(cell.command())[1:], "--out", str(tmp_path / "run"), "--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert run_name(Job.from_json(Run.open(tmp_path / "run").config)) == next(iter(place([cell])))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("sedes = [0]", "did you mean 'seeds'"),
        ("divisions = [{ seeds = 3 }]", "give known, unknown or both"),
        ('[show]\nkid = "table"', "did you mean 'kind'"),
        ("x =", "is not valid TOML"),
        ("seeds = 0", r"seeds of the plan 'signs' is 0: a list of whole numbers"),
        ("seeds = []", "a list of whole numbers"),
        ("seeds = [true]", "a list of whole numbers"),
        ('scores = "cls"', "a list of texts"),
        ('scores = ["clss"]', "did you mean 'cls'"),
        ("divisions = [{ known = 0.5 }]", "a number of classes or a list of names"),
        ('divisions = [{ unknown = "ring" }]', "a list of texts"),
        ('show = "table"', "a table"),
        ('[show]\nkind = "tabel"', "did you mean 'table'"),
        ('[show]\nmetrics = ["osrc"]', "did you mean 'oscr'"),
        ('[show]\npublished = "pacs"', "did you mean 'pacs-resnet18'"),
        ('[show]\nscore = "enrgy"', "did you mean 'energy'"),
    ],
)
def test_a_wrong_plan_is_a_sentence(tree: Path, change: str, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        plan_of(tree, change)


@pytest.mark.parametrize(
    ("methods", "sentence"),
    [
        ('[{ methd = "erm" }]', "did you mean 'method'"),
        ('[{ label = "ERM" }]', "has no method"),
        ('[{ method = "erm", recipe = { iteration = 3 } }]', "did you mean 'iterations'"),
        (
            '[{ method = "erm", recipe = { iterations = "many" } }]',
            "iterations of .* is 'many': a whole number was expected",
        ),
        ('[{ method = "erm", recipe = { iterations = true } }]', "a whole number was expected"),
        ('[{ method = "medic", vary = { alpha = 0.1 } }]', "a table of lists"),
        ('[{ method = "erm", scores = ["clss"] }]', "did you mean 'cls'"),
        ('[{ method = "medik" }]', "did you mean 'medic'"),
        ('["erm"]', "a list of tables"),
        ('"erm"', "a list of tables"),
        ("[]", "does not say methods"),
    ],
)
def test_wrong_methods_are_a_sentence(tree: Path, methods: str, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        plan_of(tree, methods=methods)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ('methods = [{ method = "ermm" }]', "There is no method 'ermm'"),
        ('targets = ["wod"]', "There is no domain 'wod'"),
        ('unknown = ["rings"]', "There is no class 'rings'"),
    ],
)
def test_names_are_checked_before_anything_runs(tree: Path, more: str, sentence: str) -> None:
    key = more.split(" = ")[0]
    text = "\n".join(line for line in signs(tree).splitlines() if not line.strip().startswith(key)) + "\n" + more
    with pytest.raises(OpenDGError, match=sentence):
        place(parse_plan("signs", text).cells())


def test_the_command_line_overrides_the_plan(tree: Path) -> None:
    plan = plan_of(tree, methods='[{ method = "erm", recipe = { iterations = 9 } }, { method = "medic", label = "M" }]')
    said = plan.override(seeds=[4, 5], methods=["M"], targets=("neon",), iterations=7, weights=None)
    assert [(c.method, c.target, c.seed, c.recipe["iterations"]) for c in said.cells()] == [
        ("medic", "neon", 4, 7), ("medic", "neon", 5, 7),
    ]  # fmt: skip
    assert plan.override(iterations=7).cells()[0].recipe["iterations"] == 7
    with pytest.raises(OpenDGError, match="There is no method 'mldg' in signs"):
        plan.override(methods=["mldg"])


def test_a_plan_can_take_the_authors_recipe() -> None:
    text = 'data = "pacs"\ntargets = ["photo"]\nrecipe = { base = "authors" }\nmethods = [{ method = "medic" }]'
    ((_, job),) = place(parse_plan("theirs", text).cells()).values()
    assert job.settings["order"] == 2


def test_a_config_of_tune_is_laid_over_its_method(tree: Path, tmp_path: Path) -> None:
    """Recipe and settings of the search; what makes a row of the table stays, and so do other methods."""
    file = tmp_path / "best.toml"
    write_config(file, Config("medic", {"lr": 0.25}, {"alpha": 0.5, "ova": False}), ["Found."])
    plan = plan_of(tree, methods='[{ method = "erm" }, { method = "medic", settings = { ova = true } }]')
    erm, medic = plan.override(configs=[read_config(file)], iterations=3).methods
    assert medic.settings == {"alpha": 0.5, "ova": True}
    assert medic.recipe == {"lr": 0.25, "iterations": 3}
    assert (erm.settings, erm.recipe) == ({}, {"iterations": 3})
    assert (medic.notes, erm.notes) == (("Found.",), ())
    cells = plan.override(configs=[read_config(file)]).cells()
    assert {(cell.method, cell.asked()["notes"]) for cell in cells} == {("medic", ("Found.",)), ("erm", ())}
    assert [Cell.from_json(json.loads(json.dumps(cell.to_json()))) for cell in cells] == cells


@pytest.mark.parametrize(
    ("tuned", "sentence"),
    [(["mldg"], "for mldg, which signs does not have"), (["erm", "erm"], "Two of the --config files are for erm")],
)
def test_a_config_that_would_be_without_effect_is_refused(tree: Path, tuned: list[str], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        plan_of(tree).override(configs=[Config(method) for method in tuned])


def test_all_that_a_plan_can_hold_is_checked() -> None:
    for kind, kinds in ((Plan, check.PLAN), (Entry, check.ENTRY), (Show, check.SHOW)):
        assert {f.name for f in fields(kind)} - {"name", "notes"} == set(kinds), "notes are a config's"
    assert set(check.PRODUCTS) == {*PAGES, *FIGURES}


def test_every_shipped_plan_can_be_placed_without_data() -> None:
    for name in list_plans():
        plan = load_plan(name)
        placed = place(plan.override(seeds=[0], targets=None).cells()[:: len(plan.divisions) or 1])
        assert all(isinstance(job, Job) for _, job in placed.values())
    rotating = load_plan("rotating-unknown").override(methods=["erm"], targets=("photo",))
    assert len({job.protocol.id for _, job in place(rotating.cells()).values()}) == 7


def test_entries_of_a_shipped_plan_have_names_of_their_own() -> None:
    for name in list_plans():
        names = [entry.label or entry.method for entry in load_plan(name).methods]
        assert len(set(names)) == len(names), name


def test_a_shipped_plan_by_a_wrong_name_and_a_file_that_is_not_there() -> None:
    with pytest.raises(OpenDGError, match="did you mean 'digits-dg'"):
        load_plan("digits")
    with pytest.raises(OpenDGError, match="There is no plan file 'mine.toml'"):
        load_plan("mine.toml")


def test_a_plan_in_another_encoding_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes('title = "Zürich"'.encode("latin-1"))
    with pytest.raises(OpenDGError, match="give a TOML file in UTF-8"):
        load_plan(str(tmp_path / "mine.toml"))
