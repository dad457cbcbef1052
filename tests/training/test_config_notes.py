"""The notes above a config go with the runs that are trained with it: into run.json and into the record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import opendg
from opendg.bench.cells import identity
from opendg.bench.records import load_records
from opendg.bench.tables import make_table
from opendg.cli import app
from opendg.training.config import Config, read_config, write_config
from opendg.training.job import Job, plan
from tests.tiny import flags, quick, write_tree

COMMON = "No search opened its target; but each target domain was a source in the searches of the other targets."


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("data") / "signs", each=6)


def test_notes_are_the_sentences_above_a_config(tmp_path: Path) -> None:
    file = tmp_path / "best.toml"
    write_config(file, Config("erm", {"lr": 0.25}), ["Trial 3 of 8: OSCR 0.61,", "held out in turn: ink.", COMMON])
    with file.open("a") as more:
        more.write("# ova = true\n")
    config = read_config(file)
    assert config.notes == ("Trial 3 of 8: OSCR 0.61, held out in turn: ink.", COMMON)
    _, asked = config.beneath(None, {"lr": None})
    assert asked["notes"] == config.notes


def test_a_config_is_utf8_whatever_the_machine_writes(tmp_path: Path) -> None:
    write_config(tmp_path / "c.toml", Config("erm"), ["Gefunden für Häuser."])
    script = "import sys; from opendg.training.config import read_config; print(ascii(read_config(sys.argv[1]).notes))"
    words = [sys.executable, "-X", "utf8=0", "-c", script, str(tmp_path / "c.toml")]
    environment = os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == ascii(("Gefunden für Häuser.",)) + "\n"


def test_notes_are_no_key_of_a_config(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('method = "erm"\nnotes = ["mine"]')
    with pytest.raises(opendg.OpenDGError, match="no key 'notes' in the config"):
        read_config(tmp_path / "c.toml")


def test_notes_define_no_job(tree: Path) -> None:
    bare, noted = (plan("erm", str(tree), ["wood"], notes=notes)[0] for notes in ((), (COMMON,)))
    assert noted.notes == (COMMON,)
    assert noted.differs(bare) == []
    assert identity(noted) == identity(bare), "the same run, whoever proposed its settings"
    assert Job.from_json(json.loads(json.dumps(noted.to_json()))) == noted
    old = {name: value for name, value in bare.to_json().items() if name != "notes"}
    assert Job.from_json(json.loads(json.dumps(old))) == bare


@pytest.mark.parametrize("several", [[], ["--seeds", "0"]])
def test_a_table_of_runs_that_were_trained_with_a_config_has_its_notes(
    tree: Path, tmp_path: Path, several: list[str]
) -> None:
    file, out = tmp_path / "best.toml", tmp_path / "run"
    write_config(file, Config("erm", {"lr": 0.001}), ["Trial 3 of 8.", COMMON])
    words = ["train", "--config", str(file), "--data", str(tree), *flags(), "--out", str(out), "--evaluate", *several]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    (run,) = tmp_path.rglob("run.json")
    assert json.loads(run.read_text())["notes"] == ["Trial 3 of 8.", COMMON]
    table = make_table("x", load_records(out))
    assert f"Settings of all rows: Trial 3 of 8. {COMMON}" in table.header


def test_a_run_without_a_config_has_no_notes(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick())
    assert opendg.evaluate(run.path, device="cpu")["notes"] == []


@pytest.mark.parametrize("text", ["#\n", "\n# far\n", "# \n#\n"])
def test_a_comment_that_says_nothing_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.toml").write_text(f'{text}method = "erm"\n')
    assert read_config(tmp_path / "c.toml").notes == ()
