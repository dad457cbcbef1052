"""The numbers that README files show by hand are those of the tables."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("results/*/README.md"))]
SHOWN = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)")


@cache
def measured(digits: int) -> set[tuple[str, str]]:
    """Every mean and spread of the committed tables, rounded."""
    rows = [row for path in (ROOT / "results").rglob("*.csv") for row in csv.DictReader(path.read_text().splitlines())]
    filled = [row for row in rows if row["mean"] and row["spread"]]
    return {(f"{float(row['mean']):.{digits}f}", f"{float(row['spread']):.{digits}f}") for row in filled}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_mean_with_its_spread_is_one_of_a_table(page: Path) -> None:
    if not (ROOT / "results").is_dir():
        pytest.skip("needs the folder of results of a checkout")
    for mean, spread in SHOWN.findall(page.read_text()):
        assert (mean, spread) in measured(len(mean.split(".")[1])), f"{mean} ± {spread} is in no table"
