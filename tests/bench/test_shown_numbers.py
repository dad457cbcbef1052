"""The numbers that README files show by hand are those of the tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("results/*/README.md"))]
SHOWN = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")
SCORES = ("cls", "bcls", "energy")


def rows_of(page: Path) -> list[dict[str, str]]:
    """The committed tables that a page may quote: those below it and below the folders that it links to."""
    links = {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())}
    places = {page.parent, *(link if link.is_dir() else link.parent for link in links)} - {ROOT, ROOT / "results"}
    tables = sorted({path for place in places for path in place.rglob("*.csv")})
    return [row for path in tables for row in csv.DictReader(path.read_text().splitlines())]


def rounded(number: str, digits: int) -> str:
    return str(Decimal(number).quantize(Decimal(10) ** -digits, ROUND_HALF_UP))


def texts(row: dict[str, str], digits: int) -> set[str]:
    """What a page may write for a line of a table: mean, mean ± spread, what was published."""
    short = {key: rounded(row[key], digits) for key in ("mean", "spread", "published") if row[key]}
    together = {f"{short['mean']} ± {short['spread']}"} if "spread" in short else set()
    return together | {short[key] for key in ("mean", "published") if key in short}


def cells(page: Path) -> Iterator[tuple[str, str]]:
    """(name of its column, text) of every cell of the tables that stand for themselves, not in a list."""
    head: list[str] = []
    for line in page.read_text().splitlines():
        parts = [part.strip(" *") for part in line.strip("|").split("|")] if line.startswith("|") else []
        head = head if parts and head else parts
        yield from zip(head, parts, strict=True)


@pytest.fixture(autouse=True)
def checkout() -> None:
    if not (ROOT / "results").is_dir():
        pytest.skip("needs the folder of results of a checkout")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_mean_with_its_spread_is_one_of_a_table(page: Path) -> None:
    for mean, spread in SHOWN.findall(page.read_text()):
        digits = len(mean.split(".")[1])
        said = (texts(row, digits) for row in rows_of(page))
        assert any(f"{mean} ± {spread}" in one for one in said), f"{mean} ± {spread} is in no table"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_cell_is_of_the_column_that_it_stands_in(page: Path) -> None:
    """A column is a target, the average, or a score, which is an average too. What stands in lists is other runs."""
    rows = [row for row in rows_of(page) if row["metric"] == "oscr"]
    of_one_seed = not any(row["spread"] for row in rows)  # else a cell without a spread may be of one of several
    for column, text in cells(page):
        place = {"score": column, "column": "average"} if column in SCORES else {"column": column}
        here = [row for row in rows if place.items() <= row.items()]
        if here and (SHOWN.fullmatch(text) or (of_one_seed and re.fullmatch(r"\d+\.\d", text))):
            assert any(text in texts(row, 1) for row in here), f"{text} is in no table under {column}"
