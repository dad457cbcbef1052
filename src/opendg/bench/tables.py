"""Tables: records of one protocol -> mean and spread over seeds, beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from opendg.bench.header import adds_head, differing, header_of
from opendg.bench.means import Measured, over_seeds
from opendg.bench.plan import Entry
from opendg.bench.published import Published, PublishedRow
from opendg.bench.records import Result, one_protocol
from opendg.methods.registry import METHODS

SCORES = ("cls", "bcls", "energy")
SPREAD = "seeds; Avg is the mean of its row, ± over the seeds that have every target"


@dataclass(frozen=True)
class Value:
    """One cell, in percent. `spread` is the standard deviation of `count` numbers, None for a single one."""

    mean: float | None = None
    spread: float | None = None
    count: int = 0
    published: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.published is None else self.mean - self.published


@dataclass(frozen=True)
class Row:
    label: str
    method: str
    score: str
    results: tuple[Result, ...] = ()  # of every column and seed
    published: PublishedRow | None = None

    def measured(self, column: str | None, metric: str, columns: Sequence[str]) -> Measured:
        """Mean and spread of a column, here a target; of all columns for None."""
        values = {(result.target, result.seed): value for result, value in self.values(metric)}
        return over_seeds(values, list(columns) if column is None else [column])

    def values(self, metric: str) -> list[tuple[Result, float]]:
        """The results that have the metric, with its value."""
        found = [(result, result.metric(self.score, metric)) for result in self.results]
        return [(result, value) for result, value in found if value is not None]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    header: tuple[str, ...]  # protocol, selection, thresholds, seeds, code: a sentence each
    facts: dict[str, str]  # the same for machines
    columns: tuple[str, ...]  # targets
    metrics: tuple[str, ...]
    rows: tuple[Row, ...]
    reference: Published | None = None

    def value(self, row: Row, column: str | None, metric: str) -> Value:
        """`column` None is the average."""
        found = row.measured(column, metric, self.columns)
        said = self.reference.value(row.published, column, metric) if self.reference and row.published else None
        return Value(found.mean, found.spread, len(found.numbers), said)


def make_table(
    name: str,
    results: Sequence[Result],
    *,
    title: str = "",
    entries: Sequence[Entry] = (),
    reference: Published | None = None,
    metrics: Sequence[str] = ("acc", "h@oracle10", "oscr"),
    scores: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Table:
    """The table of some records. With a published table it has its rows and order, then what else was measured."""
    one_protocol(results)
    fits = [reference is not None and fitting(reference, result) for result in results]
    said = reference if any(fits) else None
    rows = measured_rows(results, entries, scores, said)
    if said is not None:
        rows = in_published_order(rows, said)
    elif reference is not None:
        notes = [*notes, f"Published numbers are left out: they are of {reference.title}."]
    targets = order_targets(results, reference)
    header, facts = header_of(results, metrics, kinds(rows, entries), SPREAD, notes)
    if said is not None:
        header += (f"Published: {said.source}, Table {said.table}.",)
        header += tuple(f"Published {row.name}: {row.note}." for row in said.rows if row.note)
        header += (f"Published numbers stand beside runs of {said.title} only.",) * (not all(fits))
    return Table(name, title or name, (*header, *notes), facts, targets, tuple(metrics), tuple(rows), said)


def fitting(reference: Published, result: Result) -> bool:
    """Whether a record is of what the published table is of: dataset, architecture, division."""
    record = result.record
    division = (len(record["known"]), len(record["unknown"]))
    return (record["dataset"], result.architecture, *division) == (
        reference.dataset, reference.backbone, reference.known, reference.unknown,
    )  # fmt: skip


def measured_rows(
    results: Sequence[Result], entries: Sequence[Entry], scores: Sequence[str], reference: Published | None
) -> list[Row]:
    """A row for each kind of run and each score that it is to be read with, in the order of the plan."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in sorted(results, key=lambda r: (place_in(r, entries), r.target, r.seed)):
        groups.setdefault(result.row, []).append(result)
    rows = []
    for group in groups.values():
        record = group[0].record
        for score in wanted_scores(group[0], entries, scores):
            found = published_row(reference, group[0], score) if reference else None
            label = found.name if found else f"{name_of(group[0], entries)}-{score}"
            if reference and not fitting(reference, group[0]):
                label += f" ({record['backbone']})"
            rows.append(Row(label, record["method"], score, tuple(group), found))
    return distinct(rows)


def wanted_scores(result: Result, entries: Sequence[Entry], scores: Sequence[str]) -> list[str]:
    """Those that the entry of a run asks for, or else the plan; of several entries for the same run, those of each."""
    own, entry = own_score(result.record["method"]), entry_of(result, entries)
    same = [one for one in entries if entry and replace(one, label=entry.label, scores=entry.scores) == entry]
    asked = [score for one in same or [Entry("")] for score in one.scores or scores or (*SCORES, own)]
    named = dict.fromkeys(own if score == "own" else score for score in asked)
    return [score for score in named if score in result.record["scores"]]


def published_row(reference: Published, result: Result, score: str) -> PublishedRow | None:
    """The row of the paper that this is a measurement of; the one that asks for most settings, where several fit.

    A setting that the method does not have is taken as off.
    """
    record, own = result.record, own_score(result.record["method"])
    fits = [
        row
        for row in reference.rows
        if fitting(reference, result)
        and row.method == record["method"]
        and (own if row.score == "own" else row.score) == score
        and all(record["settings"].get(key, False) == value for key, value in row.settings.items())
    ]
    return max(fits, key=lambda row: len(row.settings), default=None)


def entry_of(result: Result, entries: Sequence[Entry]) -> Entry | None:
    """The entry of the plan that a record belongs to: of those whose settings it has, the one with most."""
    number, _ = place_in(result, entries)
    return entries[number] if number < len(entries) else None


def place_in(result: Result, entries: Sequence[Entry]) -> tuple[int, int]:
    """The number of a record's entry, and that of its settings among those that the entry varies.

    Of entries with equally many settings it is the one whose recipe comes closest: a command line may change that.
    """
    settings, best, most = result.record["settings"], (len(entries), 0), (-1, 0)
    for number, entry in enumerate(entries):
        if entry.method == result.record["method"]:
            for position, variant in enumerate(entry.variants()):
                fit = (len(variant), likeness(entry.recipe, result.record["recipe"]))
                if variant.items() <= settings.items() and fit > most:
                    best, most = (number, position), fit
    return best


def likeness(asked: dict[str, Any], recipe: dict[str, Any]) -> int:
    """How many of the values that were asked for a recipe has, less those in which it differs."""
    return sum(1 if recipe[name] == value else -1 for name, value in asked.items() if name in recipe)


def in_published_order(rows: list[Row], reference: Published) -> list[Row]:
    """The paper's rows in their order, those not measured with the published numbers alone; then the others."""
    ordered = []
    for published in reference.rows:
        found = [row for row in rows if row.published is published]
        ordered += found or [Row(published.name, published.method, published.score, (), published)]
    return ordered + [row for row in rows if row.published is None]


def order_targets(results: Sequence[Result], reference: Published | None) -> tuple[str, ...]:
    present = sorted({result.target for result in results})
    if reference and set(present) <= set(reference.targets):
        return reference.targets
    return tuple(present)


def distinct(rows: list[Row]) -> list[Row]:
    """Two rows of one name get the settings in which they differ; the one row that is the paper's keeps its name."""
    named = []
    for row in rows:
        twins = [other for other in rows if other.label == row.label and other is not row]
        keeps = not twins or (row.published and not any(other.published for other in twins))
        suffix = "" if keeps else differing(row.results[0], [other.results[0] for other in twins])
        named.append(replace(row, label=f"{row.label} ({suffix})") if suffix else row)
    return named


def own_score(method: str) -> str:
    return METHODS[method].score if method in METHODS else "cls"


def name_of(result: Result, entries: Sequence[Entry]) -> str:
    """A kind of run as the plan calls it, else by its method's title; with a head that neither has by itself."""
    entry, method = entry_of(result, entries), str(result.record["method"])
    title = METHODS[method].title if method in METHODS else method
    name, asked = (entry.label, {*entry.settings, *entry.vary}) if entry else ("", set())
    return (name or title) + "+ova" * ("ova" not in asked and adds_head(method, result.record["settings"].get("ova")))


def kinds(rows: Sequence[Row], entries: Sequence[Entry]) -> dict[str, tuple[Result, ...]]:
    """The kinds of runs behind the rows by name, whatever scores they are read with; for the header."""
    groups = {row.results[0].row: row.results for row in rows if row.results}
    names = {key: name_of(found[0], entries) for key, found in groups.items()}
    named = {}
    for key, found in groups.items():
        twins = [groups[other][0] for other, name in names.items() if name == names[key] and other != key]
        named[f"{names[key]} ({differing(found[0], twins)})" if twins else names[key]] = found
    return named
