"""Rotating the unknown class: means over class and target, and paired intervals."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from opendg.bench.compare import by_pair, compare, comparisons, interval, ratio_table, rotating_table
from opendg.bench.plan import Entry
from opendg.bench.records import Result
from opendg.errors import OpenDGError
from tests.bench.results import CLASSES, result

TARGETS = ("photo", "art_painting", "cartoon", "sketch")
ENTRIES = (Entry("medic", "MEDIC"), Entry("erm", "ERM"))


def rotated(lead: float, seeds: int = 2) -> list[Result]:
    """ERM at 0.5 with noise that both methods share, MEDIC ahead of it by about `lead`."""
    random = np.random.default_rng(0)
    found = []
    for unknown in CLASSES:
        for target in TARGETS:
            hard, gain = random.normal(0, 0.1), random.normal(lead, 0.02)
            for seed in range(seeds):
                wobble = random.normal(0, 0.005)
                found.append(result("erm", target, seed, 0.5 + hard + wobble, unknown=(unknown,)))
                found.append(result("medic", target, seed, 0.5 + hard + gain, unknown=(unknown,)))
    return found


def test_a_column_is_a_class_and_the_average_is_over_all_pairs() -> None:
    found = rotated(0.05)
    table = rotating_table("r", found, "R", ENTRIES, ("oscr",), ("cls",))
    assert table.columns == tuple(CLASSES)
    erm = table.rows[1]
    numbers = {(r.record["unknown"][0], r.target, r.seed): 100 * r.record["scores"]["cls"]["oscr"]
               for r in found if r.record["method"] == "erm"}  # fmt: skip
    dog = [np.mean([numbers["dog", t, s] for s in (0, 1)]) for t in TARGETS]
    value = table.value(erm, "dog", "oscr")
    assert (value.mean, value.spread, value.count) == (
        pytest.approx(np.mean(dog)),
        pytest.approx(np.std(dog, ddof=1)),
        4,
    )
    assert table.value(erm, None, "oscr").count == 28
    assert table.value(erm, None, "oscr").mean == pytest.approx(np.mean(list(numbers.values())))
    assert "class x target pairs" in " ".join(table.header)
    assert table.facts["protocol"].count("pacs:shared:6+1") == 7


def test_the_interval_is_that_of_paired_differences() -> None:
    """Far narrower than without pairing, and the same every time."""
    table = rotating_table("r", rotated(0.05), "R", ENTRIES, ("oscr",), ("cls",))
    one = compare(*table.rows, "oscr")
    first, second = (by_pair(row, "oscr") for row in table.rows)
    differences = {pair: first[pair] - second[pair] for pair in first}
    assert one.difference == pytest.approx(np.mean(list(differences.values())))
    assert (one.low, one.high) == pytest.approx(interval(differences), abs=1e-6)
    assert one.pairs == 28
    assert one.ahead == sum(value > 0 for value in differences.values())
    unpaired = stats.ttest_ind(list(first.values()), list(second.values())).confidence_interval()
    assert one.high - one.low < 0.5 * (unpaired.high - unpaired.low)
    assert one == compare(*table.rows, "oscr")


@pytest.mark.parametrize(("by_class", "by_target"), [(0.0, 1.0), (1.0, 1.0)])
def test_the_interval_holds_the_truth_where_classes_or_targets_have_effects(by_class: float, by_target: float) -> None:
    """Simulated with a true difference of 0. A t interval, for which the pairs are independent, holds it too seldom."""
    random, ours, independent, repeats = np.random.default_rng(0), 0, 0, 100
    for _ in range(repeats):
        found = 0.5 * random.normal(size=(7, 4))
        found += by_class * random.normal(size=(7, 1)) + by_target * random.normal(size=(1, 4))
        low, high = interval({(CLASSES[i], TARGETS[j]): float(found[i, j]) for i, j in np.ndindex(7, 4)})
        ours += low < 0 < high
        low, high = stats.t.interval(0.95, 27, found.mean(), stats.sem(found.ravel()))
        independent += low < 0 < high
    assert ours / repeats > 0.8
    assert ours / repeats > independent / repeats + 0.15


def test_where_only_targets_differ_the_interval_is_that_of_the_targets() -> None:
    """Seven classes that repeat the same four numbers are four numbers: all means of four draws of them."""
    lead = dict(zip(TARGETS, (0.0, 1.0, 2.0, 5.0), strict=True))
    means = [np.mean(draw) for draw in product(lead.values(), repeat=4)]
    found = interval({(name, target): value for name in CLASSES for target, value in lead.items()})
    assert found == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.26), "a step of the 256 means"


def test_a_pair_that_is_missing_counts_nothing_in_the_interval() -> None:
    there = [pair for pair in product(CLASSES, TARGETS) if pair != ("dog", "photo")]
    assert interval(dict.fromkeys(there, 2.0)) == pytest.approx((2.0, 2.0))


def test_the_one_that_is_ahead_is_named_first() -> None:
    for lead, names in ((0.05, ("MEDIC", "ERM")), (-0.05, ("ERM", "MEDIC"))):
        table = rotating_table("r", rotated(lead), "R", ENTRIES, ("oscr",), ("cls",))
        (one,) = comparisons(table.rows, "oscr")
        assert tuple(name.split("-")[0] for name in (one.first, one.second)) == names
        assert one.difference > 0


def test_more_seeds_of_the_same_pairs_do_not_narrow_the_interval() -> None:
    few = rotating_table("r", rotated(0.0, seeds=1), "R", ENTRIES, ("oscr",), ("cls",))
    copies = [Result(r.record | {"seed": seed}, r.path) for r in rotated(0.0, seeds=1) for seed in range(5)]
    many = rotating_table("r", copies, "R", ENTRIES, ("oscr",), ("cls",))
    narrow, wide = compare(*many.rows, "oscr"), compare(*few.rows, "oscr")
    assert (narrow.low, narrow.high) == (pytest.approx(wide.low), pytest.approx(wide.high))


def test_a_lead_of_nothing_holds_zero_in_its_interval() -> None:
    table = rotating_table("r", rotated(0.0), "R", ENTRIES, ("oscr",), ("cls",))
    one = compare(*table.rows, "oscr")
    assert one.low < 0 < one.high


def test_methods_are_compared_by_the_same_score_and_by_their_own() -> None:
    found = [
        result(
            method,
            target,
            unknown=(unknown,),
            scores={"bcls": 0.6, "energy": 0.4 + 0.1 * (method == "medic")},
            chosen=c,
        )
        for method, c in (("erm", {"ova": True}), ("medic", {}))
        for target in TARGETS
        for unknown in ("dog", "horse")
    ]
    rows = rotating_table("r", found, "R", ENTRIES, ("oscr",), ("cls", "bcls", "energy")).rows
    made = {(c.first, c.second) for c in comparisons(rows, "oscr")}
    assert made == {("MEDIC-cls", "ERM+ova-cls"), ("MEDIC-bcls", "ERM+ova-bcls"),
                    ("MEDIC-energy", "ERM+ova-energy"),
                    ("MEDIC-bcls", "ERM+ova-cls")}  # fmt: skip


def test_one_pair_is_not_enough() -> None:
    table = rotating_table("r", [result("erm"), result("medic")], "R", ENTRIES, ("oscr",), ("cls",))
    with pytest.raises(OpenDGError, match="share 1 class x target pair"):
        compare(*table.rows, "oscr")
    assert comparisons(table.rows, "oscr") == [], "a table that is half filled has none yet"


def test_two_pairs_are_enough_and_the_largest_lead_comes_first() -> None:
    leads = {"erm": 0.0, "medic": 0.1, "mldg": 0.3}
    found = [result(name, target, value=0.5 + lead) for name, lead in leads.items() for target in TARGETS[:2]]
    table = rotating_table("r", found, "R", (), ("oscr",), ("cls",))
    assert [one.difference for one in comparisons(table.rows, "oscr")] == pytest.approx([30, 20, 10])


def test_a_table_by_division_has_a_column_for_each() -> None:
    found = [
        result("erm", target, seed, 0.3 + 0.1 * n + 0.01 * seed, unknown=tuple(CLASSES[n:]))
        for n in (3, 4, 6) for target in TARGETS for seed in (0, 1)
    ]  # fmt: skip
    table = ratio_table("o", found, "O", (), ("oscr",), ("own",))
    assert table.columns == ("3:4", "4:3", "6:1")
    value = table.value(table.rows[0], "4:3", "oscr")
    assert (value.mean, value.count) == (pytest.approx(70.5), 2)


def test_a_seed_that_lacks_targets_does_not_pull_the_mean_of_a_division() -> None:
    found = [result("erm", target, 0, value) for target, value in zip(TARGETS, (0.9, 0.7, 0.6, 0.2), strict=True)]
    table = ratio_table("o", [*found, result("erm", "sketch", 1, 0.4)], "O", (), ("oscr",), ("own",))
    value = table.value(table.rows[0], "6:1", "oscr")
    assert (value.mean, value.spread, value.count) == (pytest.approx((90 + 70 + 60 + 30) / 4), None, 1)


def test_a_row_that_lacks_a_place_has_no_mean_over_the_easier_rest() -> None:
    """The places are the table's. The paired comparison is over those that both have, and says how many."""
    hard = dict(zip(TARGETS, (0.9, 0.8, 0.7, 0.2), strict=True))
    found = [
        result(method, target, value=value, unknown=(unknown,))
        for method in ("erm", "medic")
        for unknown in ("dog", "horse")
        for target, value in hard.items()
        if (method, unknown, target) != ("medic", "horse", "sketch")
    ]
    table = rotating_table("r", found, "R", ENTRIES, ("oscr",), ("cls",))
    medic, erm = table.rows
    assert table.value(erm, None, "oscr").mean == pytest.approx(65.0)
    assert table.value(medic, "dog", "oscr").mean == pytest.approx(65.0)
    for column in ("horse", None):
        value = table.value(medic, column, "oscr")
        assert (value.mean, value.spread, value.count) == (None, None, 0)
    paired = compare(medic, erm, "oscr")
    assert (paired.pairs, paired.ahead, paired.difference, paired.low, paired.high) == (7, 0, 0.0, 0.0, 0.0)


def test_a_division_that_lacks_a_target_has_no_mean_in_the_ratio_table() -> None:
    found = [result("erm", target, 0, 0.5, unknown=tuple(CLASSES[n:])) for n in (4, 6) for target in TARGETS]
    found += [result("medic", target, 0, 0.6, unknown=tuple(CLASSES[n:])) for n in (4, 6) for target in TARGETS[:3]]
    table = ratio_table("o", found, "O", ENTRIES, ("oscr",), ("cls",))
    medic, erm = table.rows
    for column in ("4:3", "6:1", None):
        assert table.value(medic, column, "oscr").mean is None
        assert table.value(erm, column, "oscr").mean == pytest.approx(50.0)


def test_two_divisions_of_one_ratio_are_refused() -> None:
    found = [result("erm", unknown=("dog",)), result("erm", unknown=("horse",))]
    with pytest.raises(OpenDGError, match="6:1, and there are 2 protocols .*pacs:shared:6\\+1:dog"):
        ratio_table("o", found, "O", (), ("oscr",))
    assert len(rotating_table("r", found, "R", ENTRIES, ("oscr",), ("cls",)).columns) == 2


def test_a_division_without_unknown_classes_is_refused() -> None:
    with pytest.raises(OpenDGError, match="needs unknown classes"):
        rotating_table("r", [result("erm"), result("erm", unknown=())], "R", ENTRIES, ("oscr",))


def test_two_datasets_are_refused() -> None:
    other = result("erm")
    mixed = [result("erm"), Result(other.record | {"dataset": "vlcs"}, other.path)]
    with pytest.raises(OpenDGError, match="pacs and vlcs"):
        rotating_table("r", mixed, "R", ENTRIES, ("oscr",))
