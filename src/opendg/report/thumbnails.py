"""Thumbnails of a run's target images, made from the data where they can be found."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from opendg.data.catalog import open_dataset
from opendg.data.content import image_digest
from opendg.data.decode import decode
from opendg.data.index import Index, Place
from opendg.errors import OpenDGError
from opendg.protocol import Protocol, file_hash
from opendg.runs.directory import Run
from opendg.training.job import Job

SIDE = 96
NONE = -1
Where = tuple[str, Path | None]  # what `open_dataset` is asked for


class Thumbnails:
    """All small images of a page, each once. `images` are the bytes of WebP files in base64."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root
        self.images: list[str] = []
        self._numbers: dict[bytes, int] = {}  # digest of an image's bytes -> position in `images`
        self._opened: dict[Where, Index] = {}
        self._files: dict[tuple[Where, Protocol], dict[str, str]] = {}  # see `_hashes`

    def of(self, folder: Path, keys: Sequence[str]) -> list[int]:
        """Positions in `images` for the keys of a run's target images; NONE for what cannot be decoded.

        An OpenDGError says why a run has none at all.
        """
        index = self._find(Run.open(folder))
        rows = map(index.row_of.get, keys)
        return [NONE if row is None else self._one(index.place(row)) for row in rows]

    def _one(self, place: Place) -> int:
        try:
            data = place.read()
            digest = image_digest(data)
            if digest not in self._numbers:
                self._numbers[digest] = NONE
                self.images.append(base64.b64encode(shrink(data, place.key)).decode())
                self._numbers[digest] = len(self.images) - 1
            return self._numbers[digest]
        except OpenDGError:
            return NONE

    def _find(self, run: Run) -> Index:
        """The data of the run, with the very files it was tested on.

        They are looked for in `root`, then where the run knew them, then where named datasets lie on this machine.
        """
        try:
            job = Job.from_json(run.config)
            places = ([job.place(self.root)] if self.root else []) + [job.place(), (job.data, None)]
            refused = []
            for place in dict.fromkeys(places):
                try:
                    return self._at(place, job, run)
                except OpenDGError as error:
                    refused.append(error)
            raise refused[0]
        except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:  # a stranger's run.json
            raise OpenDGError(f"The run does not say where its images are ({type(error).__name__}).") from error

    def _at(self, place: Where, job: Job, run: Run) -> Index:
        if place not in self._opened:
            self._opened[place] = open_dataset(*place)
        index = self._opened[place]
        for part, found in self._hashes(place, job.protocol).items():
            if found != run.manifest["files"][part]:
                raise OpenDGError(f"The {part} images found are not those of the run: check --root.")
        return index

    def _hashes(self, place: Where, protocol: Protocol) -> dict[str, str]:
        """Of the target's files, by part of the split; the same for all runs under one protocol."""
        if (place, protocol) not in self._files:
            index = self._opened[place]
            split = protocol.apply(index)
            tested = {"test-known": split.test_known, "test-unknown": split.test_unknown}
            self._files[place, protocol] = {part: file_hash(index, rows) for part, rows in tested.items()}
        return self._files[place, protocol]


def shrink(data: bytes, name: str) -> bytes:
    """An encoded image as a WebP file of at most SIDE pixels a side, its proportions kept."""
    image = Image.fromarray(np.ascontiguousarray(decode(data, None, name)))
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR)
    out = BytesIO()
    image.save(out, "WEBP", quality=60, method=4)
    return out.getvalue()
