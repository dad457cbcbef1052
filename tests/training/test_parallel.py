"""Two processes with half of every task each against one process with the whole: the same meta-gradient."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from PIL import Image
from safetensors.torch import load_file

from opendg.episodes import Episode
from opendg.methods.registry import make_method
from opendg.runs.directory import Run
from small import small_classifier, small_episode, small_state

CASES = [("erm", {"ova": True}), ("mldg", {}), ("medic", {"order": 1}), ("medic", {"order": 2})]
SIZES = {"erm": (4, 4, 4), "mldg": (6, 6), "medic": (2, 2, 2, 2, 2, 2)}


def share(episode: Episode, rank: int, world: int) -> Episode:
    """What one of the processes sees: its part of every task."""
    starts = np.cumsum([0, *episode.sizes[:-1]])
    mine = np.concatenate([
        start + np.arange(size * rank // world, size * (rank + 1) // world)
        for start, size in zip(starts, episode.sizes, strict=True)
    ])  # fmt: skip
    rows = torch.from_numpy(mine)
    sizes = tuple(size * (rank + 1) // world - size * rank // world for size in episode.sizes)
    picked = (tensor[rows] for tensor in (episode.images, episode.labels, episode.domains, episode.positions))
    return Episode(*picked, sizes=sizes, batch=episode.batch)


def gradient(name: str, settings: dict[str, object], rank: int, world: int) -> torch.Tensor:
    method = make_method(name, {"alpha": 0.3, **settings} if name != "erm" else settings)
    classifier = small_classifier(method, batchnorm=True)
    classifier.freeze_batchnorm = True
    classifier.train()
    (update,) = method.step(classifier, share(small_episode(SIZES[name]), rank, world), small_state())
    return torch.cat([tensor.flatten() for tensor in update.gradients.values()]).detach()


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for number, (name, settings) in enumerate(CASES):
        torch.save(gradient(name, settings, rank, 2), f"{folder}/{number}-{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)  # now and then a thread that Gloo has left behind aborts an interpreter while it is taken down


def test_two_halves_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    mp.spawn(work, args=(str(tmp_path),), nprocs=2)
    for number, (name, settings) in enumerate(CASES):
        whole = gradient(name, settings, 0, 1)
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{number}-{rank}.pt")
            torch.testing.assert_close(found, whole, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for domain in "abc":
        for label in "xyz":
            (tmp_path / "tree" / domain / label).mkdir(parents=True)
            for number in range(12):
                pixels = random.integers(0, 255, (32, 32, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "tree" / domain / label / f"{number}.png")
    return tmp_path / "tree"


# Ends after some iterations, as if it were stopped there.
SOME = """
import json, sys
from itertools import islice
from opendg.training.train import start

_, iterations = start("medic", sys.argv[1], "c", out=sys.argv[2], checkpoint_every=2, **json.loads(sys.argv[4]))
list(islice(iterations, int(sys.argv[3])))
"""
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "opendg"]


def test_torchrun_trains_what_one_process_trains(tree: Path, tmp_path: Path) -> None:
    """The ConvNet has no BatchNorm, so two processes on half the images each must follow one on the whole."""
    options = ["train", "medic", "--data", str(tree), "--target", "c", "--known", "2", "--backbone", "convnet"]
    options += ["--iterations", "4", "--device", "cpu"]
    words = [*TWO, *options, "--out", str(tmp_path / "two"), "--evaluate", "--json"]
    said = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)  # of one process alone
    assert said["record"]["n_known"] == 24
    subprocess.run([sys.executable, "-m", "opendg", *options, "--out", str(tmp_path / "one")], check=True)
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-4, atol=1e-6)
    logs = [json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[-1]) for name in ("one", "two")]
    assert logs[1]["losses"]["meta-train"] == pytest.approx(logs[0]["losses"]["meta-train"], rel=1e-4)


def test_torchrun_goes_on_with_a_run_and_one_process_alone_writes(tree: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"known": 2, "backbone": "convnet", "iterations": 8, "device": "cpu", "track": "none"}
    program = tmp_path / "some.py"
    program.write_text(SOME)
    for name, steps in (("one", 9), ("two", 5)):
        words = [*TWO[:-2], str(program), str(tree), str(tmp_path / name), str(steps), json.dumps(asked)]
        subprocess.run(words, check=True, capture_output=True)
    assert Run.open(tmp_path / "one").finished
    assert Run.open(tmp_path / "two").config["devices"] == 2
    assert (tmp_path / "two" / "checkpoints" / "step-00000004.json").exists()
    again = ["train", "--resume", str(tmp_path / "two"), "--device", "cpu"]
    alone = subprocess.run([*TWO[:1], *TWO[-2:], *again], capture_output=True, text=True)
    assert (alone.returncode, alone.stderr.count("\n")) == (2, 1)
    assert "was started on 2 devices" in alone.stderr
    subprocess.run([*TWO, *again], check=True, capture_output=True)
    one, two = (load_file(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-6, atol=1e-8)
    logs = [Run.open(tmp_path / name).read_log() for name in ("one", "two")]
    assert [entry["step"] for entry in logs[1]] == [8], "a second process that writes would log it twice"
    for name, value in logs[0][-1]["losses"].items():
        assert logs[1][-1]["losses"][name] == pytest.approx(value, rel=1e-6)


# The loss of one process alone is no number at the iteration at which losses are logged.
ODD = """
import json, os, sys
from opendg.errors import Diverged
from opendg.training.loop import Loop
from opendg.training.train import train

plain = Loop.losses

def losses(self, iterations):
    if os.environ["RANK"] == "1":
        for total in self.sums.values():
            total.fill_(float("nan"))
    return plain(self, iterations)

Loop.losses = losses
try:
    train("erm", sys.argv[1], "c", out=sys.argv[2], **json.loads(sys.argv[3]))
except Diverged as error:
    open(sys.argv[2] + os.environ["RANK"], "w").write(str(error))
"""


def test_all_processes_give_up_together(tree: Path, tmp_path: Path) -> None:
    """One that stops alone would leave the others waiting for it."""
    asked: dict[str, Any] = {"known": 2, "backbone": "convnet", "iterations": 2, "device": "cpu", "track": "none"}
    (tmp_path / "odd.py").write_text(ODD)
    words = [*TWO[:-2], str(tmp_path / "odd.py"), str(tree), str(tmp_path / "run"), json.dumps(asked)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    told = [(tmp_path / f"run{rank}").read_text() for rank in (0, 1)]
    assert told == ["The loss 'ce' is no longer finite at step 2: try a smaller --lr."] * 2
    assert not (tmp_path / "run").exists()
