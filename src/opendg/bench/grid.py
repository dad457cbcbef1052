"""The grid: bring every cell of a plan to its end, whatever happens to single ones."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path

from opendg.bench.cells import Cell
from opendg.bench.images import check_images
from opendg.bench.ledger import Ledger
from opendg.bench.runners import Died, Runner
from opendg.bench.work import Order, Outcome, Site

POLL = 1.0  # seconds between looks at runs that other runners hold
LIVES = 3  # a run whose worker dies so often is given up


@dataclass(frozen=True)
class Standing:
    """How far a grid is."""

    total: int
    done: int
    failed: int
    running: dict[str, int]  # by this runner: name -> iterations so far
    waiting: int


Report = Callable[[Standing], None]


class Grid:
    """The cells of a plan, by run name, on their way through a runner."""

    def __init__(self, cells: Mapping[str, Cell], site: Site, runner: Runner, report: Report | None = None) -> None:
        self.cells, self.site, self.runner, self.report = cells, site, runner, report
        self.ledger = Ledger(Path(site.runs))
        self.tried = {name: self.ledger.read(name).ended for name in cells}
        self.kinds = {name: cell.kind for name, cell in cells.items()}
        self.ended: dict[str, str] = {}
        self.waiting: deque[str] = deque()
        self.flying: dict[Future[Outcome], str] = {}
        self.deaths: Counter[str] = Counter()
        self.not_before: dict[str, float] = {}
        self.left: list[str] = []  # kinds that workers have just been at

    def run(self, retry_failed: bool = False) -> dict[str, str]:
        """The end state of every run: done or failed. Finished runs are left alone, failed ones too unless asked."""
        for name, cell in self.cells.items():
            state = self.ledger.state(name, cell.scores)
            if state == "done" or (state == "failed" and not retry_failed):
                self.ended[name] = state
            else:
                self.waiting.append(name)
        check_images({name: self.cells[name] for name, state in self.ended.items() if state == "done"}, self.site)
        while self.waiting or self.flying:
            self._launch()
            finished, _ = wait(self.flying, timeout=POLL, return_when=FIRST_COMPLETED)
            if not self.flying:
                time.sleep(POLL)  # all that is left is in other hands
            for future in finished:
                self._land(self.flying.pop(future), future)
            if self.report:
                self.report(self.progress())
        return self.ended

    def _launch(self) -> None:
        """Give the runner what it has room for; runs that others hold are looked at again later."""
        now, ready = time.monotonic(), dict[str, deque[tuple[int, str]]]()  # by kind, with their places in the line
        for place, name in enumerate(self.waiting):
            if now >= self.not_before.get(name, 0.0):
                ready.setdefault(self.kinds[name], deque()).append((place, name))
        busy = Counter(self.kinds[name] for name in self.flying.values())
        while ready and len(self.flying) < self.runner.slots:
            name = self._next(ready, busy)
            self.waiting.remove(name)
            cell, kind = self.cells[name], self.kinds[name]
            state = self.ledger.state(name, cell.scores)
            if state == "running":
                self._defer(name)
            elif state == "done" or (state == "failed" and self.ledger.read(name).failed_since(self.tried[name])):
                self.ended[name] = state  # by another runner, meanwhile
            else:
                order = Order(name, cell, self.site, self.alike[kind], self.tried[name])
                self.flying[self.runner.submit(order)] = name
                busy[kind] += 1
        self.left.clear()

    def _next(self, ready: dict[str, deque[tuple[int, str]]], busy: Counter[str]) -> str:
        """One of the kind that a free worker was at, whose compiled step it can use; else of the kind least at work."""
        kind = min(ready, key=lambda kind: (kind not in self.left, busy[kind], ready[kind][0]))
        with suppress(ValueError):
            self.left.remove(kind)
        _, name = ready[kind].popleft()
        if not ready[kind]:
            del ready[kind]
        return name

    @cached_property
    def alike(self) -> dict[str, int]:
        """For each kind, how many runs of it one worker will make, if they share them evenly."""
        kinds = Counter(kind for name, kind in self.kinds.items() if name not in self.ended)
        return {kind: min(count, ceil(count * len(kinds) / self.runner.slots)) for kind, count in kinds.items()}

    def _defer(self, name: str) -> None:
        self.not_before[name] = time.monotonic() + POLL
        self.waiting.append(name)

    def _land(self, name: str, future: Future[Outcome]) -> None:
        self.left.append(self.kinds[name])
        try:
            outcome = future.result()
        except Died as error:
            self.deaths[name] += 1
            if self.deaths[name] < LIVES:
                self.waiting.appendleft(name)
                return
            outcome = Outcome("failed", f"Given up after {LIVES} attempts: {error}.")
            with self.ledger.hold(name) as mine:
                if mine:
                    self.ledger.end(name, outcome="failed", error=outcome.error)
        if outcome.state == "busy":
            self._defer(name)
        else:
            self.ended[name] = outcome.state

    def progress(self) -> Standing:
        counts = Counter(self.ended.values())
        begun = [name for name in self.flying.values() if (self.ledger.runs / name).exists()]
        running = {name: self.ledger.steps(name) for name in begun}
        return Standing(len(self.cells), counts["done"], counts["failed"], running, len(self.waiting))
