"""The ledger of a folder of runs: who tried what, when, and what came of it. Several runners may share the folder.

    RUNS/NAME/                  the run directory, as `opendg train` makes it
    RUNS/ledger/NAME.json       the cell and its attempts; written by the holder of the lock alone
    RUNS/ledger/NAME.lock       held while a process works on the run
    RUNS/ledger/plans/PLAN.json what a plan asked for, for `opendg bench status`
    RUNS/ledger/logs/           what the workers of the local runner said

The lock is the kernel's (flock): it ends with the process that holds it, however that ends, so that a dead runner
never blocks a run.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from opendg.bench.cells import Cell
from opendg.errors import OpenDGError
from opendg.runs.files import disk_error, make_folder, write_json
from opendg.runs.names import CHECKPOINTS, EVALUATIONS, checkpoint_step

PATIENCE = 1.0  # seconds: longer than another process needs to see whether a lock is held


@dataclass(frozen=True)
class History:
    """What the ledger says of one run."""

    cell: dict[str, Any]
    attempts: tuple[dict[str, Any], ...]

    @property
    def last(self) -> dict[str, Any]:
        return self.attempts[-1] if self.attempts else {}

    @property
    def error(self) -> str | None:
        """Of the last attempt, when it failed."""
        return str(self.last["error"]) if self.last.get("outcome") == "failed" else None

    @property
    def ended(self) -> int:
        """How many attempts have ended, and not just stopped."""
        return sum("ended" in attempt for attempt in self.attempts)

    @property
    def scores(self) -> list[str]:
        """Those that the run has been evaluated with: the last attempt that ended well knows all."""
        done = [attempt for attempt in self.attempts if attempt.get("outcome") == "done"]
        return list(done[-1]["scores"]) if done else []

    def has(self, scores: tuple[str, ...]) -> bool:
        """Whether an attempt ended well, and these scores are evaluated."""
        done = any(attempt.get("outcome") == "done" for attempt in self.attempts)
        return done and set(scores) <= set(self.scores)

    def failed_since(self, ended: int) -> bool:
        """Whether an attempt after the first so many was the last one, and failed."""
        return self.error is not None and self.ended > ended


class Ledger:
    def __init__(self, runs: Path) -> None:
        self.runs, self.folder = runs, runs / "ledger"

    def prepare(self) -> None:
        for name in ("plans", "logs"):
            make_folder(self.folder / name)

    @contextmanager
    def hold(self, name: str, patience: float = PATIENCE) -> Iterator[bool]:
        """Hold the run's lock for the block; False where another process has it."""
        lock = FileLock(self.folder / f"{name}.lock")
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            yield False
            return
        except OSError as error:
            raise disk_error(error, Path(lock.lock_file)) from error
        try:
            yield True
        finally:
            lock.release()

    def read(self, name: str) -> History:
        try:
            said = json.loads((self.folder / f"{name}.json").read_text())
            return History(said["cell"], tuple(said["attempts"]))
        except FileNotFoundError:
            return History({}, ())
        except (ValueError, KeyError, TypeError) as error:
            raise OpenDGError(f"The ledger of {name!r} is damaged ({error}): remove {name}.json from it.") from error

    def begin(self, name: str, cell: Cell) -> None:
        """A new attempt, by this process, from the newest checkpoint on. The caller holds the lock."""
        where = {"host": socket.gethostname(), "pid": os.getpid()}
        attempt = where | {"started": now(), "step": self.checkpoint(name)}
        self._write(name, cell.to_json(), (*self.read(name).attempts, attempt))

    def end(self, name: str, **facts: Any) -> None:
        """What came of the attempt that has not ended, if there is one. The caller holds the lock."""
        entry = self.read(name)
        before = entry.attempts if "ended" in entry.last else entry.attempts[:-1]
        open_one = {} if "ended" in entry.last else entry.last
        self._write(name, entry.cell, (*before, open_one | {"ended": now()} | facts))

    def _write(self, name: str, cell: dict[str, Any], attempts: tuple[dict[str, Any], ...]) -> None:
        write_json(self.folder / f"{name}.json", {"cell": cell, "attempts": list(attempts)})

    def state(self, name: str, scores: tuple[str, ...] = ()) -> str:
        """done, running, failed, interrupted (will go on from its checkpoint) or left."""
        entry = self.read(name)
        if entry.has(scores) and self.records(name):
            return "done"
        if self.is_held(name):
            return "running"
        if entry.error is not None:
            return "failed"
        return "interrupted" if entry.attempts or (self.runs / name).exists() else "left"

    def is_held(self, name: str) -> bool:
        """Whether a process works on the run. Nothing is written for it: the folder may be another user's."""
        path = self.folder / f"{name}.lock"
        try:
            import fcntl
        except ImportError:  # of Unix alone; elsewhere the lock itself must be tried
            if not path.exists():
                return False
            with self.hold(name, patience=0) as free:
                return not free
        try:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise disk_error(error, path) from error
        return False

    def records(self, name: str) -> list[Path]:
        """The evaluations of a run."""
        return sorted((self.runs / name).glob(EVALUATIONS))

    def steps(self, name: str) -> int:
        """How far the run's log has come."""
        try:
            lines = (self.runs / name / "log.jsonl").read_text().splitlines()
        except OSError:
            return 0
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError):
                continue
        return 0

    def logged_for(self, name: str) -> float:
        """Seconds from the begin of the attempt at work to the last line of its log, by the clock that dates the files.
        The clock of the machine that looks may be another."""
        begin, end = self.folder / f"{name}.json", self.runs / name / "log.jsonl"
        return end.stat().st_mtime - begin.stat().st_mtime

    def checkpoint(self, name: str) -> int:
        """The step of the run's newest checkpoint, 0 where there is none."""
        found = (self.runs / name / "checkpoints").glob(CHECKPOINTS)
        return max(map(checkpoint_step, found), default=0)

    def keep_plan(self, name: str, runs: dict[str, dict[str, Any]]) -> None:
        """What a plan asks for: by run the cell, its iterations and how many seconds it may take.

        What was asked for before stays, since each of several runners may be given a part of a plan; but for runs in
        whose place, by method, settings, target and seed, now stands another: the plan's recipe has changed.
        """
        with self.hold(f"plans/{name}", patience=10 * PATIENCE) as mine:
            if not mine:
                raise OpenDGError(f"Another process is at the ledger of {name} in {str(self.runs)!r}: try again.")
            taken = {_place(said["cell"]) for said in runs.values()}
            before = self.plans().get(name, {})
            kept = {run: said for run, said in before.items() if run not in runs and _place(said["cell"]) not in taken}
            write_json(self.folder / "plans" / f"{name}.json", kept | runs)

    def plans(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What `keep_plan` was given, by plan."""
        found = {}
        for path in sorted((self.folder / "plans").glob("*.json")):
            try:
                found[path.stem] = json.loads(path.read_text())
            except ValueError as error:
                raise OpenDGError(
                    f"What {path.stem!r} asked for is damaged in the ledger ({error}): remove {str(path)!r}, and the "
                    "next `opendg bench run` writes it anew."
                ) from error
        return found


def _place(cell: dict[str, Any]) -> str:
    """Where in a plan a cell stands, whatever the recipe, the backbone, the scores, and what is noted of them."""
    how = ("recipe", "base", "backbone", "weights", "scores", "notes")
    return json.dumps({key: value for key, value in cell.items() if key not in how}, sort_keys=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
