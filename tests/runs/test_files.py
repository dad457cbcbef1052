"""Files that appear whole, whoever else writes them at the same time."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from opendg.errors import OpenDGError
from opendg.runs.files import make_folder, write_atomic


def test_threads_that_write_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path, whole = tmp_path / "one.json", [bytes([65 + number]) * 9000 for number in range(8)]

    def write(data: bytes) -> None:
        for _ in range(30):
            write_atomic(path, data)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, whole))
    assert path.read_bytes() in whole
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_would_leave_is_found_by_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.extend(tmp_path.glob(".*.tmp")))
    write_atomic(tmp_path / "weights.safetensors", b"half")
    write_atomic(tmp_path / "weights.safetensors", b"half")
    assert len(set(seen)) == 2, "each with a name of its own"


def test_the_old_file_is_there_until_the_new_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, replace = tmp_path / "one.json", Path.replace
    path.write_bytes(b"old")

    def replacing(new: Path, old: Path) -> Path:
        assert (new.read_bytes(), old.read_bytes()) == (b"new", b"old")
        return replace(new, old)

    monkeypatch.setattr(Path, "replace", replacing)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_others_may_read_what_they_could_read_before(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomic(tmp_path / "written", b"")
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_cannot_lie_below_a_file(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    with pytest.raises(OpenDGError, match="could not be written .*choose another place"):
        make_folder(tmp_path / "file" / "x")
