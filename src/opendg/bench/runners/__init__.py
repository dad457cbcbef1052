"""Where the runs of a grid are made: this machine, or a Ray cluster."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from opendg.bench.work import Order, Outcome


class Died(Exception):
    """The process or the machine that worked on a run is gone; its checkpoints are not."""


class Runner(Protocol):
    """Takes orders. A future ends with an Outcome, or with Died when the worker did not live to give one."""

    slots: int  # how many orders it can use at once
    told: str  # where the runs are made, in words

    def submit(self, order: Order) -> Future[Outcome]: ...

    def close(self) -> None:
        """End what still runs. Interrupted runs go on from their checkpoints the next time."""
