"""kill -9 at any moment, then --resume until the run is finished: the weights are the same to the last bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from opendg.runs.directory import Run
from tests.e2e.forks import End, Forks
from tests.tiny import flags

KILLED = -signal.SIGKILL
CHECKPOINT = 7
ITERATIONS = 60


def words(tree: Path, out: Path, seed: int = 0) -> list[object]:
    """A run with all that has to be carried over: averages, selection, momentum, a loss summed across checkpoints."""
    asked = flags(
        batch=1, iterations=ITERATIONS, checkpoint_every=CHECKPOINT, average_over=0.5, select="source-accuracy",
        select_after=0.9, seed=seed,
    )  # fmt: skip
    return ["train", "medic", "--data", tree, *asked, "--out", out]


class Whole(NamedTuple):
    """The run that nobody has killed."""

    path: Path
    changes: int
    worked: float


@pytest.fixture(scope="session")
def whole(tree: Path, forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    ended = forks.run(*words(tree, folder / "run"), watch=str(folder))
    assert ended.code == 0, ended.err
    return Whole(folder / "run", ended.changes, ended.worked)


FINISHED = ("weights.safetensors", "averaged.safetensors", "source-val-selected.npz", "source-val-averaged.npz")


def assert_weights(found: Path, whole: Whole) -> None:
    for name in FINISHED:
        assert (found / name).read_bytes() == (whole.path / name).read_bytes(), name


def assert_same(found: Path, whole: Whole) -> None:
    """Also the log, and no scraps."""
    assert_weights(found, whole)
    logs = [[entry for entry in Run.open(path).read_log() if "warning" not in entry] for path in (found, whole.path)]
    assert logs[0] == logs[1]
    assert sorted(path.name for path in found.iterdir()) == sorted(path.name for path in whole.path.iterdir())


def finished(out: Path) -> bool:
    return out.exists() and Run.open(out).finished


def go_on(forks: Forks, tree: Path, out: Path, **order: float | None) -> End:
    """What a user does after a kill: resume where there is a run, else start again."""
    again = ["train", "--resume", out] if out.exists() else words(tree, out)
    return forks.run(*again, watch=str(out.parent), **order)


@pytest.mark.parametrize("share", range(12))
def test_killed_before_a_change_to_the_disk(tree: Path, forks: Forks, whole: Whole, tmp_path: Path, share: int) -> None:
    """Twelve of the moments, from the first folder that is made to the last file that goes."""
    moment = 1 + share * (whole.changes - 1) // 11
    out = tmp_path / "run"
    assert forks.run(*words(tree, out), watch=str(tmp_path), kill_before=moment).code == KILLED
    if not finished(out):
        assert go_on(forks, tree, out).code == 0
        assert_same(out, whole)
    assert_weights(out, whole)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 8, 9])
def test_killed_within_a_write(tree: Path, forks: Forks, whole: Whole, tmp_path: Path, number: int) -> None:
    """Half of the file is on the disk: run.json, manifest, tensors and JSON of checkpoints."""
    out = tmp_path / "run"
    assert forks.run(*words(tree, out), kill_within=number).code == KILLED
    assert go_on(forks, tree, out).code == 0
    assert_same(out, whole)


def test_killed_again_and_again(tree: Path, forks: Forks, whole: Whole, tmp_path: Path) -> None:
    """Each attempt gets a little further: resume itself is killed too."""
    out, attempts = tmp_path / "run", 0
    while not finished(out):
        ended = go_on(forks, tree, out, kill_before=14 + attempts)
        assert ended.code in (0, KILLED), ended.err
        attempts += 1
        assert attempts < 40
    assert attempts > 3
    assert_weights(out, whole)


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_times(tree: Path, forks: Forks, whole: Whole, tmp_path: Path, seed: int) -> None:
    """Whatever it is doing."""
    out, chance, kills = tmp_path / "run", random.Random(seed), 0
    while not finished(out):
        limit = chance.uniform(0.05, 0.7) * whole.worked if kills < 4 else None
        ended = go_on(forks, tree, out, kill_after=limit)
        assert ended.code in (0, -signal.SIGPROF), ended.err
        kills += ended.code != 0
    assert kills
    assert_weights(out, whole)


@pytest.fixture
def half(tree: Path, forks: Forks, whole: Whole, tmp_path: Path) -> Path:
    """A run that was killed with two checkpoints on the disk, or with a third before the oldest went."""
    out = tmp_path / "run"
    ended = forks.run(*words(tree, out), watch=str(tmp_path), kill_before=whole.changes // 2)
    assert ended.code == KILLED
    assert len(list(out.glob("checkpoints/*.json"))) >= 2
    return out


def newest(run: Path) -> Path:
    return max(run.glob("checkpoints/step-*.json"))


@pytest.mark.parametrize("harm", ["cut", "flipped", "json cut", "gone"])
def test_a_torn_checkpoint_is_refused_and_the_one_before_used(
    forks: Forks, whole: Whole, half: Path, harm: str
) -> None:
    path = newest(half)
    tensors = path.with_suffix(".safetensors")
    if harm == "cut":
        os.truncate(tensors, tensors.stat().st_size // 2)
    elif harm == "flipped":
        data = bytearray(tensors.read_bytes())
        data[len(data) // 2] ^= 0x10
        tensors.write_bytes(data)
    elif harm == "json cut":
        os.truncate(path, 30)
    else:
        tensors.unlink()
    ended = forks.run("train", "--resume", half)
    assert ended.code == 0, ended.err
    assert f"The checkpoint '{path.stem}' " in ended.err
    assert "the one before it will be used" in ended.err
    warned = [entry for entry in Run.open(half).read_log() if "warning" in entry]
    assert [(entry["step"], path.stem in entry["warning"]) for entry in warned] == [(step(path) - CHECKPOINT, True)]
    assert_same(half, whole)


def step(path: Path) -> int:
    return int(path.stem.split("-")[1])


def test_when_every_checkpoint_is_torn_the_run_starts_anew(forks: Forks, whole: Whole, half: Path) -> None:
    for path in half.glob("checkpoints/*.safetensors"):
        path.write_bytes(b"")
    assert forks.run("train", "--resume", half).code == 0
    assert_same(half, whole)


def test_a_foreign_checkpoint_is_refused(tree: Path, forks: Forks, whole: Whole, half: Path, tmp_path: Path) -> None:
    """Of a run with another seed: every shape fits, and yet it is not used."""
    other = tmp_path / "other"
    ended = forks.run(*words(tree, other, seed=1), watch=str(other.parent), kill_before=whole.changes // 3)
    assert ended.code == KILLED
    foreign = newest(other)
    name = f"step-{step(newest(half)) + CHECKPOINT:08d}"
    said = json.loads(foreign.read_text()) | {"step": step(newest(half)) + CHECKPOINT}
    (half / "checkpoints" / f"{name}.json").write_text(json.dumps(said))
    shutil.copy(foreign.with_suffix(".safetensors"), half / "checkpoints" / f"{name}.safetensors")
    ended = forks.run("train", "--resume", half)
    assert ended.code == 0, ended.err
    assert f"The checkpoint '{name}' is of another run" in ended.err
    assert_same(half, whole)


def test_a_killed_run_still_says_what_it_is(forks: Forks, half: Path) -> None:
    ended = forks.run("evaluate", half)
    assert ended.code == 2
    assert "is not finished: go on with `opendg train --resume" in ended.err
