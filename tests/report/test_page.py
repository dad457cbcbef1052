"""The file itself: nothing but itself, nothing of the data in its code, the record's numbers, and the command."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opendg.cli import main
from opendg.errors import OpenDGError
from opendg.report.build import _true_class, write_report
from opendg.report.page import SCRIPTS, STYLES, as_json, assemble
from tests.report.conftest import TRAINED
from tests.report.pages import data_of, record_of, run_of, unpack

NASTY = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>&amp;<!-- $title ${data}"


class Tags(HTMLParser):
    """Tags of a page with their attributes, and the text in its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        if self.tags and self.tags[-1][0] in ("script", "style") and text.strip():
            self.inside.append(text)


def test_the_page_asks_for_nothing(page: Path) -> None:
    tags = Tags(page.read_text()).tags
    for tag, attributes in tags:
        address = attributes.get("src") or attributes.get("href") or ""
        assert address.startswith(("#", "data:")) or not address, (tag, address)
    code = "".join(Path(file).read_text() for file in Path(sys.modules["opendg.report"].__path__[0]).glob("assets/*"))
    assert set(re.findall(r"https?://[^\"'\s]+", code)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(
        r"fetch\(|XMLHttp|@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", code
    )


def test_all_assets_are_used() -> None:
    there = {file.name for file in Path(sys.modules["opendg.report"].__path__[0]).glob("assets/*")}
    assert there == {*SCRIPTS, *STYLES, "page.html"}


def test_data_cannot_become_code() -> None:
    nasty: dict[str, Any] = {NASTY: [NASTY, {"deep": NASTY}], "line": "\u2028\u2029", "lone": "\udc80"}
    text = as_json(nasty)
    assert not set("<>&") & set(text)
    assert text.isascii()
    assert json.loads(text) == nasty
    page = Tags(assemble(NASTY, nasty))
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in page.tags]
    assert json.loads(page.inside[1]) == nasty


def test_the_policy_names_the_style_and_the_script_alone(page: Path) -> None:
    found = Tags(page.read_text())
    (policy,) = [tag[1]["content"] for tag in found.tags if "Content-Security-Policy" in tag[1].values()]
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (found.inside[0], found.inside[2])
    ]
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


@pytest.mark.parametrize("name", TRAINED)
def test_counts_in_the_page_are_those_of_the_record(runs: Path, page: Path, name: str) -> None:
    run, record = run_of(data_of(page), name), record_of(runs / name)
    kind = unpack(run["images"]["kind"], "u1")
    assert (kind > 0).sum() == record["n_known"]
    assert (kind == 2).sum() / (kind > 0).sum() == record["acc"]
    assert set(run["images"]["places"]) == set(record["scores"])
    for score, said in record["scores"].items():
        places = unpack(run["images"]["places"][score], "<u2")
        assert run["scores"][score]["oscr"] == said["oscr"]
        for key in ("h@oracle10", "h@source95", "h@0.5"):
            if said[key] is None:
                assert key not in run["scores"][score]["rules"]
                continue
            rung = run["scores"][score]["rules"][key]["rung"]
            assert ((kind == 2) & (places > rung)).sum() / record["n_known"] == said[key]["acc_k"]
            assert ((kind == 0) & (places <= rung)).sum() / record["n_unknown"] == said[key]["acc_u"]


def test_what_is_shown_of_an_image_is_so(runs: Path, page: Path) -> None:
    data = data_of(page)
    shown = run_of(data, "erm-wood")["images"]
    assert len(shown["plane"]["at"]) == 64
    assert len(unpack(shown["plane"]["xy"], "<u2")) == 128
    for key, name in zip(shown["keys"], shown["classes"], strict=True):
        assert key.split("/")[:2] == ["wood", name]
    assert set(shown["thumbnails"]) <= set(range(len(data["thumbnails"])))
    assert {shown["classes"][at] for at in shown["mistakes"]["cls"]["unknown"]} == {"ring"}
    values = unpack(shown["values"]["cls"], "<f4")
    assert np.all((values > 0) & (values <= 1))


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("photo/cat/1.png", "cat"),
        ("photo/photo/1.png", "photo"),
        ("cat/val/photo/1.png", "photo"),  # as in Digits-DG
        ("cat/train/1.png", "train"),
        ("photo/dog/cat", "unknown"),  # a stranger's
        ("cat", "unknown"),
    ],
)
def test_an_unknown_image_is_of_the_class_whose_folder_it_lies_in(key: str, name: str) -> None:
    entry = {"known": ["dog", "bird"], "unknown": ["photo", "cat", "train"]}
    assert _true_class(entry, -1, key) == name
    assert _true_class(entry, 1, key) == "bird"


def test_a_run_with_two_records_gives_two_rows(runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))
    averaged = record_of(run) | {"weights": "averaged", "selection": "averaged weights (decay 0.9)"}
    (run / "evaluation-averaged.json").write_text(json.dumps(averaged))
    shutil.copy(run / "target-selected.npz", run / "target-averaged.npz")
    facts = write_report([run], tmp_path / "page.html", points=0)
    assert (facts["runs"], facts["with_predictions"]) == (2, 2)
    variants = {entry["variant"] for entry in data_of(tmp_path / "page.html")["runs"]}
    assert variants == {"the last iterate, ova=true", "averaged weights (decay 0.9), ova=true"}


def test_runs_without_predictions_or_images_say_so(runs: Path, signs: Path, tmp_path: Path) -> None:
    bare = Path(shutil.copytree(runs / "erm-wood", tmp_path / "bare"))
    (bare / "target-selected.npz").unlink()
    lost = Path(shutil.copytree(runs / "erm-ink", tmp_path / "lost"))
    config = (lost / "run.json").read_text()
    (lost / "run.json").write_text(config.replace(str(signs), str(tmp_path / "gone")))
    facts = write_report([bare, lost], tmp_path / "page.html", points=0)
    assert (facts["runs"], facts["with_predictions"], facts["thumbnails"]) == (2, 1, 0)
    assert [note.split(":")[0] for note in facts["notes"]] == ["lost", "bare"]
    data = data_of(tmp_path / "page.html")
    assert "images" not in run_of(data, "bare")
    assert set(run_of(data, "lost")["images"]["thumbnails"]) == {-1}


def test_what_many_runs_lack_is_said_once(runs: Path, tmp_path: Path) -> None:
    for name in TRAINED:
        (tmp_path / "deep" / name).mkdir(parents=True)
        shutil.copy(runs / name / "evaluation-selected.json", tmp_path / "deep" / name)
    (note,) = write_report([tmp_path], tmp_path / "page.html")["notes"]
    assert note.startswith("deep/")
    assert " and 3 more: A record without predictions" in note


def test_a_page_is_written_whole_or_not_at_all(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="is a folder: name a file"):
        write_report([runs], tmp_path)
    with pytest.raises(OpenDGError, match="must both be 0 or more"):
        write_report([runs], tmp_path / "page.html", points=-1)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OpenDGError, match="could not be written"):
        write_report([runs / "erm-wood"], tmp_path / "file" / "page.html", points=0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    write_report([runs / "erm-wood"], tmp_path / "new" / "folder" / "page.html", points=0, mistakes=0)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["page.html"]


def test_the_command_says_what_it_wrote(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    words = ["opendg", "report", str(runs), "--out", str(out), "--points", "0", "--title", "Signs & wonders"]
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", words + more)
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
        said = capsys.readouterr()
        if more:
            facts = json.loads(said.out)
            assert facts["bytes"] == out.stat().st_size
            assert len(facts["protocols"]) == 2
        else:
            assert f"{out} (" in said.out.replace("\n", "")
            assert "6 runs, 6 with predictions" in said.out
    assert "<title>Signs &amp; wonders</title>" in out.read_text()


def test_the_command_refuses_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["opendg", "report", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "No record was found" in capsys.readouterr().err
