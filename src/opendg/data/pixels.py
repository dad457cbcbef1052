"""Cache files of decoded images: one for each domain, memory-mapped.

A file holds n x H x W x 3 bytes of pixels and then n bytes that are 1 for a broken image (whose pixels are 0). Its name
has the domain, a digest and H x W. The digest is of the content, the bytes of every image (`content.py`), and of the
decoder's version: data that change get a new file, and a copy shares the old one wherever it lies. While they are
decoded the bytes are digested once more, so that no file holds other images than its name says.

A file appears whole or not at all: it is written under another name, then renamed. A lock that ends with the
process that holds it lets the work be done once when several processes ask for it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from opendg.data.cache import cache_dir, replacing
from opendg.data.content import Images, image_digest
from opendg.data.decode import DECODER, BrokenImage, decode, image_size
from opendg.data.index import Place
from opendg.data.progress import Bar
from opendg.data.workers import Workers
from opendg.errors import OpenDGError

JOB, HEADERS = 64, 256  # images a worker is given at a time, to decode and to look at their headers


@dataclass(frozen=True)
class Domain:
    """The decoded images of one domain, in the order of the Index."""

    images: NDArray[np.uint8]  # (n, H, W, 3), mapped
    broken: NDArray[np.bool_]  # (n,)


@dataclass(frozen=True)
class _Part:
    """A job: some images, decoded into a file at their place."""

    file: Path
    start: int  # byte in the file
    size: tuple[int, int]
    places: list[Place]


class DomainCache:
    """What the cache holds, or can be made to hold, of one domain."""

    def __init__(self, images: Images, content: str) -> None:
        self._images, self._content = images, content
        digest = hashlib.sha256(f"{DECODER}\0{content}".encode()).hexdigest()
        self._stem = f"{images.readable}-{digest[:20]}"

    def __len__(self) -> int:
        return len(self._images)

    @property
    def _sizes_file(self) -> Path:
        return cache_dir() / "images" / f"{self._stem}.sizes"

    def _pixels_file(self, size: tuple[int, int]) -> Path:
        return cache_dir() / "images" / f"{self._stem}-{size[0]}x{size[1]}.pixels"

    def _length(self, size: tuple[int, int]) -> int:
        return len(self) * (size[0] * size[1] * 3 + 1)

    def missing(self, size: tuple[int, int]) -> int:
        """Bytes still to be written for that size."""
        return 0 if self.has_pixels(size) else self._length(size)

    def has_sizes(self) -> bool:
        return _whole(self._sizes_file, len(self) * 8)

    def has_pixels(self, size: tuple[int, int]) -> bool:
        return _whole(self._pixels_file(size), self._length(size))

    def sizes(self, workers: Workers, bar: Bar) -> NDArray[np.int32]:
        """(H, W) of each image by its header, (0, 0) where that is broken."""
        if not self.has_sizes():
            jobs = self._images.jobs(HEADERS)
            parts: list[NDArray[np.int32]] = [np.zeros((0, 2), np.int32)] * len(jobs)
            for number, part in workers.spread(header_sizes, jobs):
                parts[number] = part
                bar.advance(len(part))
            path = self._sizes_file
            with _explained(path.parent, len(self) * 8), replacing(path) as temporary:
                temporary.write_bytes(np.concatenate(parts).tobytes())
        return np.frombuffer(self._sizes_file.read_bytes(), dtype=np.int32).reshape(-1, 2)

    def pixels(self, size: tuple[int, int], workers: Workers, bar: Bar) -> Domain:
        """The images at that size (H, W), decoded now when they have not been before."""
        path, n = self._pixels_file(size), len(self)
        if not self.has_pixels(size):
            with _explained(path.parent, self._length(size)), _locked(path, self._images.title, bar):
                if self.has_pixels(size):  # made by the process that held the lock
                    bar.advance(n)
                else:
                    self._build(path, size, workers, bar)
        data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)  # which is quicker to index
        return Domain(data[:-n].reshape(n, *size, 3), np.array(data[-n:], dtype=bool))

    def _build(self, path: Path, size: tuple[int, int], workers: Workers, bar: Bar) -> None:
        for left in path.parent.glob(f"{path.name}.*.part"):
            left.unlink()  # of a process that was killed: whoever holds the lock is alone
        image = size[0] * size[1] * 3
        broken, digests = np.zeros(len(self), dtype=np.uint8), [b""] * len(self)
        with replacing(path) as temporary:
            with temporary.open("wb") as file:
                file.truncate(self._length(size))
            groups = self._images.jobs(JOB)
            jobs = [_Part(temporary, number * JOB * image, size, some) for number, some in enumerate(groups)]
            for number, (bad, seen) in workers.spread(_decode_part, jobs):
                broken[number * JOB + np.array(bad, dtype=np.int64)] = 1
                digests[number * JOB : number * JOB + len(seen)] = seen
                bar.advance(len(seen))
            self._refuse_other(digests)
            with temporary.open("r+b") as file:
                file.seek(len(self) * image)
                file.write(broken.tobytes())
                file.flush()
                os.fsync(file.fileno())

    def _refuse_other(self, digests: list[bytes]) -> None:
        """An error, unless the decoded bytes are those that the file is named after."""
        if self._images.digest(digests) != self._content:
            self._images.forget()
            self._sizes_file.unlink(missing_ok=True)
            raise OpenDGError(
                f"Images of {self._images.title} changed while they were decoded: wait until nothing writes to them, "
                "then try again."
            )


def check_room(caches: Iterable[DomainCache], size: tuple[int, int]) -> None:
    """Whether the disk has room for what is missing, before the first image is decoded."""
    need = sum(cache.missing(size) for cache in caches)
    if not need:
        return
    folder = cache_dir() / "images"
    with _explained(folder, need):
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < need:
            raise OSError(errno.ENOSPC, f"{_gigabytes(free)} are free")


def header_sizes(places: list[Place]) -> NDArray[np.int32]:
    sizes = np.zeros((len(places), 2), dtype=np.int32)
    for number, place in enumerate(places):
        try:
            sizes[number] = image_size(place.read(), place.key)
        except BrokenImage:
            continue
    return sizes


def _whole(path: Path, length: int) -> bool:
    return path.is_file() and path.stat().st_size == length


def _decode_part(part: _Part) -> tuple[list[int], list[bytes]]:
    """Decode and write; the numbers of the broken ones, and the digest of each."""
    written, broken, digests = BytesIO(), [], []
    for number, place in enumerate(part.places):
        data = place.read()
        digests.append(image_digest(data))
        try:
            written.write(decode(data, part.size, place.key).data)
        except BrokenImage:
            written.write(bytes(part.size[0] * part.size[1] * 3))
            broken.append(number)
    with part.file.open("r+b", buffering=0) as file:
        file.seek(part.start)
        remaining = written.getbuffer()
        while len(remaining):
            remaining = remaining[file.write(remaining) :]
    return broken, digests


@contextmanager
def _locked(path: Path, title: str, bar: Bar) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        bar.say(f"Waiting for another process that decodes {title}")
        lock.acquire()
    try:
        bar.say("Decoding images")
        yield
    finally:
        lock.release()


@contextmanager
def _explained(folder: Path, length: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpenDGError(
            f"The decoded images ({_gigabytes(length)}) cannot be written to {folder} ({error.strerror}): make "
            "room there, or name another folder in the environment variable OPENDG_CACHE."
        ) from error


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
