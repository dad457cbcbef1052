"""Datasets by name or by folder -> Index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from opendg.data.entries import DATASETS, Dataset, find, get, names, plain, recognise
from opendg.data.index import Index
from opendg.data.splits import with_lists
from opendg.data.tree import scan
from opendg.errors import OpenDGError, near, unreadable

__all__ = ["DATASETS", "Dataset", "find", "get", "list_datasets", "names", "open_dataset", "plain", "recognise"]


def list_datasets(pattern: str = "*") -> list[str]:
    """Names of the catalogue's datasets, those that match a wildcard."""
    return [name for name in names() if fnmatch(name, pattern)]


def open_dataset(data: str, root: Path | None = None) -> Index:
    """The Index of a catalogue name or of a folder.

    A name is looked for under `root`, else under $OPENDG_DATA: there, or in a folder of its name (`_`, `-` and case do
    not matter). The built-in `glyphs` is made on first use. A folder is taken as it is, and as a catalogue dataset when
    its domains and classes say so. The official lists are applied where they lie with the data.
    """
    entry = find(data)
    if entry is not None and entry.name == "glyphs":
        from opendg.data.glyphs import glyphs_root

        return scan(glyphs_root(), entry.name)
    place = _above(root)
    if entry is not None and place is not None:
        return _named(entry, place.expanduser())
    folder = Path(data).expanduser()
    if folder.is_dir():
        index = scan(folder)
        entry = DATASETS.get(index.dataset)
        return with_lists(index, entry, folder) if entry else index
    if entry is not None:
        raise OpenDGError(
            f"Where {entry.title} lies is not known: give its folder with --data, or the folder above it with --root "
            f"or in the environment variable OPENDG_DATA{_how_to_get(entry)}."
        )
    matches = " or ".join(repr(name) for name in near(data, names()))
    hint = f"did you mean {matches}?" if matches else f"expected a folder or one of {', '.join(names())}."
    raise OpenDGError(f"{data!r} is neither a folder nor a dataset of the catalogue: {hint}")


def is_named(data: str, root: str | Path | None = None) -> bool:
    """Whether `open_dataset` takes these words for a name of the catalogue, and not for a folder."""
    entry = find(data)
    if entry is None:
        return False
    return entry.name == "glyphs" or _above(root) is not None or not Path(data).expanduser().is_dir()


def _above(root: str | Path | None) -> Path | None:
    """The folder above the datasets, where one is known."""
    place = root or os.environ.get("OPENDG_DATA")
    return Path(place) if place else None


def _named(entry: Dataset, place: Path) -> Index:
    """The dataset of that name under `place`."""
    if not place.is_dir():
        raise OpenDGError(f"There is no folder {place}: give with --root the folder that holds {entry.title}.")
    try:
        found = next((pair for pair in _candidates(entry, place) if _holds_domains(entry, pair[1])), None)
    except OSError as error:
        raise unreadable(error) from error
    if found is not None:
        home, folder = found
        return with_lists(scan(folder, entry.name), entry, home)
    raise OpenDGError(
        f"{entry.title} is not under {place}: expected its domains ({', '.join(entry.domains)}) there or in "
        f"{place / entry.name}{_how_to_get(entry)}."
    )


def _candidates(entry: Dataset, place: Path) -> Iterator[tuple[Path, Path]]:
    """(folder of the dataset, folder that may hold its domains): the second may lie a level deeper (PACS's `kfold`)."""
    for home in sorted(path for path in place.iterdir() if path.is_dir() and plain(path.name) == plain(entry.name)):
        yield home, home
        yield from ((home, below) for below in sorted(home.iterdir()) if below.is_dir())
    yield place, place


def _holds_domains(entry: Dataset, folder: Path) -> bool:
    """Whether two of its domains or more lie in the folder, as folders or tars."""
    there = {plain(path.stem if path.suffix == ".tar" else path.name) for path in folder.iterdir()}
    return len(there & {plain(domain) for domain in entry.domains}) >= 2


def _how_to_get(entry: Dataset) -> str:
    return f"; `opendg data fetch {entry.name} --to DIR` downloads it" if entry.hub else f"; get it from {entry.url}"
