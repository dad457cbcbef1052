"""The paper's tables as data: complete, and agreeing with themselves and with the paper's source."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from opendg.bench.plan import list_plans, load_plan
from opendg.bench.published import TABLES, Published, published
from opendg.data.entries import DATASETS
from opendg.errors import OpenDGError

SHAPES = {  # rows, targets, metrics
    "pacs-resnet18": (12, 4, 3), "pacs-resnet50": (12, 4, 3), "digits-dg": (8, 4, 3), "ablation": (16, 4, 2),
    "closed-pacs": (11, 4, 1), "closed-office-home": (11, 4, 1),
}  # fmt: skip
MISPRINTED = {("pacs-resnet50", "CrossMatch", "acc")}  # 88.37 is printed, the four accuracies have the mean 88.3575


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest) -> Published:
    return published(request.param)


def test_no_row_and_no_number_is_missing(table: Published) -> None:
    rows, targets, metrics = SHAPES[table.name]
    assert (len(table.rows), len(table.targets), len(table.metrics)) == (rows, targets, metrics)
    for row in table.rows:
        assert [len(values) for values in row.values] == [metrics] * targets
        assert len(row.average) == metrics
        missing = [metric for metric in table.metrics if table.value(row, None, metric) is None]
        assert missing == (["oscr"] if row.name == "OpenMax" else [])


def test_printed_averages_are_the_means(table: Published) -> None:
    """To half a unit of the last printed digit."""
    for row in table.rows:
        for number, metric in enumerate(table.metrics):
            mean = sum(values[number] for values in row.values) / len(row.values)
            far = abs(mean - row.average[number]) > 0.5001 * 10**-table.decimals
            assert far == ((table.name, row.name, metric) in MISPRINTED), (row.name, metric, mean)


def test_numbers_are_possible(table: Published) -> None:
    """Percent, and OSCR is never above accuracy."""
    for row in table.rows:
        for values in (*row.values, row.average):
            assert all(math.isnan(value) or 40 < value < 100 for value in values)
            if {"acc", "oscr"} <= set(table.metrics) and not math.isnan(values[-1]):
                assert values[table.metrics.index("oscr")] <= values[table.metrics.index("acc")]


def test_targets_are_domains_and_divisions_fit_the_dataset(table: Published) -> None:
    entry = DATASETS[table.dataset]
    assert sorted(table.targets) == sorted(entry.domains)
    assert table.known + table.unknown == len(entry.classes)


def test_some_numbers_by_hand() -> None:
    pacs, ablation = published("pacs-resnet18"), published("ablation")
    medic = {row.name: row for row in pacs.rows}["MEDIC-bcls"]
    assert pacs.value(medic, "sketch", "oscr") == 74.52
    assert pacs.value(medic, None, "h@oracle10") == 75.98
    assert pacs.value(medic, None, "h@source95") is None
    shared = {row.name: row for row in ablation.rows}["MEDIC-share"]
    assert ablation.value(shared, "photo", "h@oracle10") == 95.6
    assert ablation.value(shared, None, "oscr") == 84.6
    assert shared.matches == ("domains", "classes")
    assert published("closed-office-home").value(published("closed-office-home").rows[-1], "Art", "acc") == 68.1


def test_every_number_of_the_paper_is_there(shared: Path, table: Published) -> None:
    """The numbers of each table of the TeX source, in any order, are those of the data."""
    tex = (shared / "paper" / "medic.tex").read_text()
    label = tex.index(rf"\label{{{table.label}}}")
    body = tex[tex.rindex(r"\begin{tabular}", 0, label) : label]
    printed = sorted(float(number) for number in re.findall(r"(?<![\d.])\d\d\.\d+(?!\d)", body))
    kept = sorted(x for row in table.rows for values in (*row.values, row.average) for x in values if x == x)
    assert kept == printed


@pytest.mark.parametrize("name", TABLES)
def test_a_shipped_plan_makes_each_table(name: str) -> None:
    """With the paper's dataset, division and architecture, and every method of the paper."""
    assert name in list_plans()
    plan, table = load_plan(name), published(name)
    assert plan.show.published == name
    assert plan.show.metrics == table.metrics
    assert plan.data == (table.dataset,)
    assert plan.known == table.known
    assert str(plan.backbone).split(".")[0] == table.backbone
    assert {row.method for row in table.rows} <= {entry.method for entry in plan.methods}


def test_an_unknown_table_is_refused_with_its_neighbours() -> None:
    with pytest.raises(OpenDGError, match="did you mean 'pacs-resnet18'"):
        published("pacs-resnet-18")
