"""What a folder of runs has done, does, and has left to do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from opendg.bench.cells import Cell
from opendg.bench.estimate import Clock, still, total
from opendg.bench.ledger import Ledger
from opendg.errors import OpenDGError


@dataclass(frozen=True)
class RunStatus:
    name: str
    state: str
    steps: int
    iterations: int
    seconds: float  # left
    error: str | None


@dataclass(frozen=True)
class PlanStatus:
    plan: str
    runs: tuple[RunStatus, ...]

    def count(self, *states: str) -> int:
        counts = Counter(run.state for run in self.runs)
        return sum(counts[state] for state in states)

    @property
    def seconds(self) -> float:
        """Left, with as many runs at once as there are now; failed runs are not counted."""
        waiting = [run.seconds for run in self.runs if run.state in ("running", "interrupted", "left")]
        at_once = self.count("running")
        return total(waiting, at_once)


def status(runs: Path) -> list[PlanStatus]:
    """Of every plan that was run into the folder."""
    ledger = Ledger(runs)
    if not ledger.folder.is_dir():
        raise OpenDGError(f"{str(runs)!r} is no folder of runs: one that `opendg bench run` has made was expected.")
    clock = Clock(ledger)
    found = []
    for plan, asked in ledger.plans().items():
        states = []
        for name, said in asked.items():
            cell, iterations = Cell.from_json(said["cell"]), int(said["iterations"])
            state, steps = ledger.state(name, cell.scores), ledger.steps(name)
            left = still(clock.of_kind(cell, iterations, float(said["seconds"])), min(1.0, steps / iterations))
            error = ledger.read(name).error if state == "failed" else None
            states.append(RunStatus(name, state, steps, iterations, 0.0 if state == "done" else left, error))
        found.append(PlanStatus(plan, tuple(states)))
    return found
