"""The captured step against the same step run eagerly, on the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
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


CASES = [(name, {}) for name in list_methods() if METHODS[name].captures] + [("medic", {"order": 2})]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """No TF32, and kernels that give the same twice where there are such."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.allow_tf32 = before


def make(
    method: str, settings: dict[str, object], seed: int = 7, dtype: torch.dtype = torch.float32, device: str = "cuda"
) -> Loop:
    torch.manual_seed(0)
    loop = synthetic_loop(
        method, "resnet18", device, settings=settings, images=300, precision="fp32", average_over=0.5, lr=1e-3,
        dtype=dtype,
    )  # fmt: skip
    torch.manual_seed(seed)
    loop.feed.images.random_(0, 256)
    return loop


def agree(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], rtol: float = 1e-3, atol: float = 1e-4
) -> None:
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("method", "settings"), CASES)
def test_captured_equals_eager(method: str, settings: dict[str, object]) -> None:
    """fp32, deterministic kernels: weights, momentum, BatchNorm buffers, averages agree to 1e-4 after 8 steps."""
    eager = run(make(method, settings), 8)
    loop = make(method, settings)
    loop.capture()
    torch.backends.cudnn.benchmark = False
    replayed = run(loop, 8)
    assert int(replayed["state.step"]) == 8
    agree(replayed, eager)


@pytest.mark.parametrize(("method", "settings"), [("erm", {"ova": True}), ("medic", {})])
def test_compiled_equals_eager(method: str, settings: dict[str, object]) -> None:
    """fp64, so that another order of the same sums does not matter: all agree to 1e-6 after 8 steps.

    In fp32 a ReLU that falls to the other side of zero moves single gradients by far more than its rounding.
    """
    eager = run(make(method, settings, dtype=torch.float64), 8)
    loop = make(method, settings, dtype=torch.float64)
    loop.capture(compile=True)
    loop.prepare_images = loop.augment.apply  # images are made in fp32: the next test
    replayed = run(loop, 8)
    assert int(replayed["state.step"]) == 8
    agree(replayed, eager, rtol=1e-5, atol=1e-6)


def test_compiled_augmentation_equals_eager() -> None:
    """The same images to 1e-3, where a pixel has a standard deviation of about 1."""
    loop = make("erm", {})
    loop.feed.prepare(0)
    batch = loop.feed.batch(loop.state.step)
    given = (batch.images, batch.plan, loop.size, loop.mean, loop.std)
    plain = loop.prepare_images(*given)
    loop.capture(compile=True)
    torch.testing.assert_close(loop.prepare_images(*given), plain, rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["medic", "cirl"])  # without and with dropout
def test_runs_side_by_side_do_not_disturb_each_other(method: str) -> None:
    """Two captured loops on streams of their own, 100 steps: the numbers of each alone."""
    alone = []
    for seed in (1, 2):
        loop = make(method, {}, seed)
        loop.capture()
        alone.append(run(loop, 100))
    lanes = [(make(method, {}, seed), torch.cuda.Stream()) for seed in (1, 2)]
    for loop, _ in lanes:
        loop.capture()
    torch.cuda.synchronize()  # what was made on the usual stream is there
    for step in range(100):
        for loop, stream in lanes:
            with torch.cuda.stream(stream):
                loop.feed.prepare(step)
                loop.run()
    torch.cuda.synchronize()
    for (loop, _), wanted in zip(lanes, alone, strict=True):
        agree(loop.tensors(), wanted)
