"""Checkpoints written by a thread while training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.runs.writer import Writer


class Slow(Run):
    """A run on a disk that waits until it is let go, and may be full."""

    def __init__(self, path: Path, full: bool = False) -> None:
        super().__init__(path, {}, {})
        self.disk, self.full = threading.Event(), full

    def checkpoint(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        assert self.disk.wait(10)
        if self.full:
            raise OpenDGError("The disk is full.")
        super().checkpoint(step, tensors, facts)


def test_training_goes_on_while_a_checkpoint_is_written_and_does_not_change_it(tmp_path: Path) -> None:
    run, weight = Slow(tmp_path), torch.zeros(3)
    with Writer(run) as writer:
        writer.checkpoint(1, {"weight": weight}, {})
        weight += 1  # the next iteration; the disk has not begun
        run.disk.set()
    found = run.latest_checkpoint()
    assert found is not None
    assert found.step == 1
    assert found.tensors["weight"].tolist() == [0, 0, 0]


def write(run: Run, steps: int, then: BaseException | None = None) -> None:
    """A training that writes so many checkpoints and ends, in an error if one is given."""
    with Writer(run) as writer:
        for step in range(steps):
            writer.checkpoint(step, {"weight": torch.zeros(3)}, {})
        if then:
            raise then


def test_the_end_waits_for_the_last_checkpoint(tmp_path: Path) -> None:
    run = Slow(tmp_path)
    threading.Timer(0.2, run.disk.set).start()
    with pytest.raises(KeyboardInterrupt):
        write(run, 1, KeyboardInterrupt())
    assert run.latest_checkpoint() is not None


@pytest.mark.parametrize(
    ("steps", "then", "told"),
    [(1, None, "The disk is full"), (2, ValueError("diverged"), "The disk is full"), (1, ValueError("no"), "no")],
    ids=["at the end", "by the next checkpoint", "after an error of the training itself"],
)
def test_what_could_not_be_written_is_told(tmp_path: Path, steps: int, then: Exception | None, told: str) -> None:
    run = Slow(tmp_path, full=True)
    run.disk.set()
    with pytest.raises((OpenDGError, ValueError), match=told):
        write(run, steps, then)
