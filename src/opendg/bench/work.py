"""The work on one cell: train it or go on with it, then evaluate it. Runs in a process of its own."""

from __future__ import annotations

import shlex
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from opendg.bench.cells import Cell, run_name
from opendg.bench.ledger import Ledger
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import PLAIN, evaluate
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.runs.restore import restore
from opendg.runs.scores import linear_head
from opendg.scores.registry import SCORES
from opendg.training.job import Job, home
from opendg.training.train import LOG_EVERY, Report, resume, train


@dataclass(frozen=True)
class Site:
    """Where runs are made: paths as every worker sees them."""

    runs: str
    root: str | None = None
    device: str = "auto"
    checkpoint_every: int = 500
    compile: bool | None = None  # None: where it pays


@dataclass(frozen=True)
class Order:
    """A cell to be worked on."""

    name: str
    cell: Cell
    site: Site
    runs: int = 1  # of this kind that the worker will see: decides whether compiling pays
    tried: int = 0  # attempts that had ended when the grid began: failures after those are news, and not tried again

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Order:
        return cls(**(values | {"cell": Cell.from_json(values["cell"]), "site": Site(**values["site"])}))


@dataclass(frozen=True)
class Outcome:
    state: str  # done, failed, or busy: another process holds the run
    error: str | None = None


class Count:
    """The iterations of an attempt: from the newest checkpoint, or from before if reports show that it was no good."""

    def __init__(self, checkpoint: int) -> None:
        self.begin = self.end = checkpoint

    def __call__(self, step: int, of: int, losses: dict[str, float]) -> None:
        if step <= self.begin:
            self.begin = max(0, step - LOG_EVERY)
        self.end = step

    @property
    def iterations(self) -> int:
        return self.end - self.begin


def perform(order: Order) -> Outcome:
    """Bring one run to its end. An error is written into the ledger and given back, never raised."""
    ledger, cell = Ledger(Path(order.site.runs)), order.cell
    with ledger.hold(order.name) as mine:
        if not mine:
            return Outcome("busy")
        before, records = ledger.read(order.name), ledger.records(order.name)
        if before.has(cell.scores) and records:
            return Outcome("done")
        if before.failed_since(order.tried):
            return Outcome("failed", before.error)
        ledger.begin(order.name, cell)
        start, count = time.monotonic(), Count(ledger.checkpoint(order.name))
        try:
            run = make(order, count)
        except Exception as error:
            sentence = str(error) if isinstance(error, OpenDGError) else f"{type(error).__name__}: {error}"
            ledger.end(order.name, outcome="failed", error=sentence, traceback=traceback.format_exc())
            return Outcome("failed", sentence)
        facts = {"seconds": round(time.monotonic() - start, 1), "iterations": count.iterations}
        scores = dict.fromkeys([*PLAIN, "own", *(before.scores if records else ()), *cell.scores])
        ledger.end(order.name, outcome="done", scores=list(scores), machine=run.config.get("machine"), **facts)
        return Outcome("done")


def make(order: Order, report: Report) -> Run:
    """The finished and evaluated run."""
    path, cell, site = Path(order.site.runs) / order.name, order.cell, order.site
    root = home(cell.data, site.root)
    with said_as(cell.command()):
        if not path.exists():
            run = train(
                cell.method, cell.data, cell.target, out=path, device=site.device, root=root,
                checkpoint_every=site.checkpoint_every, compile=site.compile, runs=order.runs,
                report=report, **cell.asked(),
            )  # fmt: skip
        elif (run := Run.open(path)).finished is False:
            run = resume(path, root=root, device=site.device, report=report)
    if run_name(Job.from_json(run.config)) != order.name:
        raise OpenDGError(
            f"What was trained is not what {order.name!r} stands for: the dataset has other domains or classes than "
            "when the plan was made, or the folder was written by another version; use another folder of runs."
        )
    for which in ("selected", "averaged"):
        if run.weight_file(which).exists():
            evaluate(path, scores=readable(run, which, cell.scores), weights=which, root=root, device=site.device)
    return run


def readable(run: Run, which: str, asked: tuple[str, ...]) -> list[str]:
    """The plain scores, the method's own and those asked for, as far as the heads of the run allow."""
    own = Job.from_json(run.config).make_method().score
    names = dict.fromkeys([*PLAIN, own, *(name for name in asked if name != "own")])
    outputs, look = Predictions.load(run.val_file(which)), any("head" in SCORES[name].needs for name in names)
    head = linear_head(restore(run, which, torch.device("cpu"))) if look else None
    return [name for name in names if not SCORES[name].lacks(outputs, head)]


@contextmanager
def said_as(command: str) -> Iterator[None]:
    """Runs keep the command that made them: here the one that would make them alone, not that of a worker."""
    kept, sys.argv = sys.argv, shlex.split(command)
    try:
        yield
    finally:
        sys.argv = kept
