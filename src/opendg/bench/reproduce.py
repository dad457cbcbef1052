"""`opendg reproduce`: a table or figure by name -> what is missing is run, its records are kept. See `produce.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opendg.bench import figures
from opendg.bench.cells import Cell
from opendg.bench.check import check_score, check_shown
from opendg.bench.estimate import Clock, Estimate, still, total
from opendg.bench.grid import Grid, Report
from opendg.bench.ledger import Ledger
from opendg.bench.plan import Plan, load_plan, place
from opendg.bench.records import Result, Tested, load_records, read_records, take_weights
from opendg.bench.runners import Runner
from opendg.bench.work import Site
from opendg.errors import OpenDGError, require_one
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


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before hours are spent on what is to lie there. Nothing is made."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OpenDGError(f"{str(nearest)!r} is a file, and {str(folder)!r} is to be a folder: choose another --out.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OpenDGError(f"{str(nearest)!r} may not be written to: choose another --out, or change its permissions.")


def site_of(runs: Path, root: Path | None, **options: Any) -> Site:
    """Paths as every worker sees them."""
    site = Site(str(runs.resolve()), None if root is None else str(root.resolve()), **options)
    require_one("--checkpoint-every", site.checkpoint_every)
    return site
