"""The digest that cache files are named after: what it is of, and when it is remembered."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opendg.data import content
from opendg.data.cache import cache_dir
from opendg.data.content import Images
from opendg.data.index import Index
from opendg.data.progress import bar
from opendg.data.store import Store
from opendg.data.tree import scan
from opendg.data.workers import Workers
from opendg.errors import OpenDGError
from tests.data.trees import encoded, grid, noise, pack, png, write


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written just now is remembered too."""
    monkeypatch.setattr(content, "SETTLED", 0)


def digest(index: Index, domain: int = 0) -> str:
    with Workers(1) as workers, bar("", 0, show=False) as shown:
        return Images(index, domain).content(workers, shown)


def opened(index: Index, size: tuple[int, int] = (12, 16)) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    every = np.arange(len(index))
    return Store.open(index, every, progress=False, size=size).tensor(every).numpy()


def memos(cache: Path) -> list[Path]:
    return list(cache.glob("images/*.content"))


def test_the_cache_may_be_of_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENDG_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("OPENDG_CACHE")
    assert cache_dir() == tmp_path / ".cache" / "opendg"


def test_it_is_of_keys_and_bytes_in_order(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", {"a/x/1.png": b"one", "a/x/2.png": b"two", "b/x/1.png": b"three"}))
    one, two = hashlib.sha256(b"one").digest(), hashlib.sha256(b"two").digest()
    assert digest(index) == hashlib.sha256(b"a/x/1.png\0" + one + b"a/x/2.png\0" + two).hexdigest()


def test_many_images_by_several_workers(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=600, height=2, width=2)))
    with Workers(2) as workers, bar("", 0, show=False) as shown:
        assert Images(index, 0).content(workers, shown) == digest(index)


def test_neither_places_nor_times_count(tmp_path: Path) -> None:
    images = grid(["a"], ["x", "y"], each=3)
    first = digest(scan(write(tmp_path / "first", images)))
    pack(tmp_path / "tar" / "a.tar", dict(reversed(images.items())))
    os.utime(write(tmp_path / "old", images) / "a" / "x" / "0.png", (1, 1))
    assert first == digest(scan(tmp_path / "tar")) == digest(scan(tmp_path / "old"))


def test_every_byte_and_every_name_counts(tmp_path: Path) -> None:
    trees = [
        {"a/x/1.png": b"12", "a/x/2.png": b"3"},
        {"a/x/1.png": b"1", "a/x/2.png": b"23"},
        {"a/x/1.png": b"3", "a/x/2.png": b"12"},
        {"a/x/1.png": b"12", "a/x/3.png": b"3"},
        {"a/x/1.png": b"12", "a/y/2.png": b"3"},
        {"a/x/1.png": b"12"},
    ]
    found = {digest(scan(write(tmp_path / str(number), tree))) for number, tree in enumerate(trees)}
    assert len(found) == len(trees)


def test_remembered_once_the_files_have_settled(tmp_path: Path, cache: Path) -> None:
    for image in write(tmp_path / "data", grid(["a"], ["x"], each=3)).rglob("*.png"):
        os.utime(image, (1, 1))  # as a copy has it: when it was written before is no sign of that
    index = scan(tmp_path / "data")
    first = opened(index)
    assert memos(cache) == []  # written just now: they could be written again at the same time of the clock
    time.sleep(content.SETTLED / 1e9 + 0.1)
    opened(index)
    assert len(memos(cache)) == 1
    for image in (tmp_path / "data").rglob("*.png"):
        image.unlink()
    assert np.array_equal(opened(index), first)  # without a look at any image


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("packed", [False, True])
def test_a_byte_changed_in_place_with_its_time_put_back(tmp_path: Path, cache: Path, packed: bool) -> None:
    images = {f"a/x/{number:02d}.bmp": encoded(noise(seed=number), "BMP") for number in range(40)}
    root = tmp_path / "data"
    file = pack(root / "a.tar", images) if packed else write(root, images) / "a/x/17.bmp"
    index = scan(root)
    before = opened(index)
    assert len(memos(cache)) == 1
    status = file.stat()
    with file.open("r+b") as opened_file:
        opened_file.seek(int(index.offset[17] + index.size[17]) - 1)  # the last byte of the image: a pixel
        last = opened_file.read(1)[0]
        opened_file.seek(-1, os.SEEK_CUR)
        opened_file.write(bytes([last ^ 255]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    after = opened(scan(root))
    assert np.argwhere((before != after).any(axis=(1, 2, 3))).tolist() == [[17]]
    assert len(list(cache.glob("images/*.pixels"))) == 2


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("damage", [b"", b"0123", b"\xff" * 64, b"0" * 65])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, cache: Path, damage: bytes) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3)))
    expected = opened(index)
    (memo,) = memos(cache)
    whole = memo.read_bytes()
    memo.write_bytes(damage)
    assert np.array_equal(opened(index), expected)
    assert memo.read_bytes() == whole
    assert len(list(cache.glob("images/*.pixels"))) == 1


@pytest.mark.usefixtures("at_once")
def test_a_memory_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3)))
    expected = opened(index)
    (memo,) = memos(cache)
    memo.unlink()
    memo.mkdir()  # in its place, as nothing can be kept from one who may write everywhere
    assert np.array_equal(opened(index), expected)
    assert list(cache.glob("images/*.part")) == []


@pytest.mark.usefixtures("at_once")
def test_images_that_change_before_they_are_decoded(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3)))
    opened(index)
    image = tmp_path / "data" / index.keys[1]
    image.write_bytes(png(99)[: int(index.size[1])])  # after the scan, which would have seen it
    with pytest.raises(OpenDGError, match="Images of a changed while they were decoded: .* try again"):
        opened(index, size=(6, 8))
    assert sorted(path.suffix for path in cache.glob("images/*")) == [".lock", ".lock", ".pixels"]
    image.write_bytes(png(99))
    index = scan(tmp_path / "data")
    assert np.array_equal(opened(index)[1], np.asarray(noise(seed=99)))


@pytest.mark.usefixtures("at_once")
def test_places_in_a_tar_count_where_times_are_alike(tmp_path: Path) -> None:
    """As on file systems that keep none: two tars of the same names and sizes, in which the names are exchanged."""
    one, two = (encoded(noise(seed=seed), "BMP") for seed in (1, 2))
    first = scan(pack(tmp_path / "first" / "a.tar", {"a/x/1.bmp": one, "a/x/2.bmp": two}).parent)
    second = scan(pack(tmp_path / "second" / "a.tar", {"a/x/2.bmp": one, "a/x/1.bmp": two}).parent)
    second = replace(second, modified=first.modified)
    assert first.size.tolist() == second.size.tolist()
    assert np.array_equal(opened(first), opened(second)[::-1])


@pytest.mark.usefixtures("at_once")
def test_sizes_of_images_that_change_are_not_kept(tmp_path: Path) -> None:
    images = {f"a/x/{number}.bmp": encoded(noise(12, 16, number), "BMP") for number in range(3)}
    index = scan(write(tmp_path / "data", images))
    opened(index)  # so that their content is remembered, and not their size
    write(tmp_path / "data", {key: encoded(noise(16, 12), "BMP") for key in images})  # as many bytes
    with pytest.raises(OpenDGError, match="changed while they were decoded"):
        Store.open(index, np.arange(3), progress=False)
    write(tmp_path / "data", images)
    assert Store.open(scan(tmp_path / "data"), np.arange(3), progress=False).size == (12, 16)


READER = """
import sys
from pathlib import Path
import numpy as np
from opendg.data import content
from opendg.data.store import Store
from opendg.data.tree import scan
content.SETTLED = 0
{before}
index = scan(Path(sys.argv[1]))
print(int(Store.open(index, np.arange(len(index)), size=(12, 16)).tensor(np.arange(len(index))).sum()))
"""
KILLED = """
import os, signal
replace = Path.replace
def end(self, target):
    if target.suffix == ".content":
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = end
"""


def reader(tmp_path: Path, before: str = "") -> subprocess.Popen[str]:
    """Another process that opens the store of `tmp_path/data`."""
    command = [sys.executable, "-c", READER.format(before=before), str(tmp_path / "data")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("at_once")
def test_a_process_killed_while_it_remembers_harms_nobody(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3)))
    with reader(tmp_path, KILLED) as process:
        _, messages = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, messages
    assert memos(cache) == []
    assert len(list(cache.glob("images/*.part"))) == 1  # it died at that very moment
    assert np.array_equal(opened(index)[2], np.asarray(noise(seed=2)))
    assert len(memos(cache)) == 1


@pytest.mark.usefixtures("at_once")
def test_two_processes_that_remember_at_once(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a", "b"], ["x"], each=300)))
    with reader(tmp_path) as first, reader(tmp_path) as second:
        outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert [out for out, _ in outputs] == [f"{int(opened(index).sum())}\n"] * 2
    remembered = sorted(memo.read_text() for memo in memos(cache))
    for memo in memos(cache):
        memo.unlink()  # so that the images are read once more
    assert remembered == sorted(digest(index, domain) for domain in (0, 1))
    assert len(list(cache.glob("images/*.pixels"))) == 2
    assert list(cache.glob("images/*.part")) == []
