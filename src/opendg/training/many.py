"""Many runs on one card: several at once in one process, each on a CUDA stream of its own.

One run of 48 images leaves most of a large GPU idle, and processes without MPS only take turns on it. Here the
graphs of several runs are replayed side by side; they share the process, the decoded store and the compiled code, and
each is a normal run directory with the numbers that it would have alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.train import Report, start


class Lane(NamedTuple):
    run: Run
    iterations: Iterator[int]
    stream: Any  # a CUDA stream, or None on the CPU


def train_many(
    method: str, data: str, targets: list[str], seeds: list[int], *, folder: Path, lanes: int = 2,
    report: Report | None = None, finished: Callable[[Run], None] | None = None, **asked: Any,
) -> list[Run]:  # fmt: skip
    """A run for every target and seed, in `folder`/TARGET-SEED, `lanes` of them at once on a GPU, one on the CPU.

    `report` sees the iterations of all runs together; `finished` is called with each run when it is done.
    """
    wanted = [(target, seed) for seed in seeds for target in targets]
    if taken := [path for path in (folder / f"{t}-{s}" for t, s in wanted) if path.exists()]:
        raise OpenDGError(f"The run directory {str(taken[0])!r} exists already: choose another --out.")
    progress = _Together(report, len(wanted))
    waiting = iter(wanted)
    active: list[Lane] = []
    runs: list[Run] = []
    cuda = asked.get("device") != "cpu" and torch.cuda.is_available()
    while True:
        for target, seed in _some(waiting, (lanes if cuda else 1) - len(active)):
            name = f"{target}-{seed}"
            run, iterations = start(
                method, data, target, out=folder / name, seed=seed, report=progress.of(name), **asked
            )
            active.append(Lane(run, iterations, torch.cuda.Stream() if cuda else None))
        if not active:
            return runs
        for lane in list(active):
            with torch.cuda.stream(lane.stream) if cuda else nullcontext():
                if next(lane.iterations, None) is not None:
                    continue
                active.remove(lane)
                runs.append(lane.run)
                if finished:
                    finished(lane.run)


def _some(waiting: Iterator[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    return [pair for _, pair in zip(range(most), waiting, strict=False)]


class _Together:
    """The reports of several runs as one: iterations done of all that there are."""

    def __init__(self, report: Report | None, runs: int) -> None:
        self.report, self.runs = report, runs
        self.done: dict[str, int] = {}

    def of(self, name: str) -> Report:
        def one(step: int, total: int, losses: dict[str, float]) -> None:
            self.done[name] = step
            if self.report:
                self.report(sum(self.done.values()), total * self.runs, losses)

        return one
