"""`opendg reproduce`: a table or figure by name -> what is missing is run, then it is made from the records."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from opendg.bench import figures
from opendg.bench.cells import Cell
from opendg.bench.check import check_score, check_shown
from opendg.bench.compare import Comparison, comparisons, ratio_table, rotating_table
from opendg.bench.estimate import Clock, Estimate, still, total
from opendg.bench.grid import Grid, Report
from opendg.bench.header import describe
from opendg.bench.ledger import Ledger
from opendg.bench.plan import Plan, load_plan, place
from opendg.bench.published import published
from opendg.bench.records import Result, Tested, load_records, read_records, take_weights
from opendg.bench.render import markdown_table, write_table
from opendg.bench.runners import Runner
from opendg.bench.tables import Row, Table, kinds, make_table, measured_rows
from opendg.bench.work import Site
from opendg.data.entries import DATASETS, plain
from opendg.errors import OpenDGError, require_one
from opendg.evaluation.plane import PERPLEXITY
from opendg.models.backbones import build_backbone, check_backbone
from opendg.runs.files import make_folder, write_atomic, write_json
from opendg.runs.names import evaluation_file, predictions_file
from opendg.training.job import Job

QUICK = 20  # iterations: to see the shape of a result, not a result


@dataclass(frozen=True)
class Forecast:
    """What a plan would do."""

    states: dict[str, str]  # run -> done, running, failed, interrupted or left
    estimates: dict[str, Estimate]  # of what is to be run
    methods: dict[str, str]  # of the same runs
    seconds: float

    @property
    def sources(self) -> list[str]:
        return sorted({estimate.source for estimate in self.estimates.values()})


@dataclass
class Product:
    """What was made."""

    tables: list[Table] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    caption: tuple[str, ...] = ()
    numbers: str = ""  # a table of what a figure shows
    files: list[Path] = field(default_factory=list)


def asked_for(name: str, plan: Path | None, few: bool, *, score: str | None = None, **values: Any) -> Plan:
    """The plan behind a name with what the command line says.

    `plan` is a file whose methods, settings and recipe stand in for the shipped ones: tuned settings, for one.
    """
    shipped = load_plan(name)
    chosen = shipped if plan is None else replace(load_plan(str(plan)), name=shipped.name, show=shipped.show)
    chosen = chosen.override(**values)
    if score is not None:
        check_score(score, f"--score {score}")
        chosen = replace(chosen, show=replace(chosen.show, score=score))
    return quick(chosen) if few else chosen


def about_failures(states: dict[str, str]) -> list[str]:
    """A sentence for the header when runs are missing."""
    failed = sum(state == "failed" for state in states.values())
    return [f"{failed} of {len(states)} runs failed and are missing."] * (failed > 0)


def quick(plan: Plan) -> Plan:
    """Few iterations and one seed, under a name of its own."""
    short = plan.override(iterations=QUICK, seeds=plan.seeds[:1])
    return replace(short, name=f"{plan.name}-quick", title=f"{plan.title} (quick: {QUICK} iterations, not a result)")


def forecast(plan: Plan, runs: Path, root: Path | None, at_once: int = 1, retry_failed: bool = False) -> Forecast:
    """What would run and how long it would take; neither data nor a GPU are needed."""
    ledger, placed = Ledger(runs), place(plan.cells(root), root)
    check_shown(plan.show.kind, [tested(job) for _, job in placed.values()])
    for backbone in {job.backbone for _, job in placed.values()}:
        check_backbone(backbone)
    known = ledger.folder.is_dir()
    states = {name: ledger.state(name, cell.scores) if known else "left" for name, (cell, _) in placed.items()}
    skipped = ("done",) if retry_failed else ("done", "failed")
    clock, missing = Clock(ledger if known else None), {}
    for name in (name for name, state in states.items() if state not in skipped):
        cell, job = placed[name]
        whole, share = clock.run(cell, job), min(1.0, ledger.steps(name) / job.recipe.iterations)
        missing[name] = replace(whole, seconds=still(whole.seconds, share))
    seconds = total([estimate.seconds for estimate in missing.values()], at_once)
    return Forecast(states, missing, {name: placed[name][0].method for name in missing}, seconds)


def run_plan(
    plan: Plan, site: Site, runner: Runner, *, retry_failed: bool = False, report: Report | None = None
) -> dict[str, str]:
    """Bring every run of the plan to its end; run -> done or failed."""
    root = Path(site.root) if site.root else None
    placed = place(plan.cells(root), root, need_data=True)
    check_shown(plan.show.kind, [tested(job) for _, job in placed.values()])
    if plan.show.kind == "thresholds":
        for job in {job.protocol: job for _, job in placed.values()}.values():
            figures.check_source_unknown(job, job.open_data(root)[1])
    for backbone, weights in {(job.backbone, job.weights) for _, job in placed.values()}:
        build_backbone(backbone, "none" if weights == "imagenet" else weights)  # a wrong one would fail in every run
    ledger = Ledger(Path(site.runs))
    ledger.prepare()
    keep(ledger, plan.name, placed)
    cells = {name: cell for name, (cell, _) in placed.items()}
    return Grid(cells, site, runner, report).run(retry_failed)


def tested(job: Job) -> Tested:
    """What the record of a job will say that it was tested on."""
    rule = job.protocol
    return Tested(rule.dataset, rule.id, ",".join(rule.targets), len(rule.known), rule.unknown)


def keep(ledger: Ledger, name: str, placed: dict[str, tuple[Cell, Job]]) -> None:
    """Let `opendg bench status` know what was asked for."""
    clock = Clock(ledger)
    said = {
        run: {
            "cell": cell.to_json(), "iterations": job.recipe.iterations, "seconds": clock.run(cell, job).seconds,
        }
        for run, (cell, job) in placed.items()
    }  # fmt: skip
    ledger.keep_plan(name, said)


def results_of(plan: Plan, runs: Path, root: Path | None) -> list[Result]:
    """The records of the plan's runs that are there."""
    ledger = Ledger(runs)
    paths = [path for name in place(plan.cells(root), root) for path in ledger.records(name)]
    if not paths:
        raise OpenDGError(f"No run of {plan.name} is finished in {str(runs)!r}: see `opendg bench status {runs}`.")
    return read_records(paths)


def keep_records(
    plan: Plan, results: Sequence[Result], out: Path, *, take: str | None = None, root: Path | None = None,
    device: str = "auto",
) -> tuple[list[Result], Path]:  # fmt: skip
    """Lay the raw records, each under the name of its run, beside what is made of them; its records, and their folder.

    A table is of all records that lie there, so that it can be filled in several goes. With those of a figure lie
    the predictions that it is drawn from, as far as it looks at them: it can be drawn again without the runs.
    """
    folder = out / "records"
    make_folder(folder)
    needs = figures.NEEDS.get(plan.show.kind, ())
    for result in take_weights(results, take) if needs else results:
        name, which = result.path.parent.name, result.record["weights"]
        for what in needs:
            make_folder(folder / name)
            found = figures.slim(plan.show.kind, figures.beside(result, what, root, device))
            write_atomic(folder / name / predictions_file(what, which), found.pack())
        write_json(folder / (f"{name}/{evaluation_file(which)}" if needs else f"{name}-{which}.json"), result.record)
    return load_records(folder), folder


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


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before hours are spent on what is to lie there. Nothing is made."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OpenDGError(f"{str(nearest)!r} is a file, and {str(folder)!r} is to be a folder: choose another --out.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OpenDGError(f"{str(nearest)!r} may not be written to: choose another --out, or change its permissions.")


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
    table = rotating_table(
        plan.name, results, plan.title, plan.methods, plan.show.metrics, plan.scores, notes
    )  # fmt: skip
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
SAID = {
    "thresholds": "Solid: the target. Dashed: source validation images and the unknown classes of the source domains. "
    "Dotted: the best threshold of the sources; the marker shows what it gives on the target. Means over seeds.",
    "tsne": f"t-SNE (perplexity {PERPLEXITY:.0f}) of target features, the first seed, {figures.POINTS} images at most.",
    "oscr": "OSCR curves of the first seed.",
    "confusion": "Shares of each true class by answer. The first seed.",
}

RULED = {"confusion": ("h@source95",), "thresholds": ("h@source95",)}  # figures that a rule's threshold is read in


def _figure(
    plan: Plan, results: Sequence[Result], out: Path, notes: Sequence[str], root: Path | None, device: str
) -> Product:
    drawn = FIGURES[plan.show.kind](figure_rows(plan, results), out, root, device)
    caption = caption_of(plan, results, notes)
    page = out / f"{plan.name}.md"
    pictures = [path.name for path in drawn if path.suffix == ".png"]
    numbers = numbers_of(plan, results, root, device)
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


def caption_of(plan: Plan, results: Sequence[Result], notes: Sequence[str]) -> tuple[str, ...]:
    """What is said of the figures, from records alone."""
    rows = kinds(figure_rows(plan, results), plan.methods)
    header, _ = describe(results, RULED.get(plan.show.kind, ()), rows, said=notes)
    return (SAID[plan.show.kind], *header, *notes)


def numbers_of(plan: Plan, results: Sequence[Result], root: Path | None = None, device: str = "auto") -> str:
    """What a figure shows in numbers, as a table of Markdown; only that of thresholds has some."""
    if plan.show.kind != "thresholds":
        return ""
    return markdown_table(*figures.threshold_numbers(figure_rows(plan, results), root, device))


def figure_page(plan: Plan, pictures: Sequence[str], caption: Sequence[str], numbers: str = "") -> str:
    """Markdown that shows the pictures, by their file names, above their numbers and the caption."""
    shown = "\n\n".join(f"**{Path(name).stem}**\n\n![{Path(name).stem}]({name})" for name in pictures)
    return (
        f"# {plan.title}\n\n{shown}\n\n"
        + f"{numbers}\n\n" * bool(numbers)
        + "\n".join(f"- {line}" for line in caption)
        + "\n"
    )


def site_of(runs: Path, root: Path | None, **options: Any) -> Site:
    """Paths as every worker sees them."""
    site = Site(str(runs.resolve()), None if root is None else str(root.resolve()), **options)
    require_one("--checkpoint-every", site.checkpoint_every)
    return site
