"""Many runs on one card: several at once in one process, each on a CUDA stream of its own.

One run of 48 images leaves most of a large GPU idle, and processes without MPS only take turns on it. Here the
graphs of several runs are replayed side by side; they share the process, the decoded store and the compiled code, and
each is a normal run directory with the numbers that it would have alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from opendg.data.catalog import open_dataset
from opendg.errors import OpenDGError, refuse_doubles, require_one
from opendg.models.backbones import build_backbone
from opendg.protocol import manifest
from opendg.runs.directory import Run
from opendg.training.job import Job, home, make_job, refuse_misspelt
from opendg.training.lists import names_in
from opendg.training.train import Report, refuse_changed, refuse_other_devices, start, take_up

NOT_OF_THE_JOB = ("device", "devices", "checkpoint_every", "capture", "compile", "track")  # how `start` trains it
Start = Callable[[], tuple[Run, Iterator[int]]]  # a run and its iterations: see `opendg.training.train.start`


class Lane(NamedTuple):
    run: Run
    iterations: Iterator[int]
    stream: Any  # a CUDA stream, or None on the CPU


def train_many(
    method: str, data: str, targets: list[str], seeds: list[int], *, folder: Path, lanes: int = 2,
    report: Report | None = None, finished: Callable[[Run], None] | None = None,
    note: Callable[[str], None] | None = None, **asked: Any,
) -> list[Run]:  # fmt: skip
    """A run for every target and seed, in `folder`/TARGET-SEED, `lanes` of them at once on a GPU, one on the CPU.

    The same call goes on where it was stopped: finished runs are kept, interrupted ones taken up again, and `note` is
    told which. `report` sees the iterations of all runs together; `finished` is called with each run when it is done.
    """
    refuse_misspelt(asked, train_many, start, make_job)
    require_one("--lanes", lanes)
    wanted = {folder / f"{target}-{seed}": (target, seed) for seed in seeds for target in targets}
    refuse_doubles("target", targets)
    refuse_doubles("seed", seeds)
    there = {path: Run.open(path) for path in wanted if path.exists()}
    _check(wanted, there, method, data, asked)
    kept = {path: run for path, run in there.items() if run.finished}
    for text, paths in (("Kept, as they are finished", kept), ("Taken up again", there.keys() - kept.keys())):
        if note and paths:
            note(f"{text}: {', '.join(path.name for path in wanted if path in paths)}.")
    progress = Together(report, len(wanted), len(kept))

    def begin(path: Path) -> Start:
        shown = progress.of(path.name)
        if path in there:
            places = {name: asked[name] for name in ("device", "devices") if name in asked}
            return lambda: take_up(path, root=home(data, asked.get("root")), report=shown, **places)
        target, seed = wanted[path]
        return lambda: start(method, data, target, out=path, seed=seed, report=shown, runs=len(wanted), **asked)

    runs = {}
    lacking = [begin(path) for path in wanted if path not in kept]
    for run in chain(kept.values(), side_by_side(lacking, lanes, asked.get("device", "auto"))):
        runs[run.path] = run
        if finished:
            finished(run)
    return [runs[path] for path in wanted]


def _check(
    wanted: dict[Path, tuple[str, int]], there: dict[Path, Run], method: str, data: str, asked: dict[str, Any]
) -> None:
    """Refuse what could not be trained, and runs that are there and are not what is asked for.

    Those are of another job, of other images or weights, or on other devices.
    """
    root = asked.get("root")
    index = open_dataset(data, None if root is None else Path(root))
    of_job = {name: value for name, value in asked.items() if name not in NOT_OF_THE_JOB}
    jobs = {
        path: make_job(method, data, names_in(target), index, seed=seed, **of_job)
        for path, (target, seed) in wanted.items()
    }
    protocols = dict.fromkeys(job.protocol for job in jobs.values())  # one for all seeds of a target
    splits = {protocol: protocol.apply(index) for protocol in protocols}
    found = {rule: manifest(rule, index, splits[rule]) for rule in {jobs[path].protocol for path in there}}
    begun = None
    for path, run in there.items():
        job = jobs[path]
        if differ := job.differs(Job.from_json(run.config)):
            raise OpenDGError(
                f"The run {str(run.path)!r} was trained with another {', '.join(differ[:3])}: choose another --out, or "
                "ask for what it was trained with."
            )
        refuse_other_devices(run, asked.get("devices", 1))
        begun = begun or build_backbone(job.backbone, job.weights).start  # the same for all
        refuse_changed(run, job, found[job.protocol], begun)


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


class Together:
    """The reports of several runs as one: iterations done of all that there are, `kept` of them from before."""

    def __init__(self, report: Report | None, runs: int, kept: int) -> None:
        self.report, self.runs, self.kept = report, runs, kept
        self.done: dict[str, int] = {}

    def of(self, name: str) -> Report:
        def one(step: int, total: int, losses: dict[str, float]) -> None:
            self.done[name] = step
            if self.report:
                self.report(sum(self.done.values()) + total * self.kept, total * self.runs, losses)

        return one
