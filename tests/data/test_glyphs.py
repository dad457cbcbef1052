"""The built-in dataset: what it holds, the same bytes each time, safe when two processes make it at once."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from opendg.data.cache import cache_dir
from opendg.data.glyph_art import DOMAINS, FABRIC_SCANS, PEN_SCANS, PER_CLASS, handwritten, picture
from opendg.data.glyphs import glyphs_root
from opendg.errors import OpenDGError

MAKE = "from opendg.data.glyphs import glyphs_root; print(glyphs_root())"


def digests(root: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in root.iterdir()}


def make_in_two_processes(cache: Path) -> list[Path]:
    """The roots that two processes started at the same time give."""
    environment = os.environ | {"OPENDG_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], answers
    return [Path(out.strip()) for out, _ in answers]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENDG_CACHE", str(tmp_path_factory.mktemp("cache")))
        return glyphs_root()


@pytest.fixture(scope="module")
def members(root: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(root.iterdir()):
        with tarfile.open(path) as tar:
            for member in tar:
                content = tar.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
    return found


def test_four_domains_ten_digits(root: Path, members: dict[str, bytes]) -> None:
    assert sorted(path.name for path in root.iterdir()) == ["fabric.tar", "pen.tar", "print.tar", "street.tar"]
    expected = {
        f"{domain}/{digit}/{number:03d}.png"
        for domain in ("fabric", "pen", "print", "street")
        for digit in range(10)
        for number in range(110)
    }
    assert set(members) == expected


def test_pictures_are_small_rgb_and_show_something(members: dict[str, bytes]) -> None:
    for name, data in members.items():
        with Image.open(io.BytesIO(data)) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "RGB", (32, 32)), name
            assert np.asarray(image).std(axis=(0, 1)).max() > 5, name


def test_no_picture_twice(members: dict[str, bytes]) -> None:
    assert len({Image.open(io.BytesIO(data)).tobytes() for data in members.values()}) == len(members)


def test_no_scan_serves_two_domains() -> None:
    assert PEN_SCANS >= PER_CLASS
    assert min(len(scans) for scans in handwritten()) >= PEN_SCANS + FABRIC_SCANS


def test_two_processes_at_once_and_the_same_bytes_again(root: Path, tmp_path: Path) -> None:
    first, second = make_in_two_processes(tmp_path)
    assert first == second == tmp_path / root.name
    assert digests(first) == digests(root)
    assert [path.name for path in tmp_path.iterdir()] == [root.name]  # the loser cleaned up


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_picture_does_not_depend_on_global_state_or_order(domain: str) -> None:
    np.random.seed(1)
    first = picture(domain, 3, 7).tobytes()
    np.random.seed(2)
    picture(domain, 5, 90)
    assert picture(domain, 3, 7).tobytes() == first


def test_is_made_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDG_CACHE", str(root.parent))
    before = {path: path.stat().st_mtime_ns for path in root.iterdir()}
    assert glyphs_root() == root
    assert {path: path.stat().st_mtime_ns for path in root.iterdir()} == before


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    monkeypatch.setenv("OPENDG_CACHE", str(blocked))
    with pytest.raises(OpenDGError, match="OPENDG_CACHE"):
        glyphs_root()


def test_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENDG_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENDG_CACHE", "~/kept")
    assert cache_dir() == tmp_path / "kept"
    monkeypatch.delenv("OPENDG_CACHE")
    assert cache_dir() == tmp_path / ".cache" / "opendg"


def test_importing_it_is_light() -> None:
    """The command line knows of it before anything is drawn."""
    heavy = "import sys, opendg.data.glyphs; print([m for m in ('torch', 'sklearn', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
