"""Paired comparisons of methods, and tables whose columns are divisions of the classes into known and unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from statistics import mean

import numpy as np

from opendg.bench.check import check_shown
from opendg.bench.header import header_of
from opendg.bench.means import Measured, over_seeds
from opendg.bench.plan import Entry
from opendg.bench.records import Result
from opendg.bench.tables import Row, Table, kinds, measured_rows, own_score
from opendg.errors import OpenDGError, counted
from opendg.seeds import generator

DRAWS = 10_000
Pair = tuple[str, str]  # an unknown class (or several) and a target


@dataclass(frozen=True)
class Comparison:
    """How far `first` is ahead of `second`, in points, with a 95 % interval, and in how many of the pairs it is."""

    first: str
    second: str
    metric: str
    difference: float
    low: float
    high: float
    ahead: int
    pairs: int


@dataclass(frozen=True)
class DivisionRow(Row):
    """A column is a division of the classes. Its places are all targets of the table, not those that the row has."""

    targets: tuple[str, ...] = ()

    def places(self, column: str | None, columns: Sequence[str]) -> list[Pair]:
        return list(product(columns if column is None else [column], self.targets))


class RotatingRow(DivisionRow):
    """A column is an unknown class: its numbers are the targets', those of the average all class x target pairs'."""

    def measured(self, column: str | None, metric: str, columns: Sequence[str]) -> Measured:
        pairs, places = by_pair(self, metric), self.places(column, columns)
        if not pairs.keys() >= set(places):
            return Measured(None, [])
        numbers = [pairs[place] for place in places]
        return Measured(mean(numbers), numbers)


class RatioRow(DivisionRow):
    """A column is a division such as 6:1: the mean over all targets of the table, its spread over seeds."""

    def measured(self, column: str | None, metric: str, columns: Sequence[str]) -> Measured:
        values = {((r.tested.ratio, r.target), r.seed): value for r, value in self.values(metric)}
        return over_seeds(values, self.places(column, columns))


def by_pair(row: Row, metric: str) -> dict[Pair, float]:
    """(unknown class, target) -> the mean over seeds."""
    found: dict[Pair, list[float]] = {}
    for result, value in row.values(metric):
        found.setdefault((result.tested.division, result.target), []).append(value)
    return {pair: mean(values) for pair, values in found.items()}


def rotating_table(
    name: str, results: Sequence[Result], title: str, entries: Sequence[Entry], metrics: Sequence[str],
    scores: Sequence[str] = (), notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Each class has been the unknown one: a column for each, and their mean."""
    check_shown("rotating", [result.tested for result in results])
    rows = _as(RotatingRow, measured_rows(results, entries, scores, None))
    spread = "targets (a column) and over class x target pairs (Avg), seeds averaged first"
    header, facts = header_of(results, metrics, kinds(rows, entries), spread, notes)
    columns = tuple(sorted({result.tested.division for result in results}))
    return Table(name, title, (*header, *notes), facts, columns, tuple(metrics), tuple(rows))


def ratio_table(
    name: str, results: Sequence[Result], title: str, entries: Sequence[Entry], metrics: Sequence[str],
    scores: Sequence[str] = (), notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Several divisions of the classes: a column for each known:unknown."""
    check_shown("openness", [result.tested for result in results])
    rows = _as(RatioRow, measured_rows(results, entries, scores, None))
    spread = "seeds that have every target; a column is the mean over targets, Avg that of its row"
    header, facts = header_of(results, metrics, kinds(rows, entries), spread, notes)
    columns = {result.tested.ratio: result.tested.known for result in results}
    return Table(
        name, title, (*header, *notes), facts, tuple(sorted(columns, key=columns.__getitem__)), tuple(metrics),
        tuple(rows),
    )  # fmt: skip


def comparisons(rows: Sequence[Row], metric: str) -> list[Comparison]:
    """Every two methods read with the same score, and every two read each with its own, that share enough pairs."""
    found = []
    for first, second in combinations(rows, 2):
        same = first.score == second.score
        own = all(row.score == own_score(row.method) for row in (first, second))
        shared = by_pair(first, metric).keys() & by_pair(second, metric).keys()
        if first.results[0].row != second.results[0].row and (same or own) and len(shared) > 1:
            one = compare(first, second, metric)
            found.append(one if one.difference >= 0 else compare(second, first, metric))
    return sorted(found, key=lambda one: -abs(one.difference))


def compare(first: Row, second: Row, metric: str) -> Comparison:
    """The mean difference over the class x target pairs that both have, with an interval.

    Seeds are averaged within a pair first: they repeat a pair and are no further evidence about other classes.
    """
    one, other = by_pair(first, metric), by_pair(second, metric)
    differences = {pair: one[pair] - other[pair] for pair in sorted(one.keys() & other.keys())}
    if len(differences) < 2:
        raise OpenDGError(
            f"{first.label} and {second.label} share {counted(len(differences), 'class x target pair')}: two or more "
            "are needed."
        )
    difference, low, high = (round(value, 6) for value in (mean(differences.values()), *interval(differences)))
    ahead = sum(value > 0 for value in differences.values())
    return Comparison(first.label, second.label, metric, difference, low, high, ahead, len(differences))


def interval(differences: Mapping[Pair, float]) -> tuple[float, float]:
    """A 95 % percentile interval of the mean difference by the pigeonhole bootstrap (Owen, 2007).

    Classes and targets are drawn with replacement, each for themselves, and the mean is over the pairs where those
    drawn cross. The pairs are not independent: a target that suits a method does so under every class.
    """
    classes, targets = (sorted(set(names)) for names in zip(*differences, strict=True))
    found = np.array([[differences.get(pair, np.nan) for pair in product([name], targets)] for name in classes])
    chance = generator(0, "comparison")
    rows, columns = (chance.multinomial(size, np.full(size, 1 / size), size=DRAWS) for size in found.shape)
    total, count = (((rows @ part) * columns).sum(axis=1) for part in (np.nan_to_num(found), 1.0 - np.isnan(found)))
    low, high = np.percentile(total[count > 0] / count[count > 0], [2.5, 97.5])
    return float(low), float(high)


def _as(kind: type[DivisionRow], rows: Sequence[Row]) -> list[Row]:
    """The rows as those of a table by division; they share its targets."""
    targets = tuple(sorted({result.target for row in rows for result in row.results}))
    return [kind(**{f.name: getattr(row, f.name) for f in fields(row)}, targets=targets) for row in rows]
