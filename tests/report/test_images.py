"""What the page takes from a run's predictions, and what it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opendg.errors import OpenDGError
from opendg.predictions import Predictions
from opendg.report.images import _sample, read_images
from opendg.report.records import Entry, find_records


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))


def entry_of(run: Path) -> Entry:
    return find_records([run])[0][0].entry


def rewrite(run: Path, **changes: Any) -> Path:
    """The predictions with some arrays replaced, or taken away where None is given."""
    file = run / "target-selected.npz"
    with np.load(file) as found:
        arrays = {name: found[name] for name in found.files} | changes
    np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    return file


def test_mistakes_are_the_surest_ones(run: Path) -> None:
    images = read_images(run / "target-selected.npz", entry_of(run), points=0)
    for name, scores in images.scores.items():
        found = images.mistakes(name, 5)
        assert not images.known[found.unknown].any()
        assert images.known[found.known].all()
        assert scores[found.unknown].tolist() == sorted(scores[~images.known], reverse=True)[:5]
        assert scores[found.known].tolist() == sorted(scores[images.known])[:5]
        assert len(images.mistakes(name, 10_000).unknown) == (~images.known).sum()


def test_the_plane_shows_unknown_images_and_the_same_ones_for_every_run(runs: Path) -> None:
    planes = []
    for name in ("erm-wood", "medic-wood"):
        images = read_images(runs / name / "target-selected.npz", entry_of(runs / name), points=30)
        assert images.plane is not None
        rows, where = images.plane
        assert where.shape == (30, 2)
        assert where.min() == 0
        assert where.max() == 1
        assert (~images.known[rows]).sum() == 12  # 40 % of 30, of 16
        planes.append(images.keys[rows].tolist())
    assert planes[0] == planes[1]


def test_unknown_images_take_what_the_known_ones_leave(run: Path) -> None:
    target = Predictions.load(run / "target-selected.npz")
    few = replace(target, label=np.where(np.arange(64) < 4, 0, -1))
    rows = _sample(few, 30)
    assert (len(rows), few.known[rows].sum()) == (30, 4)
    assert len(_sample(replace(target, label=np.full(64, -1)), 30)) == 30


def test_all_images_are_shown_where_there_are_few(runs: Path) -> None:
    images = read_images(runs / "erm-wood" / "target-selected.npz", entry_of(runs / "erm-wood"), points=500)
    assert images.plane is not None
    assert len(images.plane[0]) == len(images.keys) == 64


@pytest.mark.parametrize("features", [None, np.zeros((64, 0), np.float32), np.ones((64, 8), np.float32)])
def test_without_features_there_is_no_plane_but_all_the_rest(run: Path, features: Any) -> None:
    whole = read_images(run / "target-selected.npz", entry_of(run), points=0)
    images = read_images(rewrite(run, features=features), entry_of(run), points=30)
    assert images.plane is None
    assert {name: values.tolist() for name, values in images.scores.items()} == {
        name: values.tolist() for name, values in whole.scores.items()
    }


def test_no_points_means_no_plane(run: Path) -> None:
    assert read_images(run / "target-selected.npz", entry_of(run), points=0).plane is None


def test_scores_are_those_of_the_record(run: Path) -> None:
    images = read_images(run / "target-selected.npz", entry_of(run), points=0)
    assert list(images.scores) == ["cls", "bcls", "energy", "max-logit"]


def test_predictions_of_another_evaluation_are_refused(run: Path) -> None:
    target = Predictions.load(run / "target-selected.npz")
    for changed in ({"logits": target.logits[::-1].copy()}, {"logits": -target.logits}):
        with pytest.raises(OpenDGError, match="give other numbers than it"):
            read_images(rewrite(run, **changed), entry_of(run), points=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"label": None},
        {"logits": None},
        {"logits": np.zeros((64, 7), np.float32)},
        {"logits": np.array(["x"] * 64)},
        {"label": np.full(64, 3)},
        {"label": np.full(64, -2)},
        {"label": np.zeros((64, 1), np.int64)},
        {"keys": np.array(["one"])},
        {"ova": np.zeros((64, 3), np.float32)},
        {"features": np.zeros(64, np.float32)},
        {"unheard": np.zeros(64, np.float32)},
        {name: np.zeros((0, *shape), kind) for name, shape, kind in (("label", (), int), ("logits", (3,), "f4"))},
    ],
    ids=lambda changes: " ".join(f"{name} {getattr(array, 'shape', 'absent')}" for name, array in changes.items()),
)
def test_arrays_that_do_not_fit_are_refused(run: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(OpenDGError, match="does not hold predictions that fit"):
        read_images(rewrite(run, **changes), entry_of(run), points=0)


def test_numbers_that_are_none_are_refused(run: Path) -> None:
    with pytest.raises(OpenDGError, match="not a finite number"):
        read_images(rewrite(run, logits=np.full((64, 3), np.nan, np.float32)), entry_of(run), points=0)


@pytest.mark.parametrize("damage", ["torn", "empty", "pickle", "huge", "header", "array"])
def test_damaged_files_are_refused(run: Path, damage: str) -> None:
    file = run / "target-selected.npz"
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:3000])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "pickle":
        rewrite(run, label=np.array([{"a": 1}] * 64, dtype=object))
    elif damage == "huge":
        claims(file, "1000000000000, 3")  # an array larger than any memory
    elif damage == "header":
        claims(file, "3, (")
    else:
        with file.open("wb") as plain:  # no archive
            np.save(plain, np.zeros(3))
    with pytest.raises(OpenDGError, match="cannot be read"):
        read_images(file, entry_of(run), points=0)


def claims(file: Path, shape: str) -> None:
    """A file of a few bytes whose header claims an array of this shape."""
    import zipfile

    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}".encode().ljust(117) + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("label.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
