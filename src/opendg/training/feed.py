"""The feed: the images of each iteration, drawn ahead of time and gathered on the device.

Row numbers and augmentation parameters of a chunk of iterations are drawn on the host, each iteration from a generator
of its own (seed, step), so a resumed run draws the same. They lie in tables on the device; the step picks its line by
its own counter, so the loop never waits for the host. Training images lie on the device when they fit; else a thread
gathers the next chunk from the memory map while this one runs.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opendg.data.augment import Augment
from opendg.data.store import Store
from opendg.episodes import Pool
from opendg.methods.base import Method
from opendg.seeds import generator

GATHERED = 2**30  # bytes of the images of one chunk, at most, unless one iteration has more


class Batch(NamedTuple):
    images: Tensor  # uint8 (n, H, W, 3)
    labels: Tensor
    domains: Tensor
    positions: Tensor  # in the training set
    plan: Tensor  # augmentation parameters


class Feed:
    """`prepare(step)` on the host before each step, `batch(step)` on the device inside it."""

    def __init__(
        self, method: Method, pool: Pool, store: Store, rows: NDArray[np.int64], labels: NDArray[np.int64],
        domains: NDArray[np.int64], augment: Augment, batch: int, seed: int, device: torch.device,
        resident: bool, chunk: int = 64, rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        self.method, self.pool, self.store, self.rows = method, pool, store, rows
        self.augment, self.batch_size, self.seed, self.device = augment, batch, seed, device
        self.rank, self.world = rank, world
        self.labels = torch.from_numpy(labels).to(device)
        self.domains = torch.from_numpy(domains).to(device)
        self.images = store.tensor(rows, device=str(device)) if resident else None
        self.sizes = tuple(
            self._share(task.size) for task in method.tasks(pool, batch, 0, generator(seed, "episodes", 0))
        )
        n = sum(self.sizes)
        most = chunk if resident else min(chunk, max(1, GATHERED // (n * store.size[0] * store.size[1] * 3)))
        self.chunk = _largest_divisor(method.interval, most) if method.interval else most
        self.table = torch.zeros(self.chunk, n, dtype=torch.int64, device=device)
        self.plans = torch.zeros(self.chunk, n, augment.width, device=device)
        shape = (self.chunk, n, *store.size, 3)
        self.gathered = None if resident else torch.zeros(shape, dtype=torch.uint8, device=device)
        self.ahead: dict[int, Future[list[Tensor]]] = {}
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.current = -1

    def prepare(self, step: int) -> None:
        """Make sure that the tables hold this step."""
        number = step // self.chunk
        if number == self.current:
            return
        ready = self.ahead.pop(number).result() if number in self.ahead else self._draw(number)
        for table, values in zip(self._tables(), ready, strict=True):
            table.copy_(values, non_blocking=True)
        self.current = number
        if self.method.interval is None:
            self.ahead[number + 1] = self.worker.submit(self._draw, number + 1)

    def batch(self, step: Tensor) -> Batch:
        """The images of one iteration, on the device: no word from the host."""
        line = (step % self.chunk).view(1)
        rows = self.table.index_select(0, line).squeeze(0)
        plan = self.plans.index_select(0, line).squeeze(0)
        if self.images is not None:
            images = self.images.index_select(0, rows)
        else:
            assert self.gathered is not None
            images = self.gathered.index_select(0, line).squeeze(0)
        return Batch(images, self.labels.index_select(0, rows), self.domains.index_select(0, rows), rows, plan)

    def close(self) -> None:
        self.worker.shutdown(cancel_futures=True)

    def _tables(self) -> list[Tensor]:
        return [self.table, self.plans, *([] if self.gathered is None else [self.gathered])]

    def _share(self, size: int) -> int:
        return size * (self.rank + 1) // self.world - size * self.rank // self.world

    def _draw(self, number: int) -> list[Tensor]:
        """Rows, plans and (when they are not resident) images of one chunk, on the host."""
        steps = range(number * self.chunk, (number + 1) * self.chunk)
        drawn = [self._iteration(step) for step in steps]
        rows = np.stack([rows for rows, _ in drawn])
        chunk = [torch.from_numpy(rows), torch.from_numpy(np.stack([plan for _, plan in drawn]))]
        if self.images is None:
            images = self.store.tensor(self.rows[rows.ravel()])
            chunk.append(images.view(*rows.shape, *images.shape[1:]))
        return [tensor.pin_memory() for tensor in chunk] if self.device.type == "cuda" else chunk

    def _iteration(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """One episode for all processes, every task divided among them."""
        random = generator(self.seed, "episodes", step)
        drawn = [self.pool.draw(task, random) for task in self.method.tasks(self.pool, self.batch_size, step, random)]
        plan = self.augment.plan(generator(self.seed, "augment", step), sum(map(len, drawn)))
        mine = np.concatenate([
            start + np.arange(len(part) * self.rank // self.world, len(part) * (self.rank + 1) // self.world)
            for part, start in zip(drawn, np.cumsum([0, *map(len, drawn[:-1])]), strict=True)
        ])  # fmt: skip
        return np.concatenate(drawn)[mine], plan[mine]


def _largest_divisor(number: int, most: int) -> int:
    """Chunks end where `every` is called, so that no draw is older than what it changed."""
    return max(size for size in range(1, min(number, most) + 1) if number % size == 0)
