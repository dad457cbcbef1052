"""Real little trees of images for the tests of this room."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def noise(height: int = 12, width: int = 16, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(seed: int = 0, height: int = 12, width: int = 16) -> bytes:
    return encoded(noise(height, width, seed))


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def grid(domains: Iterable[str], classes: Iterable[str], each: int = 1, **size: int) -> dict[str, bytes]:
    """`each` different images for every domain and class."""
    cells = [f"{domain}/{name}" for domain in domains for name in classes]
    names = [f"{cell}/{number}.png" for cell in cells for number in range(each)]
    return {name: png(seed, **size) for seed, name in enumerate(names)}


@contextmanager
def unreadable(folder: Path) -> Iterator[None]:
    """For this process, which gives up its rights where it could read everything."""
    me, mode = os.geteuid(), folder.stat().st_mode
    folder.chmod(0)
    try:
        if me == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(me)
        folder.chmod(mode)


def pack(tar: Path, members: dict[str, bytes]) -> Path:
    tar.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(tar, "w") as file:
        for name, data in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(data)
            file.addfile(header, io.BytesIO(data))
    return tar
