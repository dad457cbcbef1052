"""Cache files of decoded images: one for each domain, memory-mapped.

A file holds n x H x W x 3 bytes of pixels and then n bytes that are 1 for a broken image (whose pixels are 0). Its name
has the domain, a digest and H x W. The digest is of the images' keys, byte sizes, places and modification times, of the
bytes of a few of them, and of the decoder's version: data that change get a new file, a faithful copy shares the old.

A file appears whole or not at all: it is written under another name, then renamed. A lock that ends with the
process that holds it lets the work be done once when several processes ask for it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from threading import get_ident

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from opendg.data.cache import cache_dir
from opendg.data.decode import DECODER, BrokenImage, decode, image_size
from opendg.data.index import Index, Place
from opendg.data.progress import Bar
from opendg.data.workers import Workers
from opendg.errors import OpenDGError

SAMPLE = 8  # images whose bytes are in the digest
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

    def __init__(self, index: Index, domain: int) -> None:
        self._index = index
        self._rows = np.flatnonzero(index.domain == domain)
        self.title = index.domains[domain]
        readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{index.dataset}-{self.title}")[:80]
        self._stem = f"{readable}-{self._digest()}"

    def __len__(self) -> int:
        return len(self._rows)

    def _digest(self) -> str:
        index, rows = self._index, self._rows
        digest = hashlib.sha256(DECODER.encode())
        digest.update("\0".join(index.keys[row] for row in rows).encode())
        for column in (index.size, index.offset, index.modified):
            digest.update(column[rows].tobytes())
        for row in rows[np.linspace(0, len(rows) - 1, num=min(SAMPLE, len(rows)), dtype=np.int64)]:
            digest.update(index.read(int(row)))
        return digest.hexdigest()[:20]

    def _jobs(self, each: int) -> list[list[Place]]:
        places = [self._index.place(row) for row in self._rows.tolist()]
        return [places[start : start + each] for start in range(0, len(places), each)]

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
            jobs = self._jobs(HEADERS)
            parts: list[NDArray[np.int32]] = [np.zeros((0, 2), np.int32)] * len(jobs)
            for number, part in workers.spread(header_sizes, jobs):
                parts[number] = part
                bar.advance(len(part))
            path = self._sizes_file
            with _explained(path.parent, len(self) * 8), _replacing(path) as temporary:
                temporary.write_bytes(np.concatenate(parts).tobytes())
        return np.frombuffer(self._sizes_file.read_bytes(), dtype=np.int32).reshape(-1, 2)

    def pixels(self, size: tuple[int, int], workers: Workers, bar: Bar) -> Domain:
        """The images at that size (H, W), decoded now when they have not been before."""
        path, n = self._pixels_file(size), len(self)
        if not self.has_pixels(size):
            with _explained(path.parent, self._length(size)), _locked(path, self.title, bar):
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
        broken = np.zeros(len(self), dtype=np.uint8)
        with _replacing(path) as temporary:
            with temporary.open("wb") as file:
                file.truncate(self._length(size))
            jobs = [_Part(temporary, number * JOB * image, size, some) for number, some in enumerate(self._jobs(JOB))]
            for number, bad in workers.spread(_decode_part, jobs):
                broken[number * JOB + np.array(bad, dtype=np.int64)] = 1
                bar.advance(len(jobs[number].places))
            with temporary.open("r+b") as file:
                file.seek(len(self) * image)
                file.write(broken.tobytes())
                file.flush()
                os.fsync(file.fileno())


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


def _decode_part(part: _Part) -> list[int]:
    """Decode and write; the numbers of the broken ones."""
    written, broken = BytesIO(), []
    for number, place in enumerate(part.places):
        try:
            written.write(decode(place.read(), part.size, place.key).data)
        except BrokenImage:
            written.write(bytes(part.size[0] * part.size[1] * 3))
            broken.append(number)
    with part.file.open("r+b", buffering=0) as file:
        file.seek(part.start)
        remaining = written.getbuffer()
        while len(remaining):
            remaining = remaining[file.write(remaining) :]
    return broken


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well, and goes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


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
