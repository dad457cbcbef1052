from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from opendg.data.decode import decode
from opendg.data.index import Index
from opendg.data.store import Store
from opendg.data.tree import scan
from opendg.errors import OpenDGError
from tests.data.trees import encoded, grid, noise, pack, png, write


def rows(index: Index, *domains: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    chosen = [index.domains.index(domain) for domain in domains or index.domains]
    return np.flatnonzero(np.isin(index.domain, chosen))


def files(cache: Path) -> list[str]:
    """Of pixels: domain and size."""
    return sorted(f"{path.name.split('-')[-3]} {path.stem.split('-')[-1]}" for path in cache.glob("images/*.pixels"))


def left_over(cache: Path) -> list[Path]:
    kept = (".pixels", ".sizes", ".content", ".lock")
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix not in kept]


def test_images_are_those_of_the_files_at_their_own_size(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a", "b"], ["x", "y"], each=5)))
    store = Store.open(index, rows(index), progress=False)
    assert store.size == (12, 16)
    assert store.skipped == []
    assert store.rows.tolist() == list(range(20))
    order = np.array([19, 0, 7, 7, 12])
    expected = np.stack([decode(index.read(row), None, "") for row in order])
    assert np.array_equal(store.tensor(order).numpy(), expected)
    tensor = store.tensor(order)
    assert tensor.dtype == torch.uint8
    assert np.array_equal(tensor.numpy(), expected)
    assert store.tensor(np.array([], dtype=np.int64)).numpy().shape == (0, 12, 16, 3)


def test_another_decoder_has_files_of_its_own(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"])))
    for version in ("1", "2", "2"):
        monkeypatch.setattr("opendg.data.pixels.DECODER", version)
        Store.open(index, rows(index), progress=False)
    assert files(cache) == ["a 12x16", "a 12x16"]


@pytest.mark.parametrize("domain", ["[a]*?", "so long a name " * 16], ids=["signs", "long"])
def test_a_domain_may_have_any_name(tmp_path: Path, cache: Path, domain: str) -> None:
    index = scan(write(tmp_path / "data", grid([domain], ["x"])))
    Store.open(index, rows(index), progress=False)
    (pixels,) = cache.glob("images/*.pixels")
    scrap = pixels.with_name(f"{pixels.name}.0123.part")  # of a process that was killed
    pixels.rename(scrap)
    Store.open(index, rows(index), progress=False)
    assert not left_over(cache)


def test_many_images_over_several_chunks_and_workers(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a", "b"], ["x"], each=350, height=6, width=5)))
    store = Store.open(index, rows(index), progress=False)
    order = np.random.default_rng(0).permutation(len(index))
    expected = np.stack([decode(index.read(row), None, "") for row in order])
    assert np.array_equal(store.tensor(order).numpy(), expected)


def test_images_of_several_sizes_are_kept_at_256(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"]) | {"b/x/1.png": png(1, 20, 20)}))
    store = Store.open(index, rows(index), progress=False)
    assert store.size == (256, 256)
    assert np.array_equal(store.tensor(np.array([1])).numpy()[0], decode(png(1, 20, 20), (256, 256), ""))


def test_only_the_images_asked_for_need_be_alike(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3) | {"a/y/1.png": png(1, 20, 20)}))
    assert Store.open(index, np.array([0, 1, 2]), progress=False).size == (12, 16)
    assert Store.open(index, rows(index), progress=False).size == (256, 256)


def test_one_odd_image_among_many_is_seen(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=200, height=4, width=4) | {"a/x/95.png": png(1)}))
    assert Store.open(index, rows(index), progress=False).size == (256, 256)


@pytest.mark.parametrize(
    ("shape", "shown", "kept"),
    [
        ((64, 60), (32, 32), (64, 60)),
        ((65, 60), (32, 32), (37, 37)),
        ((20, 600), (224, 224), (256, 256)),
        ((20, 600), (384, 300), (20, 600)),
        ((20, 900), (384, 300), (439, 343)),
    ],
)
def test_alike_images_are_kept_at_their_own_size_up_to_twice_what_is_shown(
    shape: tuple[int, int], shown: tuple[int, int], kept: tuple[int, int], tmp_path: Path
) -> None:
    """Photos of one camera would be a hundred times what the network sees."""
    index = scan(write(tmp_path / "data", {f"a/x/{n}.png": encoded(noise(*shape, n)) for n in range(2)}))
    assert Store.open(index, rows(index), progress=False, shown=shown).size == kept


def test_a_size_may_be_asked_for(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"])))
    store = Store.open(index, rows(index), progress=False, size=(7, 9))
    assert store.tensor(rows(index)).numpy().shape == (1, 7, 9, 3)
    assert files(cache) == ["a 7x9"]


def test_only_the_domains_asked_for_are_opened(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["source", "target"], ["x", "y"], each=2)))
    for image in (tmp_path / "data" / "target").rglob("*.png"):
        image.unlink()
    store = Store.open(index, rows(index, "source"), progress=False)
    assert files(cache) == ["source 12x16"]
    with pytest.raises(ValueError, match="rows that it was not opened with"):
        store.tensor(rows(index, "target")).numpy()


def test_rows_that_were_not_asked_for_are_not_given(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["known", "unknown"], each=2)))
    store = Store.open(index, np.array([0, 1]), progress=False)
    with pytest.raises(ValueError, match="not opened with"):
        store.tensor(np.array([0, 2]))


def test_the_second_open_decodes_nothing(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=30)))
    first = Store.open(index, rows(index), progress=False)
    (path,) = cache.glob("images/*.pixels")
    before = path.stat()
    second = Store.open(index, rows(index), progress=False)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert np.array_equal(second.tensor(rows(index)).numpy(), first.tensor(rows(index)).numpy())


@pytest.mark.parametrize("change", ["bytes", "time", "name", "content alone"])
def test_changed_data_are_decoded_anew(tmp_path: Path, change: str) -> None:
    images = {f"a/x/{number:02d}.bmp": encoded(noise(seed=number), "BMP") for number in range(40)}
    image = write(tmp_path / "data", images) / "a" / "x" / "17.bmp"
    index = scan(tmp_path / "data")
    Store.open(index, rows(index), progress=False)
    status = image.stat()
    image.write_bytes(encoded(noise(seed=99), "BMP") + (b"\0" if change == "bytes" else b""))
    if change == "content alone":
        os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    if change == "name":
        image.rename(image.with_name("17b.bmp"))
    index = scan(tmp_path / "data")
    opened = Store.open(index, rows(index), progress=False).tensor(rows(index)).numpy()
    assert np.array_equal(opened[17], np.asarray(noise(seed=99)))
    assert np.array_equal(opened[18], np.asarray(noise(seed=18)))


@pytest.mark.parametrize("place", ["copied", "copied with its times", "packed", "unpacked", "touched"])
def test_the_same_images_elsewhere_are_not_decoded_again(tmp_path: Path, cache: Path, place: str) -> None:
    images = grid(["a"], ["x", "y"], each=10)
    write(tmp_path / "first", images)
    if place == "unpacked":
        pack(tmp_path / "packed" / "a.tar", images)
        shutil.rmtree(tmp_path / "first")
        (tmp_path / "packed").rename(tmp_path / "first")
    index = scan(tmp_path / "first")
    pixels = Store.open(index, rows(index), progress=False).tensor(rows(index)).numpy()
    before = {path.name: path.stat() for path in cache.glob("images/*.pixels")}
    if place == "copied with its times":
        shutil.copytree(tmp_path / "first", tmp_path / "second", copy_function=shutil.copy2)
    elif place == "packed":
        pack(tmp_path / "second" / "a.tar", dict(reversed(images.items())))
    elif place == "touched":
        (tmp_path / "first").rename(tmp_path / "second")
        for image in (tmp_path / "second").rglob("*.png"):
            os.utime(image, (1, 1))
    else:
        write(tmp_path / "second", images)
    index = scan(tmp_path / "second")
    assert np.array_equal(Store.open(index, rows(index), progress=False).tensor(rows(index)).numpy(), pixels)
    after = {path.name: path.stat() for path in cache.glob("images/*.pixels")}
    assert [(name, was.st_ino, was.st_mtime_ns) for name, was in before.items()] == [
        (name, now.st_ino, now.st_mtime_ns) for name, now in after.items()
    ]


def test_a_torn_cache_file_is_made_anew(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=3)))
    expected = Store.open(index, rows(index), progress=False).tensor(rows(index)).numpy()
    (path,) = cache.glob("images/*.pixels")
    path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(Store.open(index, rows(index), progress=False).tensor(rows(index)).numpy(), expected)


BROKEN = {"a/x/broken.png": png(5)[:-40], "a/y/torn.png": b"\x89PNG"}


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x", "y"]) | BROKEN))
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(OpenDGError, match=r"a/x/broken\.png is broken \(.*truncated.*\), the first of 2.*skip"):
            Store.open(index, rows(index), progress=False)


def test_broken_images_are_skipped_on_demand(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x", "y"]) | BROKEN))
    for _ in range(2):
        store = Store.open(index, rows(index), on_bad_image="skip", progress=False)
        assert store.skipped == ["a/x/broken.png", "a/y/torn.png"]
        assert [index.keys[row] for row in store.rows] == ["a/x/0.png", "a/y/0.png"]
        assert store.size == (12, 16)
        assert np.array_equal(store.tensor(store.rows).numpy()[1], np.asarray(noise(seed=1)))
        with pytest.raises(ValueError, match="not opened with"):
            store.tensor(rows(index)).numpy()


def test_a_broken_header_hides_no_size_behind_it(tmp_path: Path) -> None:
    files = {"a/x/0.png": png(1), "a/x/1.png": b"none", "a/x/2.png": encoded(noise(20, 20))}
    index = scan(write(tmp_path / "data", files))
    assert Store.open(index, rows(index), on_bad_image="skip", progress=False).size == (256, 256)


def test_a_broken_image_far_behind_is_that_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are decoded some at a time, and each of those jobs counts its own from 0."""
    monkeypatch.setattr("opendg.data.pixels.JOB", 2)
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=6) | {"a/x/zz.png": b"none"}))
    store = Store.open(index, rows(index), on_bad_image="skip", progress=False)
    assert (store.skipped, store.rows.tolist()) == (["a/x/zz.png"], [0, 1, 2, 3, 4, 5])


def test_a_broken_image_that_is_not_asked_for_does_no_harm(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x", "y"]) | BROKEN))
    sound = np.array([row for row, key in enumerate(index.keys) if key not in BROKEN])
    assert Store.open(index, sound, progress=False).skipped == []


def test_nothing_but_broken_images(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", BROKEN))
    with pytest.raises(OpenDGError, match="All 2 images are broken"):
        Store.open(index, rows(index), on_bad_image="skip", progress=False)


def test_no_rows_at_all(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"])))
    store = Store.open(index, np.array([], dtype=np.int64), progress=False, size=(5, 5))
    assert store.tensor(store.rows).numpy().shape == (0, 5, 5, 3)


def test_a_file_that_cannot_be_read_is_not_taken_for_a_broken_image(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=20)))
    (tmp_path / "data" / index.keys[3]).unlink()
    with pytest.raises(OpenDGError, match="cannot be read from .*No such file"):
        Store.open(index, rows(index), on_bad_image="skip", progress=False, size=(5, 5))
    assert files(cache) == []
    assert left_over(cache) == []


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("OPENDG_CACHE", str(tmp_path / "file" / "cache"))
    index = scan(write(tmp_path / "data", grid(["a"], ["x"])))
    for size in (None, (5, 5)):
        with pytest.raises(OpenDGError, match="cannot be written to .*file/cache/images .*OPENDG_CACHE"):
            Store.open(index, rows(index), progress=False, size=size)


def test_more_images_than_the_disk_can_hold(tmp_path: Path, cache: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a"], ["x"], each=2)))
    with pytest.raises(OpenDGError, match=r"decoded images \([0-9.]+ GB\) cannot be written.*GB are free"):
        Store.open(index, rows(index), progress=False, size=(30_000_000, 30_000_000))
    assert left_over(cache) == []


BUILDER = """
import sys
from pathlib import Path
import numpy as np
from opendg.data.store import Store
from opendg.data.tree import scan
from opendg.errors import OpenDGError
{before}
index = scan(Path(sys.argv[1]))
try:
    store = Store.open(index, np.arange(len(index)))
except OpenDGError as error:
    sys.exit(f"refused: {{error}}")
path, = (Path(sys.argv[2]) / "images").glob("*.pixels")
print(path.stat().st_ino, int(store.tensor(store.rows).numpy().sum(dtype=np.int64)))
"""


def builder(tmp_path: Path, before: str = "") -> subprocess.Popen[str]:
    """Another process that opens the store of `tmp_path/data`."""
    command = [sys.executable, "-c", BUILDER.format(before=before), str(tmp_path / "data"), str(tmp_path / "cache")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid: int) -> list[str]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return listed.read_text().split() if listed.exists() else []


def slow_tree(tmp_path: Path) -> Index:
    """A second of decoding."""
    image = encoded(noise(300, 300), "PNG", compress_level=1)
    return scan(write(tmp_path / "data", {f"a/x/{number:04d}.png": image for number in range(400)}))


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    slow_tree(tmp_path)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))"
    with builder(tmp_path, limit) as process:
        _, messages = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "refused: The decoded images (0.1 GB) cannot be written" in messages
    assert files(cache) == []
    assert left_over(cache) == []


def test_two_processes_at_once_do_the_work_once(tmp_path: Path, cache: Path) -> None:
    index = slow_tree(tmp_path)
    with builder(tmp_path) as first, builder(tmp_path) as second:
        outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]  # the same file, not one that has replaced another
    one = int(np.asarray(noise(300, 300)).astype(np.int64).sum())
    assert int(outputs[0][0].split()[1]) == one * len(index)
    assert left_over(cache) == []


def test_a_builder_killed_midway_blocks_nobody(tmp_path: Path, cache: Path) -> None:
    index = slow_tree(tmp_path)
    with builder(tmp_path) as process:
        deadline = time.monotonic() + 60
        while not list(cache.glob("images/*.pixels.*.part")):
            assert time.monotonic() < deadline, "it never began"
            assert process.poll() is None, "it ended too soon"
            time.sleep(0.005)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline, "its workers live on"
        time.sleep(0.01)
    assert files(cache) == []
    assert len(left_over(cache)) == 1
    store = Store.open(index, rows(index), progress=False)
    assert np.array_equal(store.tensor(np.array([399])).numpy()[0], np.asarray(noise(300, 300)))
    assert left_over(cache) == []


@pytest.mark.slow
def test_real_pacs_sketch(shared: Path) -> None:
    index = scan(shared / "data" / "pacs")
    sketch = rows(index, "sketch")
    store = Store.open(index, sketch, progress=False)
    assert store.size == (227, 227)
    some = sketch[[0, 1000, 3928]]
    expected = np.stack([decode(index.read(row), None, "") for row in some])
    assert np.array_equal(store.tensor(some).numpy(), expected)


@pytest.mark.gpu
def test_on_the_device(tmp_path: Path) -> None:
    index = scan(write(tmp_path / "data", grid(["a", "b"], ["x"], each=300, height=6, width=5)))
    store = Store.open(index, rows(index), progress=False)
    order = np.random.default_rng(0).permutation(len(index))
    assert np.array_equal(store.tensor(order, device="cuda").cpu().numpy(), store.tensor(order).numpy())
