"""Cache files of decoded images: one for each domain, memory-mapped.

A file holds n x H x W x 3 bytes of pixels and then n bytes that are 1 for a broken image (whose pixels are 0). Its name has
the domain, a digest and H x W. The digest is of the images' keys, byte sizes, places and modification times, of the bytes
of a few of them, and of the decoder's version: data that change get a new file, a copy elsewhere shares the old one.

A file appears whole or not at all: it is written under another name, then renamed. A lock that ends with the
process that holds it lets the work be done once when several processes ask for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from opendg.data.cache import cache_dir
from opendg.data.decode import DECODER, BrokenImage, decode, image_size
from opendg.data.index import Index, Place
from opendg.data.progress import bar
from opendg.data.workers import Workers
from opendg.errors import OpenDGError

SAMPLE = 8  # images whose bytes are in the digest
JOB = 64  # images a worker is given at a time


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


def opened(index: Index, domain: int, size: tuple[int, int], workers: Workers, progress: bool) -> Domain:
    """The domain at that size (H, W), from its cache file, which is made when it is not there."""
    places = _places(index, domain)
    path = _folder() / f"{_name(index, domain, places)}-{size[0]}x{size[1]}.pixels"
    length = len(places) * (size[0] * size[1] * 3 + 1)
    if not _whole(path, length):
        with _explained(path, length), _locked(path, index.domains[domain], progress):
            if not _whole(path, length):
                _build(path, length, places, size, workers, f"Decoding {index.domains[domain]}", progress)
    data = np.memmap(path, dtype=np.uint8, mode="r")
    images, broken = data[: -len(places)], data[-len(places) :]
    return Domain(images.reshape(len(places), *size, 3), np.array(broken, dtype=bool))


def sizes(index: Index, domain: int, workers: Workers, progress: bool) -> NDArray[np.int32]:
    """(H, W) of each image of the domain by its header, (0, 0) where that is broken; kept in the cache too."""
    places = _places(index, domain)
    path = _folder() / f"{_name(index, domain, places)}.sizes"
    if not _whole(path, len(places) * 8):
        jobs = [places[start : start + 4 * JOB] for start in range(0, len(places), 4 * JOB)]
        parts: list[NDArray[np.int32]] = [np.zeros((0, 2), np.int32)] * len(jobs)
        with bar(f"Looking at {index.domains[domain]}", len(places), progress) as advance:
            for number, part in workers.spread(header_sizes, jobs):
                parts[number] = part
                advance(len(part))
        with _explained(path, len(places) * 8), _replacing(path) as temporary:
            temporary.write_bytes(np.concatenate(parts).tobytes())
    return np.frombuffer(path.read_bytes(), dtype=np.int32).reshape(-1, 2)


def header_sizes(places: list[Place]) -> NDArray[np.int32]:
    sizes = np.zeros((len(places), 2), dtype=np.int32)
    for number, place in enumerate(places):
        try:
            sizes[number] = image_size(place.read(), place.key)
        except BrokenImage:
            continue
    return sizes


def _places(index: Index, domain: int) -> list[Place]:
    return [index.place(int(row)) for row in np.flatnonzero(index.domain == domain)]


def _folder() -> Path:
    return cache_dir() / "images"


def _name(index: Index, domain: int, places: list[Place]) -> str:
    rows = index.domain == domain
    digest = hashlib.sha256(DECODER.encode())
    digest.update("\0".join(place.key for place in places).encode())
    for column in (index.size, index.offset, index.modified):
        digest.update(column[rows].tobytes())
    for number in np.linspace(0, len(places) - 1, num=min(SAMPLE, len(places)), dtype=int):
        digest.update(places[number].read())
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{index.dataset}-{index.domains[domain]}")[:80]
    return f"{readable}-{digest.hexdigest()[:20]}"


def _whole(path: Path, length: int) -> bool:
    return path.is_file() and path.stat().st_size == length


def _build(
    path: Path, length: int, places: list[Place], size: tuple[int, int], workers: Workers, text: str, progress: bool
) -> None:
    for left in path.parent.glob(f"{path.name}.*.part"):
        left.unlink()  # of a process that was killed: whoever holds the lock is alone
    free = shutil.disk_usage(path.parent).free
    if free < length:
        raise OSError(None, f"it needs {_gigabytes(length)} and {_gigabytes(free)} are free")
    broken = np.zeros(len(places), dtype=np.uint8)
    with _replacing(path) as temporary, bar(text, len(places), progress) as advance:
        with temporary.open("wb") as file:
            file.truncate(length)
        image = size[0] * size[1] * 3
        starts = range(0, len(places), JOB)
        jobs = [_Part(temporary, start * image, size, places[start : start + JOB]) for start in starts]
        for number, bad in workers.spread(_decode_part, jobs):
            broken[starts[number] + np.array(bad, dtype=np.int64)] = 1
            advance(len(jobs[number].places))
        with temporary.open("r+b") as file:
            file.seek(len(places) * image)
            file.write(broken.tobytes())
            file.flush()
            os.fsync(file.fileno())


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
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, domain: str, progress: bool) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        with bar(f"Waiting for another process that decodes {domain}", 0, progress):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained(path: Path, length: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OpenDGError(
            f"The decoded images ({_gigabytes(length)}) cannot be written to {path.parent} ({error.strerror}): make room "
            "there, or name another folder in the environment variable OPENDG_CACHE."
        ) from error


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
