"""Paired comparisons of methods, and tables whose columns are divisions of the classes into known and unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from statistics import mean

import numpy as np

from opendg.bench.header import describe
from opendg.bench.means import Measured, over_seeds
from opendg.bench.plan import Entry
from opendg.bench.records import Result
from opendg.bench.tables import Row, Table, kinds, measured_rows, own_score
from opendg.errors import OpenDGError
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


def division(result: Result) -> str:
    """The unknown classes, which name a division of a dataset."""
    return "+".join(result.record["unknown"])


def ratio(result: Result) -> str:
    """known:unknown classes."""
    return f"{len(result.record['known'])}:{len(result.record['unknown'])}"


class RotatingRow(Row):
    """A column is an unknown class: its numbers are the targets', those of the average all class x target pairs'."""

    def measured(self, column: str | None, metric: str, columns: Sequence[str]) -> Measured:
        pairs = by_pair(self, metric)
        numbers = [value for (name, _), value in sorted(pairs.items()) if column in (None, name)]
        return Measured(mean(numbers) if numbers else None, numbers)


class RatioRow(Row):
    """A column is a division such as 6:1: the mean over all targets of the row, its spread over seeds."""

    def measured(self, column: str | None, metric: str, columns: Sequence[str]) -> Measured:
        values = {((ratio(r), r.target), r.seed): value for r, value in self.values(metric)}
        targets = sorted({result.target for result in self.results})
        return over_seeds(values, list(product(columns if column is None else [column], targets)))


def by_pair(row: Row, metric: str) -> dict[Pair, float]:
    """(unknown class, target) -> the mean over seeds."""
    found: dict[Pair, list[float]] = {}
    for result, value in row.values(metric):
        found.setdefault((division(result), result.target), []).append(value)
    return {pair: mean(values) for pair, values in found.items()}


def rotating_table(
    name: str, results: Sequence[Result], title: str, entries: Sequence[Entry], metrics: Sequence[str],
    scores: Sequence[str] = (), notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Each class has been the unknown one: a column for each, and their mean."""
    one_dataset(results)
    rows = [_as(RotatingRow, row) for row in measured_rows(results, entries, scores, None)]
    spread = "targets (a column) and over class x target pairs (Avg), seeds averaged first"
    header, facts = describe(results, metrics, kinds(rows, entries), spread)
    columns = tuple(sorted({division(result) for result in results}))
    return Table(name, title, (*header, *notes), facts, columns, tuple(metrics), tuple(rows))


def ratio_table(
    name: str, results: Sequence[Result], title: str, entries: Sequence[Entry], metrics: Sequence[str],
    scores: Sequence[str] = (), notes: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Several divisions of the classes: a column for each known:unknown."""
    one_dataset(results)
    rows = [_as(RatioRow, row) for row in measured_rows(results, entries, scores, None)]
    spread = "seeds that have every target; a column is the mean over targets, Avg that of its row"
    header, facts = describe(results, metrics, kinds(rows, entries), spread)
    columns = {ratio(result): len(result.record["known"]) for result in results}
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
    """The mean difference over the class x target pairs that both have, with a percentile bootstrap over the pairs.

    Seeds are averaged within a pair first: they repeat a pair and are no further evidence about other classes.
    """
    one, other = by_pair(first, metric), by_pair(second, metric)
    pairs = sorted(one.keys() & other.keys())
    if len(pairs) < 2:
        raise OpenDGError(
            f"{first.label} and {second.label} share {len(pairs)} class x target pair: two or more are needed."
        )
    differences = np.array([one[pair] - other[pair] for pair in pairs])
    draws = generator(0, "comparison").integers(len(pairs), size=(DRAWS, len(pairs)))
    low, high = np.percentile(differences[draws].mean(axis=1), [2.5, 97.5])
    ahead = int((differences > 0).sum())
    difference, low, high = (round(float(value), 6) for value in (differences.mean(), low, high))
    return Comparison(first.label, second.label, metric, difference, low, high, ahead, len(pairs))


def one_dataset(results: Sequence[Result]) -> None:
    names = sorted({result.record["dataset"] for result in results})
    if len(names) > 1:
        raise OpenDGError(f"These records are of {' and '.join(names)}: give a folder with those of one dataset.")


def _as(kind: type[Row], row: Row) -> Row:
    return kind(**{f.name: getattr(row, f.name) for f in fields(row)})
