"""The captured step against the same step run eagerly, on the GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from common import synthetic_loop

from opendg.methods.registry import METHODS, list_methods
from opendg.training.loop import Loop

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the compiler warns of its own parts


def run(loop: Loop, steps: int) -> dict[str, torch.Tensor]:
    for step in range(steps):
        loop.feed.prepare(step)
        loop.run()
    return {name: tensor.detach().clone() for name, tensor in loop.tensors().items()}


CASES = [(name, {}, False) for name in list_methods() if METHODS[name].captures]
CASES += [("medic", {"order": 2}, False), ("erm", {"ova": True}, True), ("medic", {}, True)]


@pytest.mark.parametrize(("method", "settings", "compile"), CASES)
def test_captured_equals_eager(method: str, settings: dict[str, object], compile: bool) -> None:
    """fp32, deterministic kernels: weights, momentum, BatchNorm buffers, averages agree to 1e-4 after 8 steps."""
    found = []
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        for captured in (False, True):
            torch.manual_seed(0)
            options = {"settings": settings, "images": 300, "precision": "fp32", "average": 0.99, "lr": 1e-3}
            loop = synthetic_loop(method, "resnet18", "cuda", **options)
            torch.manual_seed(7)
            loop.feed.images.random_(0, 256)
            if captured:
                loop.capture(compile=compile)
                torch.backends.cudnn.benchmark = False
            found.append(run(loop, 8))
    finally:
        torch.use_deterministic_algorithms(False)
    eager, replayed = found
    assert int(replayed["state.step"]) == 8
    for name, tensor in eager.items():
        torch.testing.assert_close(replayed[name], tensor, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
