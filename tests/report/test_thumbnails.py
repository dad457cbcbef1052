"""Thumbnails come from the very images that a run was tested on, or there are none."""

from __future__ import annotations

import base64
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opendg.data.decode import decode
from opendg.errors import OpenDGError
from opendg.predictions import Predictions
from opendg.report.thumbnails import NONE, SIDE, Thumbnails, shrink
from tests.report.test_images import rewrite


def keys_of(run: Path) -> list[str]:
    return [str(key) for key in Predictions.load(run / "target-selected.npz").keys]


@pytest.fixture
def moved(runs: Path, signs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run, and data of its own to change."""
    data = Path(shutil.copytree(signs, tmp_path / "signs"))
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))
    config = (run / "run.json").read_text()
    (run / "run.json").write_text(config.replace(str(signs), str(data)))
    return run, data


def test_a_thumbnail_shows_its_image(runs: Path, signs: Path) -> None:
    thumbnails = Thumbnails()
    keys = keys_of(runs / "erm-wood")[::9]
    for key, number in zip(keys, thumbnails.of(runs / "erm-wood", keys), strict=True):
        small = np.asarray(Image.open(BytesIO(base64.b64decode(thumbnails.images[number]))), np.float64)
        whole = decode((signs / key).read_bytes(), None, key).astype(np.float64)
        assert small.shape == whole.shape == (32, 32, 3)
        assert abs(small - whole).mean() < 16


def test_runs_on_one_target_share_their_thumbnails(runs: Path) -> None:
    thumbnails = Thumbnails()
    keys = keys_of(runs / "erm-wood")[:8]
    first = thumbnails.of(runs / "erm-wood", keys)
    assert thumbnails.of(runs / "medic-wood", keys) == first
    assert len(thumbnails.images) == 8
    thumbnails.of(runs / "erm-ink", keys_of(runs / "erm-ink")[:8])
    assert len(thumbnails.images) == 16


def test_images_of_one_key_and_other_pixels_do_not_share_a_thumbnail(
    runs: Path, moved: tuple[Path, Path], tmp_path: Path
) -> None:
    """Two datasets of the same names and sizes, on one page."""
    run, data = moved
    keys = keys_of(run)[:8]
    size = (data / keys[3]).stat().st_size
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    (data / keys[3]).write_bytes((tmp_path / "red.png").read_bytes().ljust(size, b"\0"))
    thumbnails = Thumbnails()
    first, second = thumbnails.of(runs / "erm-wood", keys), thumbnails.of(run, keys)
    assert [one == other for one, other in zip(first, second, strict=True)] == [True] * 3 + [False] + [True] * 4
    red = np.asarray(Image.open(BytesIO(base64.b64decode(thumbnails.images[second[3]]))))
    assert abs(red - np.array([255.0, 0, 0])).max() < 16


def test_large_images_shrink_and_keep_their_proportions() -> None:
    data = BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 200, 3), dtype=np.uint8)).save(data, "PNG")
    small = Image.open(BytesIO(shrink(data.getvalue(), "noise")))
    assert small.size == (SIDE // 2, SIDE)
    assert small.format == "WEBP"


@pytest.mark.parametrize(("name", "part"), [("cross", "test-known"), ("ring", "test-unknown")])
def test_other_images_are_not_taken_for_those_of_the_run(moved: tuple[Path, Path], name: str, part: str) -> None:
    run, data = moved
    assert NONE not in Thumbnails().of(run, keys_of(run))
    with (data / "wood" / name / "003.png").open("ab") as file:
        file.write(b"more")
    with pytest.raises(OpenDGError, match=f"The {part} images found are not those of the run"):
        Thumbnails().of(run, keys_of(run))


def test_data_that_are_gone_give_a_sentence(moved: tuple[Path, Path]) -> None:
    run, data = moved
    shutil.rmtree(data)
    with pytest.raises(OpenDGError, match="neither a folder nor a dataset"):
        Thumbnails().of(run, keys_of(run))


def test_data_that_have_moved_are_found_with_their_new_place(moved: tuple[Path, Path]) -> None:
    run, data = moved
    there = data.rename(data.with_name("elsewhere"))
    assert NONE not in Thumbnails(there).of(run, keys_of(run))


def test_a_root_of_other_data_does_not_hide_what_lies_where_it_was(moved: tuple[Path, Path], tmp_path: Path) -> None:
    """One page may be of several datasets, and the root is that of some."""
    run, data = moved
    (tmp_path / "data").mkdir()
    assert NONE not in Thumbnails(tmp_path / "data").of(run, keys_of(run))
    data.rename(data.with_name("elsewhere"))
    with pytest.raises(OpenDGError, match=str(tmp_path / "data")):
        Thumbnails(tmp_path / "data").of(run, keys_of(run))


def test_a_broken_image_and_a_foreign_key_have_none(moved: tuple[Path, Path]) -> None:
    run, data = moved
    broken = data / keys_of(run)[3]
    broken.write_bytes(bytes(len(broken.read_bytes())))  # the same size, so that the manifest still fits
    keys = [*keys_of(run)[2:5], "../../etc/passwd"]
    numbers = Thumbnails().of(run, keys)
    assert [number == NONE for number in numbers] == [False, True, False, True]


@pytest.mark.parametrize(
    "change",
    [
        ('"method"', '"methods"'),
        ('"targets": [', '"targets": 3, "was": ['),
        ('"data": "', '"data": 7, "was": "'),
        ('"root": null', '"root": [1]'),
        ('"iterations": 25', '"iterations": "many"'),
    ],
)
def test_a_strangers_run_json_is_refused_in_a_sentence(moved: tuple[Path, Path], change: tuple[str, str]) -> None:
    run, _ = moved
    config = (run / "run.json").read_text()
    assert change[0] in config
    (run / "run.json").write_text(config.replace(*change))
    with pytest.raises(OpenDGError):
        Thumbnails().of(run, keys_of(run))


def test_keys_that_climb_out_of_the_data_find_nothing(moved: tuple[Path, Path]) -> None:
    run, data = moved
    secret = data.parent / "secret.png"
    shutil.copy(next((data / "wood").rglob("*.png")), secret)
    rewrite(run, keys=np.array(["../secret.png"] * 64))
    assert set(Thumbnails().of(run, keys_of(run))) == {NONE}
