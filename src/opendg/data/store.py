"""The Store: decoded images, asked by row numbers.

Images are decoded once, into a cache file for each domain (`pixels.py`), which later opens map into memory. So
training, which opens the rows of the source domains, touches no file of the target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opendg.data.content import Images
from opendg.data.decode import BrokenImage, decode
from opendg.data.index import Index, Rows
from opendg.data.pixels import Domain, DomainCache, check_room, header_sizes
from opendg.data.progress import bar
from opendg.data.workers import Workers
from opendg.errors import OpenDGError

if TYPE_CHECKING:
    import torch

INPUT = (224, 224)  # of most networks
CHUNK = 256  # images on their way to a device


class Store:
    """Images of an Index as uint8, all of one size. `rows` are those that can be asked for."""

    def __init__(
        self, index: Index, rows: Rows, skipped: list[str], size: tuple[int, int], domains: dict[int, Domain]
    ) -> None:
        self.rows = rows
        self.skipped = skipped  # keys of the broken images that were asked for
        self.size = size  # (H, W)
        self._domains = domains
        self._domain = index.domain
        self._position = np.full(len(index), -1, dtype=np.int64)  # in the file of its domain; -1: not to be had
        for domain in domains:
            inside = np.flatnonzero(index.domain == domain)
            self._position[inside] = np.arange(len(inside))
        closed = np.ones(len(index), dtype=bool)
        closed[rows] = False
        self._position[closed] = -1

    @classmethod
    def open(
        cls,
        index: Index,
        rows: Rows,
        on_bad_image: str = "error",
        progress: bool = True,
        size: tuple[int, int] | None = None,
        shown: tuple[int, int] = INPUT,
    ) -> Store:
        """The images of `rows`, decoding those domains that have not been yet.

        They are kept at `size` = (H, W). Where none is given, at their own size when all are alike and no larger than
        twice what is `shown` to the network, else at 8/7 of that: 256 x 256 for a network that sees 224 x 224.
        A broken image among `rows` is an error, or with "skip" is left out of `rows` and named in `skipped`.
        """
        rows = np.asarray(rows, dtype=np.int64)
        with Workers() as workers:
            caches = _caches(index, rows, workers, progress)
            size = size or _own_size(index, rows, caches, workers, progress, shown) or _with_margin(shown)
            todo = sum(len(cache) for cache in caches.values() if not cache.has_pixels(size))
            check_room(caches.values(), size)
            with bar("Decoding images", todo, progress) as decoded:
                domains = {number: cache.pixels(size, workers, decoded) for number, cache in caches.items()}
        broken = np.zeros(len(index), dtype=bool)
        for number, domain in domains.items():
            broken[index.domain == number] = domain.broken
        bad = rows[broken[rows]]
        if len(bad) and on_bad_image != "skip":
            raise _refusal(index, bad)
        if len(bad) == len(rows) > 0:
            raise OpenDGError(f"All {len(rows)} images are broken, the first of them {index.keys[bad[0]]}.")
        return cls(index, rows[~broken[rows]], [index.keys[row] for row in bad], size, domains)

    def tensor(self, rows: Rows, device: str | torch.device = "cpu") -> torch.Tensor:
        """(n, H, W, 3), copied straight from the map."""
        import torch

        rows = np.asarray(rows, dtype=np.int64)
        images = torch.empty((len(rows), *self.size, 3), dtype=torch.uint8, device=device)
        if images.device.type == "cpu":
            self._copy(rows, images.numpy())
            return images
        pinned = torch.cuda.is_available()
        chunk = torch.empty((min(CHUNK, len(rows)), *self.size, 3), dtype=torch.uint8, pin_memory=pinned)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            self._copy(some, chunk.numpy()[: len(some)])
            images[start : start + CHUNK].copy_(chunk[: len(some)])
        return images

    def _copy(self, rows: Rows, out: NDArray[np.uint8]) -> None:
        position = self._position[rows]
        if (position < 0).any():
            raise ValueError("asked the store for rows that it was not opened with")
        images = {number: domain.images for number, domain in self._domains.items()}
        places = zip(self._domain[rows].tolist(), position.tolist(), strict=True)
        for slot, (domain, place) in enumerate(places):  # image by image: an array of rows would copy them twice
            out[slot] = images[domain][place]


def _caches(index: Index, rows: Rows, workers: Workers, progress: bool) -> dict[int, DomainCache]:
    """For each domain that `rows` are of."""
    domains = {int(number): Images(index, int(number)) for number in np.unique(index.domain[rows])}
    todo = sum(len(images) for images in domains.values() if not images.is_known())
    with bar("Looking at images", todo, progress) as shown:
        return {number: DomainCache(images, images.content(workers, shown)) for number, images in domains.items()}


def _own_size(
    index: Index, rows: Rows, caches: dict[int, DomainCache], workers: Workers, progress: bool, shown: tuple[int, int]
) -> tuple[int, int] | None:
    """That of the images when all are alike and not too large. Those without a readable header have no say."""
    few = rows[np.linspace(0, len(rows) - 1, num=min(64, len(rows)), dtype=np.int64)] if len(rows) else rows
    size = _alike(header_sizes([index.place(int(row)) for row in few]))
    if size is None or size[0] > 2 * shown[0] or size[1] > 2 * shown[1]:
        return None  # seen by 64 of them: no need to look at all
    all_sizes = np.zeros((len(index), 2), dtype=np.int32)
    todo = sum(len(cache) for cache in caches.values() if not cache.has_sizes())
    with bar("Looking at image sizes", todo, progress) as seen:
        for number, cache in caches.items():
            all_sizes[index.domain == number] = cache.sizes(workers, seen)
    return _alike(all_sizes[rows])


def _with_margin(shown: tuple[int, int]) -> tuple[int, int]:
    """A little more than the network sees, for the crops of training."""
    return -(-8 * shown[0] // 7), -(-8 * shown[1] // 7)


def _alike(sizes: NDArray[np.int32]) -> tuple[int, int] | None:
    different = np.unique(sizes[sizes.any(axis=1)], axis=0)
    return (int(different[0, 0]), int(different[0, 1])) if len(different) == 1 else None


def _refusal(index: Index, bad: Rows) -> OpenDGError:
    """The error for broken images: the first by name and reason, the others by number."""
    try:
        decode(index.read(int(bad[0])), None, index.keys[bad[0]])
        reason = "as it was when it was decoded"
    except BrokenImage as error:
        reason = error.reason
    more = f", the first of {len(bad)} such" if len(bad) > 1 else ""
    return OpenDGError(
        f"The image {index.keys[bad[0]]} is broken ({reason}){more}: replace what is broken, or leave it out with "
        "--on-bad-image skip."
    )
