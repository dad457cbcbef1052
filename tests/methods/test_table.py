"""The page of methods is the registry's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opendg.methods.registry import METHODS
from opendg.methods.table import COLUMNS, MORE, more, page, row, year

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == page(), "run: python -m opendg.methods.table > docs/methods.md"


def test_the_module_prints_it() -> None:
    said = subprocess.run([sys.executable, "-m", "opendg.methods.table"], capture_output=True, text=True, check=True)
    assert said.stdout == page()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_cell_says_something(name: str) -> None:
    cells = dict(zip(COLUMNS, row(METHODS[name]), strict=True)) | dict(zip(MORE, more(METHODS[name]), strict=True))
    assert all(text for column, text in cells.items() if column != "authors' recipe")
    assert not any("\n" in text for text in cells.values())
    assert page().count(f"\n| `{name}` | [") == 1
    assert page().count(f"\n| `{name}` |") == 2


@pytest.mark.parametrize(("name", "expected"), [("erm", "1998"), ("irm", "2019"), ("medic", "2023"), ("dann", "2016")])
def test_year(name: str, expected: str) -> None:
    assert year(METHODS[name]) == expected
