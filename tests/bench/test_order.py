"""In which order the cells of a grid are given to workers, and to which."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from opendg.bench.cells import Cell
from opendg.bench.grid import Grid
from opendg.bench.runners import Died
from opendg.bench.runners.local import LocalRunner, Slot
from opendg.bench.work import Order, Outcome, Site

SECONDS = {"erm": 0.1, "medic": 0.5}


class Workers:
    """Workers that need their time and train nothing."""

    told = "nowhere"

    def __init__(self, slots: int) -> None:
        self.slots, self.orders = slots, list[Order]()
        self.threads = ThreadPoolExecutor(slots)

    def submit(self, order: Order) -> Future[Outcome]:
        self.orders.append(order)
        return self.threads.submit(self.work, order)

    def work(self, order: Order) -> Outcome:
        time.sleep(SECONDS[order.cell.method])
        return Outcome("done")

    def close(self) -> None:
        self.threads.shutdown()


def ordered(tmp_path: Path, slots: int) -> list[Order]:
    cells = {f"{method}-{seed}": Cell(method, "signs", "wood", seed) for method in SECONDS for seed in range(3)}
    workers = Workers(slots)
    states = Grid(cells, Site(str(tmp_path)), workers).run()
    workers.close()
    assert states == dict.fromkeys(cells, "done")
    return workers.orders


def test_a_worker_stays_with_a_kind_of_run(tmp_path: Path) -> None:
    """It has compiled its step; the workers begin with different kinds, and help out at the end."""
    orders = ordered(tmp_path, slots=2)
    assert [order.cell.method for order in orders] == ["erm", "medic", "erm", "erm", "medic", "medic"]
    assert [order.cell.seed for order in orders] == [0, 0, 1, 2, 1, 2]
    assert {order.runs for order in orders} == {3}


def test_one_worker_makes_one_kind_after_the_other(tmp_path: Path) -> None:
    assert [order.name for order in ordered(tmp_path, slots=1)] == [
        "erm-0", "erm-1", "erm-2", "medic-0", "medic-1", "medic-2",
    ]  # fmt: skip


def test_workers_for_every_run_see_one_run_each(tmp_path: Path) -> None:
    assert {order.runs for order in ordered(tmp_path, slots=12)} == {1}


def test_an_order_goes_to_the_process_that_was_at_its_kind(tmp_path: Path) -> None:
    runner = LocalRunner(tmp_path, jobs=3, device="cpu")
    first, second = runner._take("one"), runner._take("two")
    assert first is not second
    runner._free += [first, second]
    assert runner._take("two") is second
    fresh = runner._take("three")
    assert fresh not in (first, second), "an idle one before one that may be of use"
    assert runner._take("one") is first
    runner.close()


class StoppedEarly(Slot):
    """Stopped just before it has a process, as when Ctrl-C comes then."""

    def _start(self) -> subprocess.Popen[str]:
        self.stop()
        return super()._start()


def test_a_process_that_starts_while_the_runner_stops_does_no_work(tmp_path: Path) -> None:
    slot = StoppedEarly(0, {}, tmp_path / "logs")
    with pytest.raises(Died):
        slot.ask(Order("erm-0", Cell("erm", str(tmp_path), "a"), Site(str(tmp_path / "runs"))))
    assert not (tmp_path / "runs").exists()
