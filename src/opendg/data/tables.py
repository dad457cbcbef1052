"""Parquet tables of the Hugging Face Hub -> domain/class/image.

A row holds an image (its encoded bytes), a domain and a label. Domain and label are names, or numbers whose names
stand in the schema, where the Hub's `datasets` library writes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opendg.data.entries import plain
from opendg.data.progress import bar
from opendg.errors import OpenDGError

COLUMNS = ("image", "domain", "label")
ROWS_AT_A_TIME = 64  # a batch of photographs is some megabytes; a whole row group may be gigabytes
SIGNATURES = {b"\xff\xd8\xff": "jpg", b"\x89PNG": "png", b"BM": "bmp", b"II*\0": "tif", b"MM\0*": "tif"}


def unpack(
    tables: Sequence[Path], to: Path, domains: Sequence[str], classes: Sequence[str], progress: bool = True
) -> int:
    """Write every image of `tables` to `to/domain/class/NNNNN.ext`; the number of images.

    Folders are named by `domains` and `classes`; the tables' own may differ in case, blanks, - and _
    ("Real World" is `Real_World`). Images are numbered per domain and class, in the order of the tables.
    """
    read = parquet().read_metadata
    total = sum(read(table).num_rows for table in tables)
    domain_folders, class_folders = _Folders("domain", domains), _Folders("class", classes)
    count: Counter[Path] = Counter()
    with bar("Unpacking images", total, progress) as shown:
        for image, domain, label in (row for table in tables for row in _rows(table)):
            cell = to / domain_folders[domain] / class_folders[label]
            if not count[cell]:
                cell.mkdir(parents=True)
            (cell / f"{count[cell]:05d}.{_suffix(image, cell)}").write_bytes(image)
            count[cell] += 1
            shown.advance(1)
    return count.total()


def parquet() -> Any:
    """The module that reads the tables."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise OpenDGError(
            "Downloaded tables are read with pyarrow, which is not installed: try pip install 'opendg[fetch]'."
        ) from error
    return pyarrow.parquet


def _rows(table: Path) -> Iterator[tuple[bytes, str, str]]:
    """Image, domain and class of each row, the last two by name."""
    with parquet().ParquetFile(table) as file:
        missing = [column for column in COLUMNS if column not in file.schema_arrow.names]
        if missing:
            raise OpenDGError(f"{table.name} has no column {missing[0]!r}: expected {', '.join(COLUMNS)}.")
        names = _class_labels(file.schema_arrow.metadata or {})
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(COLUMNS)):
            for row in batch.to_pylist():
                yield (
                    (row["image"] or {}).get("bytes") or b"",
                    _name(row, "domain", names, table),
                    _name(row, "label", names, table),
                )


def _class_labels(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """Column -> the names of its numbers, from what the `datasets` library writes into the schema."""
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return {column: feature["names"] for column, feature in features.items() if feature.get("_type") == "ClassLabel"}


def _name(row: dict[str, Any], column: str, names: dict[str, list[str]], table: Path) -> str:
    value = row[column]
    if isinstance(value, str):
        return value
    if not isinstance(value, int) or not 0 <= value < len(names.get(column, ())):
        raise OpenDGError(
            f"{table.name} has a {column} {value!r} without a name in its schema: expected a named label."
        )
    return names[column][value]


class _Folders(dict[str, str]):
    """A table's name of a domain or class -> the folder it goes to. Nothing but the given names becomes a folder."""

    def __init__(self, what: str, folders: Sequence[str]) -> None:
        self.what = what
        self.spelled = {plain(folder): folder for folder in folders}

    def __missing__(self, name: str) -> str:
        folder = self.spelled.get(plain(name))
        if folder is None:
            raise OpenDGError(
                f"The downloaded tables have a {self.what} {name!r}, which the catalogue does not know: expected one "
                f"of {', '.join(list(self.spelled.values())[:12])}; the public copy has changed, please report it."
            )
        self[name] = folder
        return folder


def _suffix(image: bytes, cell: Path) -> str:
    """By the first bytes: the tables' file names are often missing, and sometimes wrong."""
    if image[:4] == b"RIFF" and image[8:12] == b"WEBP":
        return "webp"
    for signature, suffix in SIGNATURES.items():
        if image.startswith(signature):
            return suffix
    raise OpenDGError(
        f"The downloaded tables hold something under {cell.parent.name}/{cell.name} that is not an image: expected "
        "JPEG, PNG, WebP, BMP or TIFF; the public copy has changed, please report it."
    )
