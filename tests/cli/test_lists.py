"""opendg datasets: which of them can be downloaded is said before it is tried."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from opendg.cli import app
from opendg.data.catalog import DATASETS


def listed(*words: str) -> str:
    done = CliRunner().invoke(app, ["datasets", *words])
    assert done.exit_code == 0
    return done.output


def test_what_can_be_fetched_is_named_below_the_table() -> None:
    (note,) = [line for line in listed().splitlines() if "data fetch" in line]
    names = note.split("downloads: ")[1].rstrip(". ").split(", ")
    assert names == [name for name, entry in DATASETS.items() if entry.hub]
    assert "pacs" in names
    assert "glyphs" not in names
    assert "data fetch" not in listed("glyphs")


def test_machines_learn_it_too() -> None:
    rows = {row["name"]: row for row in json.loads(listed("--json"))}
    assert rows["pacs"]["fetch"] is True
    assert rows["vlcs"]["fetch"] is False
    assert rows["vlcs"]["url"].startswith("https://")
