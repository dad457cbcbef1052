"""Random numbers inside a step: their distributions, and that the state's generator alone decides them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from opendg.methods.base import State
from opendg.methods.chance import beta, dirichlet, on_host, permutation, uniform
from small import small_state

MANY = 20_000
DRAWS: dict[str, tuple[Callable[[State], Tensor], float, float]] = {  # each with its mean and variance
    "uniform": (lambda state: uniform(state, MANY), 1 / 2, 1 / 12),
    "beta(2, 6)": (lambda state: beta(state, 2.0, 6.0, MANY), 1 / 4, 1 / 48),
    "beta(0.1, 0.1)": (lambda state: beta(state, 0.1, 0.1, MANY), 1 / 2, 1 / 4.8),
    "dirichlet(0.6, 0.2, 0.2)": (lambda state: dirichlet(state, [0.6, 0.2, 0.2], MANY)[:, 0], 0.6, 0.12),
    "dirichlet(2, 6)": (lambda state: dirichlet(state, [2.0, 6.0], MANY)[:, 1], 3 / 4, 1 / 48),
}


@pytest.mark.parametrize("name", DRAWS)
def test_mean_and_variance(name: str) -> None:
    draw, mean, variance = DRAWS[name]
    found = draw(small_state())
    assert found.shape == (MANY,)
    assert float(found.mean()) == pytest.approx(mean, abs=0.03)
    assert float(found.var()) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("name", DRAWS)
def test_the_generator_of_the_state_decides_and_goes_on(name: str) -> None:
    draw, state = DRAWS[name][0], small_state()
    first, second = draw(state), draw(state)
    torch.manual_seed(99)
    assert torch.equal(draw(small_state()), first)
    assert not torch.equal(first, second)


def test_shares_sum_to_one() -> None:
    found = dirichlet(small_state(), [0.2, 0.2, 0.6], 5, 4)
    assert found.shape == (5, 4, 3)
    torch.testing.assert_close(found.sum(-1), torch.ones(5, 4))


def test_permutations_reach_every_order() -> None:
    state = small_state()
    orders = {tuple(permutation(state, 3).tolist()) for _ in range(200)}
    assert len(orders) == 6
    assert all(sorted(order) == [0, 1, 2] for order in orders)


def test_the_hosts_generator_comes_from_the_state() -> None:
    state = small_state()
    first, second = (on_host(state).integers(1000, size=5).tolist() for _ in range(2))
    assert on_host(small_state()).integers(1000, size=5).tolist() == first
    assert first != second
