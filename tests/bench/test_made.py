"""Tables say how they were made, and one that its records no longer make is found."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from opendg.bench.made import Made, about_configs, make_into, remake, stale
from opendg.bench.plan import Plan, Show
from opendg.bench.records import load_records
from opendg.bench.reproduce import keep_records, results_of
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.training.config import Config, write_config
from tests.bench.parts import signs
from tests.bench.results import CLASSES, record

RESULTS = Path(__file__).parents[2] / "results"
TARGETS = ("photo", "art_painting", "cartoon", "sketch")


def test_the_committed_tables_are_what_their_records_make() -> None:
    if not RESULTS.is_dir():
        pytest.skip("needs the folder of results of a checkout")
    assert stale(RESULTS) == []
    for folder in (path for path in RESULTS.iterdir() if path.is_dir()):
        assert any(path.name != "README.md" for path in folder.rglob("*.md")), f"{folder.name} has no table"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """results/pacs with records and the tables made of them."""
    out = tmp_path / "results" / "pacs"
    (out / "records").mkdir(parents=True)
    for number, target in enumerate(TARGETS):
        for seed in (0, 1):
            text = json.dumps(record("erm", target, seed, 0.5 + 0.1 * number + 0.01 * seed))
            (out / "records" / f"erm-{target}-{seed}.json").write_text(text)
    words = ["reproduce", "pacs-resnet18", "--records", str(out / "records"), "--out", str(out)]
    said = CliRunner().invoke(app, [*words, "--note", "It's a sample.", "--note", 'Of "pacs".'])
    assert said.exit_code == 0, said.output
    return out


def test_a_note_of_several_lines_is_one_line_of_the_header(folder: Path) -> None:
    words = ["reproduce", "pacs-resnet18", "--records", str(folder / "records"), "--out", str(folder)]
    said = CliRunner().invoke(app, [*words, "--note", "A sample,\n  rebuilt."])
    assert said.exit_code == 0, said.output
    assert "\n- A sample, rebuilt.\n" in (folder / "pacs-resnet18.md").read_text()
    assert "\n% A sample, rebuilt.\n" in (folder / "pacs-resnet18.tex").read_text()
    assert stale(folder) == []


def test_a_table_names_the_command_that_makes_it_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made.read(folder / "pacs-resnet18.md")
    assert made == Made("pacs-resnet18", "records", notes=("It's a sample.", 'Of "pacs".'))
    assert str(folder.parent) not in (folder / "pacs-resnet18.md").read_text(), "no path of one machine"
    before = {path: path.read_bytes() for path in folder.glob("pacs-resnet18.*")}
    assert len(before) == 3
    for path in before:
        path.unlink()
    monkeypatch.chdir(folder)
    assert CliRunner().invoke(app, shlex.split(made.command())[1:]).exit_code == 0
    assert {path: path.read_bytes() for path in before} == before


def change_record(folder: Path) -> None:
    path = folder / "records" / "erm-photo-0.json"
    said = json.loads(path.read_text())
    said["scores"]["cls"]["oscr"] += 0.01
    path.write_text(json.dumps(said))


def add_record(folder: Path) -> None:
    (folder / "records" / "new.json").write_text(json.dumps(record("erm", "photo", 2)))


def copy_page(folder: Path) -> None:
    shutil.copy(folder / "pacs-resnet18.md", folder / "table.md")


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


CHANGES: dict[str, Callable[[Path], None]] = {
    "a record is changed": change_record,
    "a record is added": add_record,
    "a record is gone": remove("records/erm-photo-0.json"),
    "a number of the page is edited": edit("pacs-resnet18.md", "50.50", "60.50"),
    "a line of the header is edited": edit("pacs-resnet18.md", "the last iterate", "the best iterate"),
    "LaTeX is edited": edit("pacs-resnet18.tex", "50.50", "60.50"),
    "numbers are edited": edit("pacs-resnet18.csv", "50.5000", "60.5000"),
    "numbers are gone": remove("pacs-resnet18.csv"),
    "the page does not say how it was made": edit("pacs-resnet18.md", "- Made with", "- Somehow with"),
    "the command cannot be read": edit("pacs-resnet18.md", "--records records", "--records 'records"),
    "the command names other records": edit("pacs-resnet18.md", "--records records", "--records elsewhere"),
    "a page lies there under another name": copy_page,
    "there is no page": remove("pacs-resnet18.md"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_table_that_its_records_do_not_make_is_found(folder: Path, change: Callable[[Path], None]) -> None:
    assert stale(folder.parent) == []
    change(folder)
    found = stale(folder.parent)
    assert found
    assert all(str(folder) in sentence and sentence.endswith(".") for sentence in found)


def test_bench_tables_finds_and_mends(folder: Path) -> None:
    words = ["bench", "tables", str(folder.parent)]
    good = CliRunner().invoke(app, [*words, "--check"])
    assert (good.exit_code, "are what their records make" in good.output) == (0, True)
    change_record(folder)
    bad = CliRunner().invoke(app, [*words, "--check"])
    assert bad.exit_code == 1
    assert len(bad.output.splitlines()) == 3, "page, LaTeX and numbers"
    assert CliRunner().invoke(app, words).exit_code == 0
    assert stale(folder.parent) == []
    with pytest.raises(OpenDGError, match="There is no folder"):
        stale(folder / "nowhere")


def test_a_plan_of_the_users_lies_beside_its_table(folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text('data = "pacs"\ntitle = "Mine"\nscores = ["cls"]\nmethods = [{ method = "erm", label = "Plain" }]')
    records, out = folder / "records", tmp_path / "results" / "mine"
    words = ["reproduce", str(plan), "--records", str(records), "--out", str(out), "--take", "selected"]
    assert CliRunner().invoke(app, words).exit_code == 0
    other = ["reproduce", "pacs-resnet18", "--plan", str(plan), "--records", str(records), "--out", str(out)]
    assert CliRunner().invoke(app, other).exit_code == 0
    plan.unlink()
    assert Made.read(out / "mine.md") == Made("mine.toml", "../pacs/records", take="selected")
    assert "| Plain-cls" in (out / "mine.md").read_text()
    assert Made.read(out / "pacs-resnet18.md").plan == "mine.toml"
    assert stale(out) == []


def test_two_plans_of_one_name_do_not_lie_beside_a_table(folder: Path, tmp_path: Path) -> None:
    plans = []
    for name, label in (("a", "Plain"), ("b", "Other")):
        plans.append(tmp_path / name / "mine.toml")
        plans[-1].parent.mkdir()
        plans[-1].write_text(f'data = "pacs"\nscores = ["cls"]\nmethods = [{{ method = "erm", label = "{label}" }}]')
    words = ["reproduce", str(plans[0]), "--plan", str(plans[1]), "--records", str(folder / "records")]
    said = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert "Two plans are called 'mine.toml'" in str(said.exception)
    assert not (tmp_path / "out").exists()


def test_a_table_of_tuned_settings_says_how_they_were_found(tmp_path: Path) -> None:
    """One setting for all targets has seen each of them as a source; that is said once, and read back."""
    common = "No search opened its target; but each was a source of the others."
    files = [tmp_path / "medic.toml", tmp_path / "erm.toml", tmp_path / "mine.toml"]
    write_config(files[0], Config("medic", {"lr": 0.25}), ["Trial 3 of 8.", common])
    write_config(files[1], Config("erm", {"lr": 0.5}), ["Trial 0 of 8.", common])
    files[2].write_text('method = "mldg"')
    notes = about_configs(files)
    assert notes == [f"Settings of medic: Trial 3 of 8. {common}", "Settings of erm: Trial 0 of 8."]
    (tmp_path / "page.md").write_text(f"- {Made('pacs-resnet18', 'records', notes=tuple(notes)).sentence}\n")
    assert Made.read(tmp_path / "page.md").notes == tuple(notes)


def test_each_table_of_a_plan_is_looked_at_and_named_once(tmp_path: Path) -> None:
    plan, records = tmp_path / "parts.toml", tmp_path / "out" / "records"
    parts = '{ unknown = ["dog"] }, { unknown = ["horse"] }'
    plan.write_text(f'data = "pacs"\ndivisions = [{parts}]\nmethods = [{{ method = "erm" }}]')
    records.mkdir(parents=True)
    for name in ("dog", "horse"):
        (records / f"{name}.json").write_text(json.dumps(record("erm", unknown=(name,))))
    make_into(tmp_path / "out", str(plan), records, load_records(records))
    assert len(list((tmp_path / "out").glob("*.md"))) == 2
    assert stale(tmp_path) == []
    edit("parts-pacs-shared-6+1-dog.csv", "50.0000", "60.0000")(tmp_path / "out")
    assert len(stale(tmp_path)) == 1
    remake(tmp_path / "out" / "parts-pacs-shared-6+1-horse.md")
    assert stale(tmp_path) == []


def test_comparisons_are_looked_at_too(tmp_path: Path) -> None:
    for unknown in CLASSES[:2]:
        for target in TARGETS:
            for method in ("erm", "medic"):
                value = 0.4 + len(target) / 100 + 0.05 * (method == "medic")
                text = json.dumps(record(method, target, value=value, unknown=(unknown,)))
                (tmp_path / f"{method}-{target}-{unknown}.json").write_text(text)
    words = ["reproduce", "rotating-unknown", "--records", str(tmp_path), "--out", str(tmp_path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert stale(tmp_path) == []
    path = tmp_path / "rotating-unknown-comparisons.json"
    path.write_text(path.read_text().replace('"ahead": 8', '"ahead": 7'))
    assert len(stale(tmp_path)) == 1


def test_figures_and_what_is_said_of_them_are_those_of_their_records(
    finished: tuple[Plan, Path], tree: Path, tmp_path: Path
) -> None:
    plan, runs = finished
    figures = replace(plan, show=Show(kind="oscr"))
    results, records = keep_records(figures, results_of(plan, runs, None), tmp_path)
    assert {result.path.parent.parent for result in results} == {records}
    (tmp_path / "mine.toml").write_text(signs(tree, '[show]\nkind = "oscr"'))
    make_into(tmp_path, str(tmp_path / "mine.toml"), records, results)
    assert stale(tmp_path) == []
    page = (tmp_path / "mine.md").read_text()
    assert "(oscr-ink.png)" in page
    (tmp_path / "mine.md").write_text(page.replace("Seeds: 0, 1", "Seeds: 0, 1, 2"))
    assert len(stale(tmp_path)) == 1
    remake(tmp_path / "mine.md")
    assert (tmp_path / "mine.md").read_text() == page
    (tmp_path / "oscr-ink.png").unlink()
    assert len(stale(tmp_path)) == 1
    remake(tmp_path / "mine.md")
    assert stale(tmp_path) == []


lines = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1).map(str.split).map(" ".join)
ways = st.builds(
    Made,
    name=st.sampled_from(["pacs-resnet18", "mine.toml", "a b.toml"]),
    records=st.sampled_from([".", "../a b"]),
    plan=st.none() | st.just("tuned.toml"),
    take=st.none() | st.just("selected"),
    score=st.none() | st.just("cls"),
    notes=st.lists(lines, max_size=3).map(tuple),
    quick=st.booleans(),
)


@given(ways)
def test_what_is_written_into_a_header_is_read_back(tmp_path_factory: pytest.TempPathFactory, made: Made) -> None:
    page = tmp_path_factory.getbasetemp() / "header.md"
    page.write_text(f"# A table\n\n- Percent.\n- {made.sentence}\n\n| a | b |\n")
    assert Made.read(page) == made
