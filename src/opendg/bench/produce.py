"""From records alone: the table or figure of a plan, with the files that hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from opendg.bench import figures
from opendg.bench.check import check_shown
from opendg.bench.compare import Comparison, comparisons, ratio_table, rotating_table
from opendg.bench.header import header_of
from opendg.bench.plan import Plan
from opendg.bench.published import published
from opendg.bench.records import Result, take_weights
from opendg.bench.render import markdown_table, write_table
from opendg.bench.tables import Row, Table, kinds, make_table, measured_rows
from opendg.data.entries import DATASETS, plain
from opendg.errors import OpenDGError
from opendg.evaluation.plane import PERPLEXITY
from opendg.runs.files import make_folder, write_atomic, write_json


@dataclass
class Product:
    """What was made."""

    tables: list[Table] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    caption: tuple[str, ...] = ()
    numbers: str = ""  # a table of what a figure shows
    files: list[Path] = field(default_factory=list)


def produce(
    plan: Plan, results: Sequence[Result], out: Path, *, take: str | None = None, notes: Sequence[str] = (),
    root: Path | None = None, device: str = "auto",
) -> Product:  # fmt: skip
    """The table or figure of the plan, from records (and, for most figures, predictions) alone."""
    check_dataset(plan, results)
    make_folder(out)
    plan, taken = titled(plan, results), take_weights(results, take)
    if plan.show.kind in PAGES:
        return PAGES[plan.show.kind](plan, taken, out, tuple(notes))
    return _figure(plan, taken, out, tuple(notes), root, device)


def check_dataset(plan: Plan, results: Sequence[Result]) -> None:
    """Records of another dataset never stand beneath the plan's title; a folder's may carry any name."""
    wanted = {plain(data) for data in plan.data}
    if not wanted <= {plain(name) for name in DATASETS}:
        return
    others = sorted(
        {str(result.record["dataset"]) for result in results if plain(result.record["dataset"]) not in wanted}
    )
    if others:
        raise OpenDGError(
            f"These records are of {', '.join(others)}, and {plan.name} is of {', '.join(plan.data)}: give the records "
            "of the one, or the plan of the other."
        )


def titled(plan: Plan, results: Sequence[Result]) -> Plan:
    """The plan; where no record is of its backbone, or none of its division, the title says which they are."""
    here, found = [], [result.tested for result in results]
    if plan.backbone and plan.backbone.split(".")[0] not in (seen := {result.architecture for result in results}):
        here += sorted(seen)
    if not any(map(plan.divides, found)):
        here += sorted({f"{one.known} known and {len(one.unknown)} unknown" for one in found})
    return replace(plan, title=f"{plan.title} - here with {', '.join(here)}") if here else plan


def _table(plan: Plan, results: Sequence[Result], out: Path, notes: Sequence[str]) -> Product:
    made, show = Product(), plan.show
    for part, found in by_table(plan, results).items():
        table = make_table(
            "-".join([plan.name, *part.split(":")]) if part else plan.name, found,
            title=f"{plan.title}: {part}" if part and plan.title else plan.title, entries=plan.methods,
            metrics=show.metrics, scores=plan.scores, notes=notes,
            reference=published(show.published) if show.published else None,
        )  # fmt: skip
        made.tables.append(table)
        made.files += write_table(table, out)
    return made


def by_table(plan: Plan, results: Sequence[Result]) -> dict[str, list[Result]]:
    """What each table is of, by its part of the plan: a dataset, or a protocol where there are several divisions.

    A plan of one dataset and one division has no parts. The plan decides, not the records that are there so far.
    """
    tables: dict[str, list[Result]] = {}
    for result in results:
        part = result.tested.dataset if len(plan.data) > 1 else ""
        tables.setdefault(result.tested.protocol if len(plan.divisions) > 1 else part, []).append(result)
    return dict(sorted(tables.items()))


def _rotating(plan: Plan, results: Sequence[Result], out: Path, notes: Sequence[str]) -> Product:
    table = rotating_table(plan.name, results, plan.title, plan.methods, plan.show.metrics, plan.scores, notes)
    paired = comparisons(table.rows, "oscr")
    write_json(out / f"{plan.name}-comparisons.json", [asdict(one) for one in paired])
    files = [*write_table(table, out, extra=comparison_lines(paired)), out / f"{plan.name}-comparisons.json"]
    return Product([table], paired, files=files)


def comparison_lines(paired: Sequence[Comparison]) -> tuple[str, list[str], list[list[str]]]:
    """A heading, column names and rows: the paired comparisons in words."""
    title = (
        "Paired comparisons in OSCR: mean difference over the class x target pairs that both have (seeds averaged "
        "first), 95 % interval by bootstrap over classes and over targets"
    )
    rows = [
        [f"{c.first} - {c.second}", f"{c.difference:+.2f}", f"{c.low:+.2f} .. {c.high:+.2f}", f"{c.ahead} of {c.pairs}"]
        for c in paired
    ]
    return title, ["", "difference", "95 % interval", "ahead in"], rows


def _openness(plan: Plan, results: Sequence[Result], out: Path, notes: Sequence[str]) -> Product:
    table = ratio_table(plan.name, results, plan.title, plan.methods, plan.show.metrics, plan.scores, notes)
    drawn = figures.draw_openness(table, "oscr", out)
    return Product([table], files=[*write_table(table, out), *drawn])


PAGES: dict[str, Callable[[Plan, Sequence[Result], Path, Sequence[str]], Product]] = {
    "table": _table, "rotating": _rotating, "openness": _openness,
}  # fmt: skip

FIGURES: dict[str, Callable[[Sequence[Row], Path, Path | None, str], list[Path]]] = {
    "thresholds": figures.draw_thresholds,
    "tsne": lambda rows, out, root, device: figures.draw_tsne(rows, out),
    "oscr": lambda rows, out, root, device: figures.draw_oscr_curves(rows, out),
    "confusion": lambda rows, out, root, device: figures.draw_confusion(rows, out),
}

NUMBERS: dict[str, Callable[[Sequence[Row], Path | None, str], tuple[list[str], list[list[str]]]]] = {
    "thresholds": figures.threshold_numbers,
    "confusion": lambda rows, root, device: figures.class_numbers(rows),
}

SAID = {
    "thresholds": "Solid: the target. Dashed: source validation images and the unknown classes of the source domains. "
    "Dotted: the best threshold of the sources; the marker shows what it gives on the target. Means over seeds.",
    "tsne": f"t-SNE (perplexity {PERPLEXITY:.0f}) of target features, the first seed, {figures.POINTS} images at most.",
    "oscr": "OSCR curves of the first seed.",
    "confusion": "Shares of each true class by answer, and the points that a class takes from OSCR: known images that "
    "are mistaken for another class, and right ones that unknown images outrank. The first seed.",
}

RULED = {"confusion": ("h@source95",), "thresholds": ("h@source95",)}  # figures that a rule's threshold is read in


def _figure(
    plan: Plan, results: Sequence[Result], out: Path, notes: Sequence[str], root: Path | None, device: str
) -> Product:
    rows = figure_rows(plan, results)
    drawn = FIGURES[plan.show.kind](rows, out, root, device)
    caption, numbers = caption_of(plan, results, rows, notes), numbers_of(plan, rows, root, device)
    page = out / f"{plan.name}.md"
    pictures = [path.name for path in drawn if path.suffix == ".png"]
    write_atomic(page, figure_page(plan, pictures, caption, numbers).encode())
    return Product(caption=caption, numbers=numbers, files=[page, *drawn])


def figure_rows(plan: Plan, results: Sequence[Result]) -> list[Row]:
    check_shown(plan.show.kind, [result.tested for result in results])
    rows = measured_rows(results, plan.methods, (plan.show.score,), None)
    if not rows:
        raise OpenDGError(
            f"No record has the score {plan.show.score!r}: try --score cls, or evaluate the runs with it."
        )
    return rows


def caption_of(plan: Plan, results: Sequence[Result], rows: Sequence[Row], notes: Sequence[str]) -> tuple[str, ...]:
    """What is said of the figures, from records alone."""
    header, _ = header_of(results, RULED.get(plan.show.kind, ()), kinds(rows, plan.methods), said=notes)
    return (SAID[plan.show.kind], *header, *notes)


def numbers_of(plan: Plan, rows: Sequence[Row], root: Path | None = None, device: str = "auto") -> str:
    """What a figure shows in numbers, as a table of Markdown, where it has some."""
    if plan.show.kind not in NUMBERS:
        return ""
    return markdown_table(*NUMBERS[plan.show.kind](rows, root, device))


def figure_page(plan: Plan, pictures: Sequence[str], caption: Sequence[str], numbers: str = "") -> str:
    """Markdown that shows the pictures, by their file names, above their numbers and the caption."""
    shown = "\n\n".join(f"**{Path(name).stem}**\n\n![{Path(name).stem}]({name})" for name in pictures)
    return (
        f"# {plan.title}\n\n{shown}\n\n"
        + f"{numbers}\n\n" * bool(numbers)
        + "\n".join(f"- {line}" for line in caption)
        + "\n"
    )
