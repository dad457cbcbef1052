from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opendg.losses import one_vs_all


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), classes=st.integers(2, 8), scale=st.sampled_from([0.5, 1.0]))
def test_one_vs_all_against_a_loop(seed: int, classes: int, scale: float) -> None:
    torch.manual_seed(seed)
    ova, labels = torch.randn(5, 2, classes, dtype=torch.float64) * 3, torch.randint(classes, (5,))
    for b, y, found in zip(ova.tolist(), labels.tolist(), one_vs_all(ova, labels, scale).tolist(), strict=True):
        q = [math.exp(b[1][k]) / (math.exp(b[0][k]) + math.exp(b[1][k])) for k in range(classes)]
        expected = -math.log(q[y]) - min(math.log(1 - q[j]) for j in range(classes) if j != y)
        assert found == pytest.approx(scale * expected, rel=1e-9)


def test_one_vs_all_stays_finite_far_out() -> None:
    ova = torch.tensor([[[200.0, -200.0], [-200.0, 200.0]]])
    assert one_vs_all(ova, torch.tensor([0])).item() == pytest.approx(0.5 * 800)
