"""`fetch` against a small hub on this machine: what arrives, what is caught, what goes on after an interruption."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest
from huggingface_hub.constants import DOWNLOAD_CHUNK_SIZE

from opendg.data import catalog
from opendg.data.fetch import fetch
from opendg.errors import OpenDGError
from tests.data.hub_server import Answer, Hub
from tests.data.test_tables import picture, table, tree

pytest.importorskip("pyarrow", reason="needs opendg[fetch]")

FIRST, SECOND = "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"
IMAGES = [picture(seed, "PNG" if seed % 4 == 3 else "JPEG") for seed in range(8)]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """PACS in two tables: an image of each domain and two classes."""
    pacs = catalog.get("pacs")
    rows = [(image, pacs.domains[n % 4], n // 4) for n, image in enumerate(IMAGES)]
    files = {"README.md": b"# PACS\n"}
    for name, part in ((FIRST, rows[:3]), (SECOND, rows[3:])):
        files[name] = table(tmp_path / "built.parquet", part, {"label": pacs.classes}).read_bytes()
    with Hub(pacs.hub or "", files) as hub:
        yield hub


@pytest.fixture
def get(hub: Hub, tmp_path: Path) -> functools.partial[Path]:
    """`fetch` of PACS from the small hub."""
    return functools.partial(fetch, "pacs", to=tmp_path / "data", endpoint=hub.address, progress=False)


def expected() -> dict[str, bytes]:
    pacs = catalog.get("pacs")
    suffix = {image: "png" if image.startswith(b"\x89PNG") else "jpg" for image in IMAGES}
    return {
        f"{pacs.domains[n % 4]}/{pacs.classes[n // 4]}/00000.{suffix[image]}": image for n, image in enumerate(IMAGES)
    }


def nothing_is_in_place(tmp_path: Path) -> bool:
    return not (tmp_path / "data" / "pacs").exists()


def test_the_images_arrive_and_nothing_else_stays(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    folder = get()
    assert folder == tmp_path / "data" / "pacs"
    assert tree(folder) == expected()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["pacs"]
    assert not hub.downloads("README.md")


def test_bars_are_shown_only_when_asked_for(
    get: functools.partial[Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    get()
    assert capfd.readouterr() == ("", "")
    get(to=tmp_path / "again", progress=True)
    assert "Unpacking images" in capfd.readouterr().err


def test_what_is_there_is_left_alone(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    place = tmp_path / "data" / "pacs"
    place.mkdir(parents=True)
    (place / "mine.txt").write_text("mine")
    with pytest.raises(OpenDGError, match="pacs exists already: use it, remove it, or give another folder"):
        get()
    assert tree(place) == {"mine.txt": b"mine"}
    assert not hub.requests


def test_a_broken_connection_goes_on_near_the_byte_where_it_broke(
    hub: Hub, get: functools.partial[Path], tmp_path: Path
) -> None:
    sent = DOWNLOAD_CHUNK_SIZE + 1_000_000  # the client keeps whole chunks of a file
    large = picture(kind="BMP", side=1 + int((sent / 3) ** 0.5) + 100)
    hub.files[SECOND] = table(tmp_path / "large.parquet", [(large, "photo", "person")]).read_bytes()

    def break_once(answer: Answer, content: bytes) -> None:
        del hub.on_get[SECOND]
        answer.file(content, send=sent)

    hub.on_get[SECOND] = break_once
    try:
        folder = get()
    except OpenDGError:  # older clients leave the second try to the user
        folder = get()
    assert (folder / "photo" / "person" / "00000.bmp").read_bytes() == large
    assert hub.downloads(SECOND) == [None, f"bytes={DOWNLOAD_CHUNK_SIZE}-"]


def test_a_killed_fetch_goes_on_with_the_missing_file(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    released = threading.Event()

    def stall(answer: Answer, content: bytes) -> None:
        released.wait(60)

    hub.on_get[SECOND] = stall
    program = f"from opendg.data.fetch import fetch; fetch('pacs', {str(tmp_path / 'data')!r}, {hub.address!r})"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    first = tmp_path / "data" / ".pacs.part" / "tables" / FIRST
    try:
        deadline = time.monotonic() + 60
        while not (first.exists() and hub.downloads(SECOND)):
            assert time.monotonic() < deadline, "the first table never arrived"
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
        released.set()
    assert nothing_is_in_place(tmp_path)
    del hub.on_get[SECOND]
    assert tree(get()) == expected()
    assert len(hub.downloads(FIRST)) == 1


def test_what_a_stopped_unpacking_left_does_not_get_in(get: functools.partial[Path], tmp_path: Path) -> None:
    stale = tmp_path / "data" / ".pacs.part" / "images" / "photo" / "dog" / "09999.jpg"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"half an ima")
    assert tree(get()) == expected()


def test_a_changed_byte_is_caught_and_fetched_anew(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    hub.on_get[FIRST] = lambda answer, content: answer.file(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.raises(OpenDGError, match=r"train-00000-of-00002\.parquet has arrived damaged .* and was removed"):
        get()
    assert nothing_is_in_place(tmp_path)
    del hub.on_get[FIRST]
    assert tree(get()) == expected()
    assert len(hub.downloads(FIRST)) == 2
    assert len(hub.downloads(SECOND)) == 1


def test_an_answer_of_another_size_than_announced_is_caught(
    hub: Hub, get: functools.partial[Path], tmp_path: Path
) -> None:
    hub.on_get[FIRST] = lambda answer, content: answer.file(content + b"more")
    with pytest.raises(OpenDGError, match=r"could not be downloaded .*size .* run the same command again"):
        get()
    assert nothing_is_in_place(tmp_path)


def test_a_file_of_another_size_than_listed_is_caught(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    hub.stated_sizes[FIRST] = len(hub.files[FIRST]) + 1
    with pytest.raises(OpenDGError, match=r"train-00000-of-00002\.parquet has arrived damaged"):
        get()
    assert nothing_is_in_place(tmp_path)


def test_an_error_of_the_hub_keeps_what_has_arrived(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    hub.on_get[SECOND] = lambda answer, content: answer.error(500)
    with pytest.raises(OpenDGError, match=r"answered 'flwrlabs/pacs' with error 500: try again later"):
        get()
    assert nothing_is_in_place(tmp_path)
    del hub.on_get[SECOND]
    assert tree(get()) == expected()
    assert len(hub.downloads(FIRST)) == 1


def test_offline_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="could not be downloaded from the Hugging Face Hub .* check the connection"):
        fetch("pacs", tmp_path / "data", endpoint=nobody(), progress=False)
    assert not list(tmp_path.iterdir())


def test_offline_half_a_download_is_not_taken_for_the_whole(
    hub: Hub, get: functools.partial[Path], tmp_path: Path
) -> None:
    hub.on_get[SECOND] = lambda answer, content: answer.error(500)
    with pytest.raises(OpenDGError, match="error 500"):
        get()
    with pytest.raises(OpenDGError, match="check the connection"):
        get(endpoint=nobody())
    assert nothing_is_in_place(tmp_path)


def nobody() -> str:
    """An address where no server listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_dataset_that_is_gone_from_the_hub(hub: Hub, get: functools.partial[Path]) -> None:
    hub.dataset = "somebody/else"
    with pytest.raises(OpenDGError, match="has no public dataset 'flwrlabs/pacs'"):
        get()


def test_a_dataset_without_tables(hub: Hub, get: functools.partial[Path]) -> None:
    hub.files = {"README.md": b"moved"}
    with pytest.raises(OpenDGError, match="'flwrlabs/pacs' .* holds no Parquet table"):
        get()


def test_a_disk_too_small_is_said_before_the_download(hub: Hub, get: functools.partial[Path]) -> None:
    hub.stated_sizes[SECOND] = 10**15
    with pytest.raises(OpenDGError, match=r"needs 2,000,000\.0 GB, and .* GB free: make room"):
        get()
    assert not hub.downloads(FIRST)


def test_a_write_that_fails_is_said_in_a_sentence(hub: Hub, tmp_path: Path) -> None:
    """A limit on the size of files, as a quota would set it, met in the middle of the download."""
    program = f"""
import resource
from opendg.data.fetch import fetch
from opendg.errors import OpenDGError
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
try:
    fetch("pacs", {str(tmp_path / "data")!r}, {hub.address!r}, progress=False)
except OpenDGError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "could not be written (File too large): make room or give another folder with --to" in done.stdout
    assert nothing_is_in_place(tmp_path)


def test_a_file_where_the_folder_should_be(get: functools.partial[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OpenDGError, match=r"pacs could not be written \(.*\): make room or give another folder"):
        get(to=tmp_path / "file")


def test_a_second_fetch_at_the_same_time_is_refused(get: functools.partial[Path], tmp_path: Path) -> None:
    work = tmp_path / "data" / ".pacs.part"
    work.mkdir(parents=True)
    with filelock.FileLock(work / "lock"), pytest.raises(OpenDGError, match="Another fetch is writing"):
        get()


def test_a_class_the_catalogue_does_not_know(hub: Hub, get: functools.partial[Path], tmp_path: Path) -> None:
    path = table(tmp_path / "t.parquet", [(IMAGES[0], "photo", 0)], {"label": ["unicorn"]})
    hub.files[FIRST] = path.read_bytes()
    with pytest.raises(OpenDGError, match="class 'unicorn', which the catalogue does not know"):
        get()
    assert nothing_is_in_place(tmp_path)


def test_a_dataset_without_a_public_copy_says_where_it_is(tmp_path: Path) -> None:
    digits = catalog.get("digits-dg")
    with pytest.raises(OpenDGError) as caught:
        fetch("digits-dg", tmp_path)
    assert digits.url in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_the_built_in_dataset_needs_no_download(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="Glyphs needs no download"):
        fetch("glyphs", tmp_path)


def test_what_was_fetched_opens_by_name(get: functools.partial[Path], tmp_path: Path) -> None:
    get()
    index = catalog.open_dataset("pacs", root=tmp_path / "data")
    assert index.dataset == "pacs"
    assert list(index.keys) == sorted(expected())
