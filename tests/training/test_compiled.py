"""What torch.compile is asked to do, with its cheapest backend: how often it compiles, and what numbers come out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from opendg.models import classifier
from tests.training.parts import advance, make_parts


@pytest.mark.filterwarnings("default")  # the compiler warns of its own parts
@pytest.mark.parametrize(("method", "graphs"), [("erm", 1), ("medic", 2), ("medic++", 2), ("mldg", 2)])
def test_one_compiled_network_serves_all_weights(
    tree: Path, monkeypatch: pytest.MonkeyPatch, method: str, graphs: int
) -> None:
    """The network at theta and at fast weights is one graph; the inner step is the other."""

    def once(work: Callable[..., object]) -> Callable[..., object]:
        return torch.compile(work, backend="eager", dynamic=False)

    monkeypatch.setattr(classifier, "compiled", once)
    monkeypatch.setattr(classifier, "_compiled_once", once)
    torch._dynamo.reset()
    counters.clear()
    options = {"backbone": "test_resnet", "weights": "none", "batch": 1, "iterations": 3}
    plain = advance(make_parts(tree, method, torch.float64, **options), 1)
    fused = make_parts(tree, method, torch.float64, **options)
    fused.classifier.fuse()
    advance(fused, 1)
    assert counters["stats"]["unique_graphs"] == graphs
    for name, tensor in fused.tensors().items():
        torch.testing.assert_close(
            tensor, plain.tensors()[name], rtol=1e-6, atol=1e-9, msg=lambda m, n=name: f"{n} {m}"
        )
