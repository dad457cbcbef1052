"""Episodes: which images make the tasks of one iteration. Row numbers only, no pixels, until a batch is gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Task:
    """`size` images of some source domains x some known classes (numbers, not names), shared evenly by the domains."""

    domains: tuple[int, ...]
    classes: tuple[int, ...]
    size: int


class Pool:
    """The training images by (source domain, known class). Answers with positions 0..n-1 in the training set."""

    def __init__(self, domain: NDArray[np.int64], label: NDArray[np.int64], domains: int, classes: int) -> None:
        self.domains, self.classes = domains, classes
        self.cells = [[np.flatnonzero((domain == d) & (label == c)) for c in range(classes)] for d in range(domains)]
        self.counts = np.array([[len(cell) for cell in row] for row in self.cells])

    def can_draw(self, task: Task) -> bool:
        """Whether each of the task's domains has an image of one of its classes."""
        return bool((self.counts[np.ix_(task.domains, task.classes)].sum(axis=1) > 0).all())

    def draw(self, task: Task, random: np.random.Generator) -> NDArray[np.int64]:
        """A class at random for each image, then an image of it: without replacement while the cell lasts.

        Empty cells are passed over; a domain that has none of the classes gives images of all its classes.
        """
        shares = np.full(len(task.domains), task.size // len(task.domains))
        shares[random.permutation(len(shares))[: task.size - shares.sum()]] += 1
        given = zip(task.domains, shares.tolist(), strict=True)
        return np.concatenate([self._draw(d, task.classes, n, random) for d, n in given if n])

    def _draw(self, domain: int, classes: Sequence[int], size: int, random: np.random.Generator) -> NDArray[np.int64]:
        filled = [c for c in classes if self.counts[domain, c]] or np.flatnonzero(self.counts[domain]).tolist()
        picked = np.bincount(random.integers(len(filled), size=size), minlength=len(filled))
        drawn = [
            cell[random.choice(len(cell), n, replace=n > len(cell))]
            for cell, n in zip((self.cells[domain][c] for c in filled), picked, strict=True)
            if n
        ]
        return np.concatenate(drawn)


@dataclass(frozen=True)
class Episode:
    """The tasks of one iteration as tensors on the device. `sizes` are fixed for the whole run.

    `batch` is B, the number that divides every sum of per-image losses: a task of B images counts as its mean.
    """

    images: Tensor  # (n, 3, h, w) augmented and normalised
    labels: Tensor  # (n,) numbers among the known classes
    domains: Tensor  # (n,) numbers among the source domains
    positions: Tensor  # (n,) where the images stand in the training set: for banks and cluster labels
    sizes: tuple[int, ...]
    batch: int

    def tasks(self, first: int, last: int) -> Episode:
        """The part that holds tasks first..last-1."""
        a, b = sum(self.sizes[:first]), sum(self.sizes[:last])
        return Episode(
            self.images[a:b], self.labels[a:b], self.domains[a:b], self.positions[a:b],
            sizes=self.sizes[first:last], batch=self.batch,
        )  # fmt: skip

    def each(self) -> list[Episode]:
        """Every task as an episode of its own."""
        return [self.tasks(i, i + 1) for i in range(len(self.sizes))]


def class_groups(classes: int) -> list[tuple[int, ...]]:
    """Consecutive classes in groups of (K - 1) // 10 + 1: each class on its own up to ten classes."""
    length = (classes - 1) // 10 + 1
    return [tuple(range(start, min(start + length, classes))) for start in range(0, classes, length)]


def split_classes(classes: int, random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """C1 and C2: C2 takes one group in three, rounded up, at random; C1 the others. Of two classes each gets one."""
    groups = class_groups(classes)
    held = -(-len(groups) // 3)
    chosen = set(random.permutation(len(groups))[:held].tolist())
    first = [c for g, group in enumerate(groups) if g not in chosen for c in group]
    second = [c for g, group in enumerate(groups) if g in chosen for c in group]
    return tuple(first), tuple(second)
