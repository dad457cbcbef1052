"""This machine: one or several runs at once on each GPU, or on the CPU.

Every slot has a process of its own that is given one order after the other, as a line of JSON on its standard input. A
crash costs the run it happened in and no other. The processes end when the runner does, however it ends.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from opendg.bench.ledger import Ledger
from opendg.bench.runners import Died
from opendg.bench.work import Order, Outcome
from opendg.data.workers import cores
from opendg.errors import counted


class LocalRunner:
    def __init__(self, runs: Path, jobs: int = 1, device: str = "auto") -> None:
        gpus = visible_gpus() if device != "cpu" else []
        places = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}]
        self.slots = jobs * len(places)
        threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, cores() // self.slots)))}
        logs = Ledger(runs).folder / "logs"
        self._slots = [Slot(number, place | threads, logs) for number, place in enumerate(places * jobs)]
        self._free, self._lock = list(self._slots), threading.Lock()
        self._threads = ThreadPoolExecutor(self.slots)
        where = counted(len(gpus), "GPU") if gpus else "the CPU"
        self.told = f"{where}, {counted(self.slots, 'run')} at once"

    def submit(self, order: Order) -> Future[Outcome]:
        return self._threads.submit(self._ask, order)

    def _ask(self, order: Order) -> Outcome:
        slot = self._take(order.cell.kind)
        try:
            return slot.ask(order)
        finally:
            with self._lock:
                self._free.append(slot)

    def _take(self, kind: str) -> Slot:
        """A free slot, one that was at this kind of run if there is any; there are as many slots as threads."""
        with self._lock:
            slot = min(self._free, key=lambda slot: (slot.kind != kind, slot.kind is not None))
            self._free.remove(slot)
            slot.kind = kind
            return slot

    def close(self) -> None:
        for slot in self._slots:
            slot.stop()
        self._threads.shutdown(cancel_futures=True)
        for slot in self._slots:
            if slot.worker is not None:
                _bury(slot.worker)


class Slot:
    """One process at a time, started when there is work, and anew after a failure: nothing of it is left in memory."""

    def __init__(self, number: int, environment: dict[str, str], logs: Path) -> None:
        self.environment = environment
        self.log = logs / f"{socket.gethostname()}-{os.getpid()}-{number}.log"
        self.worker: subprocess.Popen[str] | None = None
        self.kind: str | None = None  # of the last run
        self.closed = threading.Event()

    def ask(self, order: Order) -> Outcome:
        if self.closed.is_set():
            raise Died("the runner was stopped")
        if self.worker is None:
            self.worker = self._start()
            if self.closed.is_set():  # meanwhile, when there was no process yet to be ended
                self.worker.kill()
        worker = self.worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            worker.stdin.write(json.dumps(order.to_json()) + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        if not answer:
            self.worker = None
            raise Died(self._epitaph(_bury(worker)))
        outcome = Outcome(**json.loads(answer))
        if outcome.state == "failed":
            self.worker = None
            _bury(worker)
        return outcome

    def _start(self) -> subprocess.Popen[str]:
        path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        environment = os.environ | self.environment | {"PYTHONPATH": path}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "opendg.bench.runners.child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True,
            )  # fmt: skip

    def _epitaph(self, code: int) -> str:
        """How the process ended, with the last line that it said."""
        with self.log.open(errors="replace") as log:
            last = "".join(deque(log, maxlen=1)).strip()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"the process {how}" + (f" after saying: {last}" if last else "")

    def stop(self) -> None:
        """End the process: at once, for what it has written can always be taken up again."""
        self.closed.set()
        if (worker := self.worker) is not None:
            worker.kill()  # `ask` waits for an answer in another thread, and buries it


def _bury(worker: subprocess.Popen[str]) -> int:
    """End a process if it has not ended, and give its exit code."""
    with suppress(OSError):  # a pipe to a dead process may still hold what was written to it
        worker.stdin.close()  # type: ignore[union-attr]
    try:
        code = worker.wait(timeout=5)
    except subprocess.TimeoutExpired:
        worker.kill()
        code = worker.wait()
    worker.stdout.close()  # type: ignore[union-attr]
    return code


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    return gpu_names(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.device_count())


def gpu_names(said: str | None, count: int) -> list[str]:
    """Numbers or ids as the variable has them; without it the numbers of all."""
    return [name.strip() for name in said.split(",")][:count] if said else [str(number) for number in range(count)]
