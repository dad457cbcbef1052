"""The page on metrics: its examples run, its table of rules is the one in the code."""

from __future__ import annotations

import doctest
from pathlib import Path

from opendg.evaluation.thresholds import RULES

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_examples_run() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted > 15
    assert found.failed == 0


def test_rules_are_told_with_what_they_saw() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `H@")]
    told = {row.split("|")[1].strip(" `"): row.split("|")[3].strip() for row in rows}
    assert told == {rule.name: rule.saw for rule in RULES}
