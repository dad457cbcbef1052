"""The Index: a table of images. Where each one's bytes are, of which domain and class it is. No pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from opendg.errors import OpenDGError

Rows = NDArray[np.int64]  # of an Index: some of its images, by number

NO_PART, TRAIN, VAL = 0, 1, 2  # what the layout or the official lists say of an image


class Place(NamedTuple):
    """Where the bytes of one image are: small enough to be sent to another process, unlike the Index."""

    key: str
    file: Path
    offset: int
    size: int

    def read(self) -> bytes:
        """The encoded bytes. An empty file, or a link to nothing, has none."""
        if not self.size:
            return b""
        try:
            with self.file.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise OpenDGError(
                f"The image {self.key} cannot be read from {self.file} ({error.strerror}): "
                "see that the file is there and may be read."
            ) from error


@dataclass(frozen=True)
class Index:
    """One row an image, sorted by key.

    `files[row]` is the file that holds the image: the image file itself, or a tar, in which its bytes start at
    `offset[row]` (0 in a plain file) and are `size[row]` long. Keys are relative, with forward slashes
    (`sketch/dog/5281.png`), and the same whether the image lies in a folder or in a tar.
    """

    dataset: str  # the catalogue name ("pacs"), or the folder's name
    domains: tuple[str, ...]  # sorted by name
    classes: tuple[str, ...]  # sorted by name
    keys: tuple[str, ...]
    files: Sequence[Path]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    modified: NDArray[np.int64]  # (n, 2), nanoseconds: when files[row] was last written, and last changed in any way
    domain: NDArray[np.int64]  # number in domains
    label: NDArray[np.int64]  # number in classes
    part: NDArray[np.int64]  # TRAIN or VAL where the data say so, else NO_PART

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def root(self) -> Path:
        """The folder that the domains lie in."""
        above = 0 if self.offset[0] else self.keys[0].count("/")
        return self.files[0].parents[above]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Images per (domain, class)."""
        table = np.zeros((len(self.domains), len(self.classes)), dtype=np.int64)
        np.add.at(table, (self.domain, self.label), 1)
        return table

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of each key."""
        return {key: row for row, key in enumerate(self.keys)}

    def place(self, row: int) -> Place:
        return Place(self.keys[row], self.files[row], int(self.offset[row]), int(self.size[row]))

    def read(self, row: int) -> bytes:
        """The encoded bytes of one image."""
        return self.place(row).read()
