"""What the images of a domain are: one digest of all their bytes, after which the cache files are named.

The digest is of every image's key and bytes, in order. Where the images lie, in a folder or a tar, and when they were
written does not count: a copy has the digest of the original, and one other byte makes another digest.

All bytes must be read to know it, so it is remembered: in a small file in the cache, named after what the scan saw of
the images without opening them (keys, byte sizes, places in the tar, and two times of each file: of its last writing,
and of its last change of any kind, which no program can put back). An image rewritten in place is therefore read
again, though size and time of writing be the same. Two writings too close for the file system's clock would leave all
of these equal, so nothing is remembered of files changed in the last two seconds.

To lose or not to be able to write such a file costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from opendg.data.cache import cache_dir, replacing
from opendg.data.index import Index, Place
from opendg.data.progress import Bar
from opendg.data.workers import Workers

JOB = 256  # images a worker is given at a time
SETTLED = 2_000_000_000  # nanoseconds: the coarsest clock of a file system in use (FAT)


class Images:
    """The encoded images of one domain, in the order of the Index."""

    def __init__(self, index: Index, domain: int) -> None:
        self._index = index
        self._rows = np.flatnonzero(index.domain == domain)
        self._keys = [index.keys[row] for row in self._rows]
        self.title = index.domains[domain]
        self.readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", self.title)[:80]  # as part of a file name
        self._memo = cache_dir() / "images" / f"{self.readable}-{self._seen()}.content"
        self._digest = _remembered(self._memo)

    def __len__(self) -> int:
        return len(self._rows)

    def _seen(self) -> str:
        """A digest of what the scan saw."""
        digest = hashlib.sha256("\0".join(self._keys).encode())
        for column in (self._index.size, self._index.offset, self._index.modified):
            digest.update(column[self._rows].tobytes())
        return digest.hexdigest()[:20]

    def jobs(self, each: int) -> list[list[Place]]:
        places = [self._index.place(row) for row in self._rows.tolist()]
        return [places[start : start + each] for start in range(0, len(places), each)]

    def is_known(self) -> bool:
        """Whether `content` need read nothing."""
        return self._digest is not None

    def content(self, workers: Workers, bar: Bar) -> str:
        """The digest of all images, in hexadecimal digits."""
        if self._digest is None:
            begun, jobs = time.time_ns(), self.jobs(JOB)
            parts: list[list[bytes]] = [[]] * len(jobs)
            for number, part in workers.spread(_digests, jobs):
                parts[number] = part
                bar.advance(len(part))
            self._digest = self.digest(image for part in parts for image in part)
            if self._index.modified[self._rows, 1].max(initial=0) < begun - SETTLED:
                self._remember(self._digest)
        return self._digest

    def digest(self, images: Iterable[bytes]) -> str:
        """That of all from that of each, `image_digest`."""
        whole = hashlib.sha256()
        for key, image in zip(self._keys, images, strict=True):
            whole.update(key.encode() + b"\0" + image)
        return whole.hexdigest()

    def _remember(self, digest: str) -> None:
        with suppress(OSError), replacing(self._memo) as temporary:
            temporary.write_text(digest, encoding="ascii")

    def forget(self) -> None:
        self._digest = None
        with suppress(OSError):
            self._memo.unlink()


def image_digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _digests(places: list[Place]) -> list[bytes]:
    return [image_digest(place.read()) for place in places]


def _remembered(memo: Path) -> str | None:
    """What the file says, if it is there and whole."""
    try:
        text = memo.read_bytes().decode("ascii", errors="replace")
    except OSError:
        return None
    return text if re.fullmatch("[0-9a-f]{64}", text) else None
