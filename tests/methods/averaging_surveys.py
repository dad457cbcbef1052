"""A survey of given images, with no network behind it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from opendg.predictions import Predictions


class Images:
    def __init__(self, images: Tensor) -> None:
        self.given = images

    def images(self, batch: int = 256) -> Iterator[Tensor]:
        yield from self.given.split(batch)

    def train(self) -> Predictions:
        raise NotImplementedError

    val = train
