"""Disks that are full or may not be written to: a sentence, exit code 2, and nothing half written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.e2e.forks import Forks
from tests.e2e.test_bad_input import refused
from tests.tiny import flags

Disk = Callable[..., Path]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Small disks of their own, in memory: `disk("64k")`, `disk("1m", "ro")`."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    with ExitStack() as mounted:

        def mount(size: str, mode: str = "rw") -> Path:
            folder = tmp_path / f"disk-{size}-{mode}"
            folder.mkdir()
            done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},{mode}", "tmpfs", folder], check=False)
            if done.returncode:
                pytest.skip("a small disk cannot be mounted here")
            mounted.callback(subprocess.run, ["umount", folder], check=True)
            return folder

        yield mount


def test_a_disk_that_is_full_before_it_begins(opendg: Command, tree: Path, disk: Disk) -> None:
    folder = disk("16k")
    with pytest.raises(OSError, match="No space left"):
        (folder / "filler").write_bytes(bytes(100_000))
    before = sorted(folder.iterdir())
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", folder / "run")
    refused(said, "The disk is full", "free some space or choose another place")
    assert sorted(folder.iterdir()) == before


def test_a_disk_that_the_finished_weights_do_not_fit(opendg: Command, tree: Path, disk: Disk) -> None:
    folder = disk("64k")
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", folder / "run")
    assert said.code == 2
    assert "Error: The disk is full, so" in said.err
    assert list(folder.iterdir()) == []


def test_a_disk_that_fills_up_on_the_way(opendg: Command, tree: Path, disk: Disk, tmp_path: Path) -> None:
    """The run stays with its whole checkpoints; with more room it goes on to the same weights."""
    folder, asked = disk("2500k"), flags(iterations=20, checkpoint_every=2)
    said = opendg("train", "erm", "--data", tree, *asked, "--out", folder / "run")
    assert said.code == 2
    assert "Error: The disk is full" in said.err
    assert not list((folder / "run").rglob("*.tmp"))
    assert len(list((folder / "run" / "checkpoints").glob("*.json"))) == 2
    subprocess.run(["mount", "-o", "remount,size=20m", folder], check=True)
    assert opendg("train", "--resume", folder / "run").code == 0
    assert opendg("train", "erm", "--data", tree, *asked, "--out", tmp_path / "whole").code == 0
    weights = [path / "weights.safetensors" for path in (folder / "run", tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_an_output_folder_that_may_not_be_written_to(opendg: Command, tree: Path, disk: Disk) -> None:
    folder = disk("1m", "ro")
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", folder / "deep" / "run")
    refused(said, "may not be written to", "choose another place")
    refused(opendg("train", "erm", "--data", tree, *flags(), "--out", folder / "run"), "may not be written to")


def test_an_output_folder_of_another_user(opendg: Command, tree: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "theirs").mkdir(mode=0o500)
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", tmp_path / "theirs" / "run")
    refused(said, "may not be written to", "choose another place")


def test_a_cache_that_is_full(
    opendg: Command, tree: Path, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENDG_CACHE", str(disk("64k")))
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", tmp_path / "run")
    refused(said, "The decoded images", "OPENDG_CACHE")
    assert not (tmp_path / "run").exists()


def test_a_run_that_may_only_be_read(opendg: Command, trained: Path, tree: Path, disk: Disk) -> None:
    """It predicts; its evaluation, which writes into it, is refused."""
    folder = disk("5m")
    shutil.copytree(trained, folder / "run")
    for path in [*folder.rglob("evaluation*"), *folder.rglob("target*")]:
        path.unlink()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    assert opendg("predict", folder / "run", tree / "ink" / "bar", "--json").code == 0
    refused(opendg("evaluate", folder / "run"), "may not be written to")


def test_a_figure_that_cannot_be_written(opendg: Command, trained: Path, disk: Disk) -> None:
    said = opendg("evaluate", trained, "--figure", disk("1m", "ro") / "oscr.png")
    refused(said, "The folder ", "of the figure may not be written to: choose another.")


@pytest.mark.parametrize(("limit", "checkpoints"), [(2_000, 3), (300_000, 3), (700_000, 3)])
def test_files_that_may_not_grow(
    tree: Path, trained: Path, forks: Forks, tmp_path: Path, limit: int, checkpoints: int
) -> None:
    """A quota on the size of a file: run.json, the finished weights or the first checkpoint do not fit."""
    assert trained.exists()  # so the images are decoded
    ended = forks.run(
        "train", "erm", "--data", tree, *flags(checkpoint_every=checkpoints), "--out", tmp_path / "run",
        largest_file=limit,
    )  # fmt: skip
    assert ended.code == 2
    assert "could not be written (File too large): choose another place." in ended.err
    assert "Traceback" not in ended.err
    assert list(tmp_path.iterdir()) == []
