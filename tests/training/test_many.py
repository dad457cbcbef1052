"""Many runs in one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.many import room, side_by_side, train_many
from tests.tiny import quick, write_tree


def counted(number: int, seen: list[str]) -> tuple[Run, Iterator[int]]:
    def iterations() -> Iterator[int]:
        for step in range(1, 3):
            seen.append(f"{number}.{step}")
            yield step

    return Run(Path(str(number)), {}, {}), iterations()


def test_on_the_cpu_runs_train_one_after_another() -> None:
    seen: list[str] = []
    runs = list(side_by_side([partial(counted, number, seen) for number in range(3)], lanes=2, device="cpu"))
    assert [run.path.name for run in runs] == ["0", "1", "2"]
    assert seen == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]


@pytest.mark.parametrize(("free", "expected"), [(48, True), (47, False)])
def test_a_further_run_needs_two_thirds_of_the_memory(monkeypatch: Any, free: int, expected: bool) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 72))
    assert room() is expected


def many(tree: Path, folder: Path, **more: Any) -> list[Run]:
    """ERM on two targets with two seeds."""
    asked = {name: value for name, value in quick(**more).items() if name != "target"}
    return train_many("erm", str(tree), ["ink", "wood"], [0, 1], folder=folder, **asked)


def test_no_lane_at_all_is_refused_before_anything_is_made(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match=r"--lanes 0 is out of range: give 1 or more\."):
        many(tree, tmp_path / "runs", lanes=0)
    assert not (tmp_path / "runs").exists()


def stop_in(run: int) -> Callable[[int, int, dict[str, float]], None]:
    """A report that is Ctrl-C at the end of the numbered run, where its losses are logged."""
    seen: list[int] = []

    def report(step: int, total: int, losses: dict[str, float]) -> None:
        seen.append(step)
        if len(seen) == run:
            raise KeyboardInterrupt

    return report


def weights(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(folder.glob("*/weights.safetensors"))}


@pytest.fixture(scope="module")
def whole(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "runs"
    many(tree, folder, checkpoint_every=4)
    return folder


def test_the_same_call_goes_on_where_it_was_stopped(tree: Path, whole: Path, tmp_path: Path) -> None:
    folder, notes, done, seen = tmp_path / "runs", list[str](), list[str](), list[tuple[int, int]]()
    with pytest.raises(KeyboardInterrupt):
        many(tree, folder, checkpoint_every=4, report=stop_in(2))
    assert sorted(path.name for path in folder.iterdir()) == ["ink-0", "wood-0"]
    assert [Run.open(folder / name).finished for name in ("ink-0", "wood-0")] == [True, False]
    before = (folder / "ink-0" / "weights.safetensors").stat().st_mtime_ns
    runs = many(
        tree, folder, checkpoint_every=4, note=notes.append, finished=lambda run: done.append(run.path.name),
        report=lambda step, total, losses: seen.append((step, total)),
    )  # fmt: skip
    assert notes == ["Kept, as they are finished: ink-0.", "Taken up again: wood-0."]
    assert done == [run.path.name for run in runs] == ["ink-0", "wood-0", "ink-1", "wood-1"]
    assert seen == [(12, 24), (18, 24), (24, 24)]
    assert (folder / "ink-0" / "weights.safetensors").stat().st_mtime_ns == before
    assert weights(folder) == weights(whole)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"lr": 0.5}, "recipe.lr"),
        ({"unknown": ["dot"]}, "protocol.known, protocol.unknown"),
        ({"chosen": {"ova": True}}, "settings.ova"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_of_another_job_is_refused_before_anything_is_trained(
    tree: Path, whole: Path, tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    shutil.rmtree(folder / "ink-0")  # what comes first is missing
    with pytest.raises(OpenDGError, match=f"wood-0' was trained with another {said}.*: choose another --out"):
        many(tree, folder, **other)
    assert sorted(path.name for path in folder.iterdir()) == ["ink-1", "wood-0", "wood-1"]


def test_runs_on_other_images_or_devices_are_not_kept(tree: Path, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    with pytest.raises(OpenDGError, match="started on 1 device"):
        many(tree, folder, devices=2)
    moved = shutil.copytree(tree, tmp_path / "signs")
    assert len(many(moved, folder)) == 4, "the same images, elsewhere"
    (moved / "neon" / "bar" / "000.png").unlink()
    with pytest.raises(OpenDGError, match="images .* are not those that .* was started with"):
        many(moved, folder)


def test_a_run_is_taken_up_again_where_its_data_lie_now(whole: Path, tmp_path: Path) -> None:
    tree, folder = write_tree(tmp_path / "signs"), tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        many(tree, folder, checkpoint_every=4, report=stop_in(1))
    (tmp_path / "there").mkdir()
    many(tree.rename(tmp_path / "there" / "signs"), folder, checkpoint_every=4)
    assert weights(folder) == weights(whole)


def test_a_folder_that_is_no_run_is_refused(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "wood-1").mkdir()
    with pytest.raises(OpenDGError, match="wood-1' is not a run directory"):
        many(tree, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["wood-1"]


@pytest.mark.parametrize(
    ("targets", "seeds", "more", "said"),
    [
        (["ink", "wod"], [0], {}, "no domain 'wod' in signs"),
        (["ink", "wood", "ink"], [0], {}, "The target 'ink' is named twice"),
        (["ink"], [1, 0, 1], {}, "The seed 1 is named twice"),
        (["ink"], [0], {"iteratons": 9}, "no argument 'iteratons': did you mean 'iterations'"),
        (["ink", "wood"], [0], {"sources": ["chalk", "wood"]}, "'wood' is both source and target"),
    ],
)
def test_all_runs_are_checked_before_the_first_is_trained(
    tree: Path, tmp_path: Path, targets: list[str], seeds: list[int], more: dict[str, Any], said: str
) -> None:
    asked = {name: value for name, value in quick(**more).items() if name != "target"}
    with pytest.raises(OpenDGError, match=said):
        train_many("erm", str(tree), targets, seeds, folder=tmp_path / "runs", **asked)
    assert not (tmp_path / "runs").exists()
