"""A survey of given images, with no network behind it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from opendg.episodes import Pool, Task
from opendg.predictions import Predictions


class Images:
    """The images, all of one domain and one class unless `domains` says it."""

    def __init__(self, images: Tensor, domains: list[int] | None = None) -> None:
        self.given = images
        of = np.array(domains or [0] * len(images), dtype=np.int64)
        self.pool = Pool(of, np.zeros_like(of), len(np.unique(of)), 1)

    def images(self, batch: int = 256) -> Iterator[Tensor]:
        yield from self.given.split(batch)

    def draw(self, task: Task, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(self.pool.draw(task, random))
        return self.given[rows], torch.zeros(len(rows), dtype=torch.int64)

    def train(self) -> Predictions:
        raise NotImplementedError

    val = train
