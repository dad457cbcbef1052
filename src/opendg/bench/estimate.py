"""How long runs take: by runs of the same folder, done or at work, else by the committed benchmark, else by a guess."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from opendg.bench.cells import Cell
from opendg.bench.ledger import Ledger
from opendg.methods.registry import METHODS
from opendg.training.job import Job

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "results"  # in a checkout
# Milliseconds of an iteration of ERM with 48 images, captured, on one H200; other backbones are taken as the last.
GUESS = {"convnet": 1.5, "resnet18": 6.3, "resnet50": 16.0}
AROUND = 20.0  # seconds of a run beside its iterations: start, decoding from the cache, evaluation
HERE = "runs of this folder"
ALIKE = 2.0  # runs are of similar length up to this factor


class Attempt(NamedTuple):
    """What an attempt took."""

    seconds: float
    iterations: int

    def is_like(self, iterations: int) -> bool:
        return 1 / ALIKE <= self.iterations / iterations <= ALIKE

    @property
    def tells(self) -> bool:
        """Whether it was busy with its iterations for longer than with all else, so that it says how long one takes."""
        return self.seconds >= 2 * AROUND

    def stretched(self, iterations: int) -> float:
        """Seconds of a run with so many iterations: the time around them stays what it is."""
        around = min(AROUND, self.seconds)
        return around + (self.seconds - around) * iterations / self.iterations


@dataclass(frozen=True)
class Estimate:
    seconds: float
    source: str


class Clock:
    """Estimates for the runs of one folder."""

    def __init__(self, ledger: Ledger | None = None, benchmarks: Path = BENCHMARKS) -> None:
        self.measured = _measured(ledger) if ledger else {}
        self.usual = cache(self._usual)  # of many runs each is of one of a few kinds
        self.rows = [row for path in sorted(benchmarks.glob("*.json")) for row in _benchmark(path)]

    def run(self, cell: Cell, job: Job) -> Estimate:
        """Seconds of a whole run. What was measured here is taken for the same method, dataset and backbone."""
        if (here := self.of_kind(cell, job.recipe.iterations, -1.0)) >= 0:
            return Estimate(here, HERE)
        if row := self._row(job):
            milliseconds, source = float(row["ms"]), f"the committed benchmark on {row['machine']}"
        else:
            base = next((ms for name, ms in GUESS.items() if job.backbone.startswith(name)), GUESS["resnet50"])
            milliseconds = base * _cost(job)
            source = f"a guess: ERM in {base} ms an iteration of 48 images on one H200, other methods by their cost"
        return Estimate(AROUND + milliseconds / 1000 * job.recipe.batch / 8 * job.recipe.iterations, source)

    def of_kind(self, cell: Cell, iterations: int, otherwise: float) -> float:
        """Seconds by the runs of the same kind in the folder."""
        found = self.usual(_kind(cell), iterations)
        return otherwise if found is None else found

    def _usual(self, kind: tuple[str, ...], iterations: int) -> float | None:
        """By those of similar length, if there are any; None where no run tells."""
        found = self.measured.get(kind, [])
        alike = [one for one in found if one.is_like(iterations)] or [one for one in found if one.tells]
        return median(one.stretched(iterations) for one in alike) if alike else None

    def _row(self, job: Job) -> dict[str, Any] | None:
        """The benchmark of this method and architecture with B = 8; of several the one that names most settings."""
        fits = []
        for row in self.rows:
            said = dict(pair.split("=", 1) for pair in row["settings"].split())
            same = all(str(job.settings.get(key)) == value for key, value in said.items())
            if same and (row["method"], row["backbone"]) == (job.method, job.backbone.split(".")[0]):
                fits.append((len(said), row))
        return max(fits, key=lambda fit: fit[0])[1] if fits else None


def _measured(ledger: Ledger) -> dict[tuple[str, ...], list[Attempt]]:
    """The finished attempts by kind of run, and those at work that have come far enough to tell."""
    found: dict[tuple[str, ...], list[Attempt]] = {}
    for path in sorted(ledger.folder.glob("*.json")):
        entry = ledger.read(path.stem)
        for attempt in entry.attempts:
            if attempt.get("outcome") == "done" and attempt.get("iterations"):
                kind = _kind(Cell.from_json(entry.cell))
                found.setdefault(kind, []).append(Attempt(attempt["seconds"], attempt["iterations"]))
        if (at_work := _at_work(ledger, path.stem, entry.last)) and at_work.tells:
            found.setdefault(_kind(Cell.from_json(entry.cell)), []).append(at_work)
    return found


def _at_work(ledger: Ledger, name: str, attempt: Mapping[str, Any]) -> Attempt | None:
    """What an attempt has taken so far that a process is at; older ledgers do not say where it began."""
    if "step" not in attempt or "ended" in attempt or not ledger.is_held(name):
        return None
    made = ledger.steps(name) - int(attempt["step"])
    return Attempt(ledger.logged_for(name), made) if made > 0 else None


def _kind(cell: Cell) -> tuple[str, ...]:
    settings = json.dumps([cell.settings, cell.recipe.get("batch")], sort_keys=True)
    return (cell.method, cell.data, str(cell.backbone), settings)


def _benchmark(path: Path) -> list[dict[str, Any]]:
    """The rows of a benchmark of steps that are captured and of B = 8 (48 images; 72 with nine tasks)."""
    said = json.loads(path.read_text())
    rows = [row for row in said["rows"] if {"method", "backbone", "settings", "mode", "images", "ms"} <= set(row)]
    plain = [row for row in rows if row["mode"] == "captured" and row["images"] in (48, 72)]
    return [row | {"machine": said["machine"]} for row in plain]


def _cost(job: Job) -> float:
    """The factor that a method states of itself: the first number of `1.3x; order 2: 5x`, or that of its order."""
    said = METHODS[job.method].cost
    of_order = re.search(rf"order {job.settings.get('order')}: ([\d.]+)x", said)
    first = of_order or re.match(r"\D*([\d.]+)", said)
    return float(first[1]) if first else 1.0


def still(seconds: float, share: float) -> float:
    """Of a run that takes so long and has made this share of its iterations: what it takes to take it up and end it."""
    around = min(AROUND, seconds)
    return around + (seconds - around) * (1 - share)


def total(seconds: Sequence[float], at_once: int) -> float:
    """Seconds for runs that take so many each, so many at once; at least as long as the longest."""
    return max([sum(seconds) / max(1, at_once), *seconds], default=0.0)


def duration(seconds: float) -> str:
    """So many seconds, in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
