"""Many runs on one card: several at once in one process, each on a CUDA stream of its own.

One run of 48 images leaves most of a large GPU idle, and processes without MPS only take turns on it. Here the
graphs of several runs are replayed side by side; they share the process, the decoded store and the compiled code, and
each is a normal run directory with the numbers that it would have alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.train import Report, start

Start = Callable[[], tuple[Run, Iterator[int]]]  # a run and its iterations: see `opendg.training.train.start`


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

    def begin(target: str, seed: int) -> Start:
        out = folder / f"{target}-{seed}"
        shown = progress.of(out.name)
        return lambda: start(method, data, target, out=out, seed=seed, report=shown, runs=len(wanted), **asked)

    runs = []
    for run in side_by_side([begin(*pair) for pair in wanted], lanes, asked.get("device", "auto")):
        runs.append(run)
        if finished:
            finished(run)
    return runs


def side_by_side(starts: Iterable[Start], lanes: int, device: str = "auto") -> Iterator[Run]:
    """Runs as they finish: up to `lanes` at once on a GPU that has the room, one on the CPU.

    A further one is started once those before it have made a step, so that what they take of the memory is seen.
    """
    cuda = device != "cpu" and torch.cuda.is_available()
    waiting = deque(starts)
    active: list[Lane] = []
    changed = True  # since the memory was looked at, which is no work for every iteration
    while waiting or active:
        begins = waiting and (not active or (cuda and changed and len(active) < lanes and room()))
        if begins:
            active.append(Lane(*waiting.popleft()(), torch.cuda.Stream() if cuda else None))
        changed = bool(begins)
        for lane in list(active):
            with torch.cuda.stream(lane.stream) if cuda else nullcontext():
                if next(lane.iterations, None) is not None:
                    continue
            active.remove(lane)
            changed = True
            yield lane.run


def room() -> bool:
    """Whether two thirds of the GPU's memory are free: each lane takes as much as the first."""
    free, total = torch.cuda.mem_get_info()
    return 3 * free >= 2 * total


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
