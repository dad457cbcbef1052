from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.conftest import Command
from tests.e2e.test_bad_input import refused


def test_the_demo_shows_both_methods_and_where_to_go_next(opendg: Command, tmp_path: Path) -> None:
    said = opendg("demo", "--iterations", 2, "--out", tmp_path / "demo")
    assert said.code == 0, said.err
    for word in ("medic", "erm", "cls", "bcls", "Acc", "H-score", "OSCR", "Digits 0-5 are known"):
        assert word in said.out
    last, next_ = said.out.splitlines()[-2:]
    assert str(tmp_path / "demo") in last
    assert next_.startswith(f"Next: opendg evaluate {tmp_path / 'demo' / 'medic'}")
    with Image.open(tmp_path / "demo" / "oscr.png") as figure:
        assert figure.format == "PNG"
    again = json.loads(opendg("demo", "--iterations", 1, "--out", tmp_path / "demo", "--json").out)
    assert again["runs"] == str(tmp_path / "demo-2")
    assert {method: list(record["scores"]) for method, record in again["records"].items()} == {
        "medic": ["cls", "bcls"],
        "erm": ["cls", "bcls"],
    }


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--target", "printed"], ["no domain 'printed' in glyphs", "did you mean 'print'"]),
        (["--iterations", "0"], ["--iterations 0"]),
    ],
)
def test_a_demo_that_cannot_be(opendg: Command, tmp_path: Path, words: list[str], parts: list[str]) -> None:
    refused(opendg("demo", *words, "--out", tmp_path / "demo"), *parts)
    assert list(tmp_path.iterdir()) == []
