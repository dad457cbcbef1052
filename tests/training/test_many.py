"""Many runs in one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from opendg.data.catalog import DATASETS
from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.many import room, side_by_side, train_many
from tests.data.trees import grid, write
from tests.tiny import quick, write_tree


def counted(number: int, seen: list[str], steps: int = 2) -> tuple[Run, Iterator[int]]:
    def iterations() -> Iterator[int]:
        for step in range(1, steps + 1):
            seen.append(f"{number}.{step}")
            yield step

    return Run(Path(str(number)), {}, {}), iterations()


def test_on_the_cpu_runs_train_one_after_another() -> None:
    seen: list[str] = []
    runs = list(side_by_side([partial(counted, number, seen) for number in range(3)], lanes=2, device="cpu"))
    assert [run.path.name for run in runs] == ["0", "1", "2"]
    assert seen == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]


@pytest.mark.parametrize(
    ("free", "order"), [(72, "0.1 0.2 1.1 0.3 1.2 1.3 2.1 2.2 2.3"), (47, "0.1 0.2 0.3 1.1 1.2 1.3 2.1 2.2 2.3")]
)
def test_on_a_gpu_a_further_lane_is_begun_after_a_step_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, free: int, order: str
) -> None:
    """The order alone, so that it is seen where there is no GPU too."""
    seen, looks = list[str](), list[int]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (looks.append(free) or free, 72))
    runs = list(side_by_side([partial(counted, number, seen, 3) for number in range(3)], lanes=2))
    assert [run.path.name for run in runs] == ["0", "1", "2"]
    assert seen == order.split()
    assert len(looks) == 2, "when a run has begun or ended, not at every step"


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
    written = folder / "wood-1" / "run.json"
    written.write_text(json.dumps(json.loads(written.read_text()) | {"starting_weights": "other"}))
    with pytest.raises(OpenDGError, match="weights .* are not those that .*wood-1' was started with"):
        many(tree, folder)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_is_taken_up_again_on_the_devices_that_are_asked_for(
    tree: Path, whole: Path, tmp_path: Path, devices: int
) -> None:
    folder = shutil.copytree(whole, tmp_path / "runs")
    for path in folder.iterdir():
        (path / "weights.safetensors").unlink()
        config = json.loads((path / "run.json").read_text()) | {"devices": devices}
        (path / "run.json").write_text(json.dumps(config))
    with pytest.raises(OpenDGError, match="There is no device 'gpu'"):
        many(tree, folder, device="gpu", devices=devices)


def test_runs_are_given_in_the_order_asked_for_and_done_with_as_they_come(
    tree: Path, whole: Path, tmp_path: Path
) -> None:
    folder, done = shutil.copytree(whole, tmp_path / "runs"), list[str]()
    shutil.rmtree(folder / "ink-0")
    runs = many(tree, folder, checkpoint_every=4, finished=lambda run: done.append(run.path.name))
    assert [run.path.name for run in runs] == ["ink-0", "wood-0", "ink-1", "wood-1"]
    assert done == ["wood-0", "ink-1", "wood-1", "ink-0"]


def test_a_target_of_several_domains_is_one_run(tree: Path, tmp_path: Path) -> None:
    asked = {name: value for name, value in quick(iterations=2).items() if name != "target"}
    (run,) = train_many("erm", str(tree), ["ink,wood"], [0], folder=tmp_path, **asked)
    assert run.path == tmp_path / "ink,wood-0"
    assert run.config["protocol"]["targets"] == ("ink", "wood")


def test_steps_are_compiled_where_it_pays_for_all_runs_together(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        many(tree, tmp_path, iterations=3000, batch=1, checkpoint_every=20, report=stop_in(1))
    assert Run.open(tmp_path / "ink-0").config["compile"]


def test_a_run_is_taken_up_again_where_its_data_lie_now(whole: Path, tmp_path: Path) -> None:
    tree, folder = write_tree(tmp_path / "signs"), tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        many(tree, folder, checkpoint_every=4, report=stop_in(1))
    (tmp_path / "there").mkdir()
    many(tree.rename(tmp_path / "there" / "signs"), folder, checkpoint_every=4)
    assert weights(folder) == weights(whole)


def test_a_run_on_a_named_dataset_is_taken_up_again_below_its_new_root(tmp_path: Path) -> None:
    pacs = DATASETS["pacs"]
    write(tmp_path / "here" / "pacs" / "kfold", grid(pacs.domains, pacs.classes, each=4, height=32, width=32))
    asked = {name: value for name, value in quick(checkpoint_every=4).items() if name not in ("target", "unknown")}
    sketch = partial(train_many, "erm", "pacs", ["sketch"], [0], folder=tmp_path / "runs", **asked)
    with pytest.raises(KeyboardInterrupt):
        sketch(root=tmp_path / "here", report=stop_in(1))
    (tmp_path / "here").rename(tmp_path / "there")
    (run,) = sketch(root=tmp_path / "there")
    assert run.finished


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch], ids=["folder", "file"])
def test_what_is_no_run_is_refused(tree: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "wood-1")
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
        (["ink"], [0], {"lane": 1}, "no argument 'lane': did you mean 'lanes'"),
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
