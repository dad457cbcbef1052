"""`glyphs`, the built-in dataset: ten digits in four domains, drawn on first use, nothing to download."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from opendg.data.cache import cache_dir
from opendg.data.progress import Bar, bar
from opendg.errors import OpenDGError

VERSION = 1  # to be raised whenever a picture changes: runs name the dataset they saw


def glyphs_root() -> Path:
    """The folder of the dataset, a tar a domain with members `domain/digit/number.png`. Made if it is not there.

    The same versions of NumPy, Pillow, scikit-learn and matplotlib write the same bytes. Processes that make it at
    the same time do not disturb each other: each writes a folder of its own, and the first to finish gives the name.
    """
    root = cache_dir() / f"glyphs-v{VERSION}"
    if not root.is_dir():
        try:
            _make(root)
        except OSError as error:
            raise OpenDGError(
                f"The built-in dataset could not be written to {root} ({error.strerror or error}): "
                "set OPENDG_CACHE to a folder with 20 MB free that you may write to."
            ) from error
    return root


def _make(root: Path) -> None:
    from opendg.data.glyph_art import DOMAINS, PER_CLASS

    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}-") as own:
        unfinished = Path(own) / root.name
        unfinished.mkdir()
        with bar("drawing glyphs", len(DOMAINS) * 10 * PER_CLASS) as drawn:
            for domain in DOMAINS:
                _write_tar(unfinished / f"{domain}.tar", _pictures(domain, PER_CLASS, drawn))
        try:
            unfinished.rename(root)
        except OSError:
            if not root.is_dir():  # else another process was first, with the same pictures
                raise


def _pictures(domain: str, per_class: int, drawn: Bar) -> Iterator[tuple[str, bytes]]:
    """Member name and PNG of every picture of a domain."""
    from opendg.data.glyph_art import picture

    for digit in range(10):
        for number in range(per_class):
            png = BytesIO()
            picture(domain, digit, number).save(png, "PNG")
            yield f"{domain}/{digit}/{number:03d}.png", png.getvalue()
        drawn.advance(per_class)


def _write_tar(path: Path, members: Iterator[tuple[str, bytes]]) -> None:
    """Without times and owners: the bytes depend on the members alone."""
    with path.open("wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, data in members:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, BytesIO(data))
        file.flush()
        os.fsync(file.fileno())  # before the rename says that all is there
