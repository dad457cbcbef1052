"""Official lists of training and validation images, where they lie with the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from opendg.data.entries import Dataset, plain
from opendg.data.index import NO_PART, Index
from opendg.errors import OpenDGError


def with_lists(index: Index, entry: Dataset, home: Path) -> Index:
    """The Index with `part` filled in from the lists in `home` or in a folder of it; unlisted images keep theirs.

    A line of a list is `domain/class/file label`; the path may hold blanks, and labels count from 1 in the order of the
    class names. A listed image that is not there is passed over: `check` compares the counts.
    """
    if not entry.lists:
        return index
    part, listed_in = index.part.copy(), dict[int, Path]()
    for pattern, value in entry.lists.items():
        for path in sorted([*home.glob(pattern), *home.glob(f"*/{pattern}")]):
            for line, key, label in _lines(path):
                _check_label(entry, path, line, key, label)
                row = index.row_of.get(key)
                if row is None:
                    continue
                if part[row] not in (NO_PART, value) and row in listed_in:
                    raise OpenDGError(f"{key} stands in {listed_in[row]} and in {path}: expected it in one of them.")
                part[row], listed_in[row] = value, path
    return replace(index, part=np.asarray(part))


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, key, label) of each line; folders above the domain are cut off."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise OpenDGError(f"The list {path} cannot be read ({reason}): get the official lists again.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        parts = name.strip().split("/")
        if len(parts) < 3:
            raise OpenDGError(f"{path}, line {number}: expected 'domain/class/file label', found {line.strip()!r}.")
        yield number, "/".join(parts[-3:]), label


def _check_label(entry: Dataset, path: Path, line: int, key: str, label: str) -> None:
    folder = key.split("/")[1]
    right = [str(number) for number, name in enumerate(entry.classes, start=1) if plain(name) == plain(folder)]
    if label not in right:
        raise OpenDGError(
            f"{path}, line {line}: label {label} does not agree with the folder of {key}, expected "
            f"{right[0] if right else 'a class of ' + entry.title}: get the official lists again."
        )
