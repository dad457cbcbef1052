"""The names of a dataset: all that a plan needs to know of it. The images need not be there."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from opendg.data import catalog
from opendg.errors import OpenDGError


class DatasetNames(NamedTuple):
    dataset: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]


def names_of(data: str, root: Path | None, need_data: bool = False) -> DatasetNames:
    """Of the images where they lie, else as the catalogue has them."""
    try:
        index = catalog.open_dataset(data, root)
    except OpenDGError:
        entry = catalog.find(data)
        if need_data or entry is None:
            raise
        return DatasetNames(entry.name, entry.domains, entry.classes)
    return DatasetNames(index.dataset, index.domains, index.classes)
