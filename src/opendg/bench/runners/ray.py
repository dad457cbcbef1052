"""A Ray cluster: runs as tasks with a share of a GPU each, their results in a folder that all nodes see."""

from __future__ import annotations

import logging
import socket
import sys
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from importlib import import_module
from typing import Any

from opendg.bench.runners import Died
from opendg.bench.work import Order, Outcome
from opendg.errors import OpenDGError, counted

PATIENCE = 5.0  # seconds for a cluster to answer


class RayRunner:
    """Ray queues what does not fit yet. A task whose worker or node dies is given back as Died and submitted anew:
    the run goes on from its checkpoint, wherever it lands."""

    slots = sys.maxsize

    def __init__(self, address: str | None = None, jobs: int = 1, cpus: int = 1, device: str = "auto") -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError as error:
            raise OpenDGError("Ray is not installed: try pip install 'opendg[ray]', or leave --on ray out.") from error
        self._ray, self._own = ray, not ray.is_initialized()
        if self._own:
            answers(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise no_cluster(address) from error
        has = ray.cluster_resources()
        gpus = has.get("GPU", 0) if device != "cpu" else 0
        self._share = 1 / jobs if gpus else 0
        if fault := self._fault(cpus, jobs, gpus):
            self.close()
            raise OpenDGError(fault)
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": self._share, "max_retries": 0}
        self._task = ray.remote(_perform).options(**options)
        parts = [counted(int(has.get(kind, 0)), kind) for kind in ("CPU", "GPU")]
        self.told = f"a Ray cluster of {' and '.join(parts)}"

    def _fault(self, cpus: int, jobs: int, gpus: float) -> str | None:
        """More than any node has, which Ray would wait for for ever, or a share of no GPU."""
        most = int(max((node["Resources"].get("CPU", 0) for node in self._ray.nodes() if node["Alive"]), default=0))
        if cpus > most > 0:  # where no node has any yet, the cluster may be one that grows
            return f"No node of the Ray cluster has {cpus} CPUs: give --cpus {most} or fewer."
        if jobs > 1 and not gpus:
            return (
                f"--jobs {jobs} would be without effect, as no GPU of the Ray cluster is used: give --cpus, the CPUs "
                "of a run, instead."
            )
        return None

    def submit(self, order: Order) -> Future[Outcome]:
        answer: Future[Outcome] = Future()
        self._task.remote(order.to_json()).future().add_done_callback(partial(settle, answer))
        return answer

    def close(self) -> None:
        if self._own:
            self._ray.shutdown()


def settle(answer: Future[Outcome], ended: Future[dict[str, Any]]) -> None:
    """Give what a task ended with to who waits for it. What is raised here nobody hears."""
    error = ended.exception()
    if error is None:
        answer.set_result(Outcome(**ended.result()))
    else:
        words = [type(error).__name__, *str(error).strip().splitlines()[:1]]
        answer.set_exception(Died(": ".join(words)))


def answers(address: str | None) -> None:
    """Refuse HOST:PORT where nothing listens: Ray itself goes on trying for minutes, and says so at length."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
        except (OSError, OverflowError) as error:
            raise no_cluster(address) from error


def no_cluster(address: str | None) -> OpenDGError:
    return OpenDGError(
        f"No Ray cluster answers at {address!r}: start one with `ray start --head` and see `ray status`."
    )


def _perform(order: dict[str, Any]) -> dict[str, Any]:
    """What a worker of the cluster does: the import is there, since the function travels by its name."""
    from opendg.bench.work import perform

    return asdict(perform(Order.from_json(order)))
