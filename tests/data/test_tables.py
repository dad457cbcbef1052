"""Parquet tables to a tree of images: names, numbers, suffixes, and what is refused."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from opendg.data.tables import unpack
from opendg.errors import OpenDGError

pa = pytest.importorskip("pyarrow", reason="needs opendg[fetch]")
import pyarrow.parquet as pq  # noqa: E402

DOMAINS, CLASSES = ("photo", "Real_World"), ("Alarm_Clock", "dog", "T-Shirt")


def picture(seed: int = 0, kind: str = "JPEG", side: int = 8) -> bytes:
    """A real encoded image."""
    stream = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def table(
    path: Path,
    rows: Sequence[tuple[bytes | None, str | int, str | int]],
    names: dict[str, Sequence[str]] | None = None,
) -> Path:
    """A table as the `datasets` library writes it: rows of image, domain, label; `names` of the columns of numbers."""
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    features |= {column: {"names": list(of), "_type": "ClassLabel"} for column, of in (names or {}).items()}
    columns = {
        "image": [{"bytes": image, "path": f"{number}.bin"} for number, (image, _, _) in enumerate(rows)],
        "domain": [domain for _, domain, _ in rows],
        "label": [label for _, _, label in rows],
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_images_are_numbered_per_domain_and_class_across_tables(tmp_path: Path) -> None:
    a, b, c, d = (picture(seed) for seed in range(4))
    names = {"label": ["dog", "T-Shirt"]}
    tables = [
        table(tmp_path / "a.parquet", [(a, "photo", 0), (b, "photo", 1)], names),
        table(tmp_path / "b.parquet", [(c, "photo", 0), (d, "Real_World", 0)], names),
    ]
    assert unpack(tables, tmp_path / "out", DOMAINS, CLASSES, progress=False) == 4
    assert tree(tmp_path / "out") == {
        "photo/dog/00000.jpg": a,
        "photo/T-Shirt/00000.jpg": b,
        "photo/dog/00001.jpg": c,
        "Real_World/dog/00000.jpg": d,
    }


def test_folders_have_the_catalogues_spelling(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", [(picture(), "Real World", "alarm clock"), (picture(), "Photo", "tshirt")])
    unpack([path], tmp_path / "out", DOMAINS, CLASSES, progress=False)
    assert list(tree(tmp_path / "out")) == ["Real_World/Alarm_Clock/00000.jpg", "photo/T-Shirt/00000.jpg"]


def test_domains_may_be_numbers_with_names_in_the_schema(tmp_path: Path) -> None:
    names = {"domain": ["Real World", "photo"], "label": ["T-Shirt", "dog"]}
    path = table(tmp_path / "t.parquet", [(picture(), 0, 1), (picture(), 1, 0)], names)
    unpack([path], tmp_path / "out", DOMAINS, CLASSES, progress=False)
    assert list(tree(tmp_path / "out")) == ["Real_World/dog/00000.jpg", "photo/T-Shirt/00000.jpg"]


def test_a_tiff_may_have_its_bytes_in_either_order(tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", [(b"MM\0*", "photo", "dog"), (b"II*\0", "photo", "dog")])
    assert unpack([path], tmp_path / "out", DOMAINS, CLASSES, progress=False) == 2
    assert list(tree(tmp_path / "out")) == ["photo/dog/00000.tif", "photo/dog/00001.tif"]


@pytest.mark.parametrize(
    ("kind", "suffix"), [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp"), ("BMP", "bmp"), ("TIFF", "tif")]
)
def test_the_suffix_is_that_of_the_bytes(tmp_path: Path, kind: str, suffix: str) -> None:
    path = table(tmp_path / "t.parquet", [(picture(kind=kind), "photo", "dog")])
    unpack([path], tmp_path / "out", DOMAINS, CLASSES, progress=False)
    assert list(tree(tmp_path / "out")) == [f"photo/dog/00000.{suffix}"]


def test_a_table_longer_than_a_batch(tmp_path: Path) -> None:
    images = [picture(seed) for seed in range(150)]
    path = table(tmp_path / "t.parquet", [(image, "photo", "dog") for image in images])
    unpack([path], tmp_path / "out", DOMAINS, CLASSES, progress=False)
    assert list(tree(tmp_path / "out").values()) == images


@pytest.mark.parametrize(
    ("row", "names", "sentence"),
    [
        ((picture(), "photo", "cat"), None, "class 'cat'"),
        ((picture(), "sketch", "dog"), None, "domain 'sketch'"),
        ((picture(), "photo", "../../dog"), None, "class '../../dog'"),
        ((picture(), "..", "dog"), None, "domain '..'"),
        ((picture(), "photo", 3), {"label": ["dog"]}, "label 3 without a name"),
        ((picture(), "photo", -1), {"label": ["dog"]}, "label -1 without a name"),
        ((picture(), "photo", 0), None, "label 0 without a name"),
        ((b"<html>", "photo", "dog"), None, "photo/dog that is not an image"),
        ((b"RIFF\0\0\0\0WAVEfmt ", "photo", "dog"), None, "photo/dog that is not an image"),
        ((None, "photo", "dog"), None, "photo/dog that is not an image"),
    ],
)
def test_only_known_names_and_images_are_written(
    tmp_path: Path, row: tuple[bytes, str, str | int], names: dict[str, list[str]] | None, sentence: str
) -> None:
    path = table(tmp_path / "t.parquet", [row], names)
    out = tmp_path / "deep" / "in" / "out"
    with pytest.raises(OpenDGError, match=sentence):
        unpack([path], out, DOMAINS, CLASSES, progress=False)
    assert not tree(tmp_path / "deep")


def test_a_table_without_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": [b""], "y": [1]}), tmp_path / "t.parquet")
    with pytest.raises(OpenDGError, match=r"t\.parquet has no column 'domain': expected image, domain, label"):
        unpack([tmp_path / "t.parquet"], tmp_path / "out", DOMAINS, CLASSES, progress=False)


def test_without_pyarrow_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(OpenDGError, match=r"pip install 'opendg\[fetch\]'"):
        unpack([tmp_path / "t.parquet"], tmp_path / "out", DOMAINS, CLASSES, progress=False)
