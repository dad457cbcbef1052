from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.training.optim import make_optimizer, schedule

SHAPES = {"backbone.a": (3, 4), "backbone.b": (5,), "head.c": (2, 2, 2)}
THEIRS: dict[str, Any] = {
    "sgd": lambda weights, decay: torch.optim.SGD(weights, lr=1, momentum=0.9, weight_decay=decay),
    "adam": lambda weights, decay: torch.optim.Adam(weights, lr=1, weight_decay=decay),
    "adamw": lambda weights, decay: torch.optim.AdamW(weights, lr=1, weight_decay=decay),
}


def drawn(seed: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("decay", [0.0, 5e-4, 0.3])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("rule", ["constant", "step", "cosine"])
def test_twenty_steps_are_those_of_torch(name: str, decay: float, rule: str) -> None:
    mine, theirs = drawn(0), {key: weight.requires_grad_() for key, weight in drawn(0).items()}
    optimizer, oracle = make_optimizer(name, mine, decay, {}), THEIRS[name](list(theirs.values()), decay)
    for step in range(20):
        lr = 0.03 * schedule(rule)(torch.tensor(step / 20, dtype=torch.float64)).double()
        gradients = drawn(1 + step)
        optimizer.apply(gradients, lr)
        for key, weight in theirs.items():
            weight.grad = gradients[key]
        oracle.param_groups[0]["lr"] = float(lr)
        oracle.step()
    for key, weight in theirs.items():
        torch.testing.assert_close(mine[key], weight.detach(), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(mine["backbone.a"], drawn(0)["backbone.a"], atol=1e-2)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_parameters_without_a_gradient_stay(name: str) -> None:
    """An adversary's update moves its own; decay and momentum of the others wait for their turn."""
    weights = drawn(0)
    optimizer = make_optimizer(name, weights, 0.1, {})
    for step in range(3):
        optimizer.apply(drawn(step), torch.tensor(0.1))
    before = {key: weight.clone() for key, weight in weights.items()}
    moments = {key: value.clone() for key, value in optimizer.state.items()}
    optimizer.apply({"head.c": drawn(9)["head.c"]}, torch.tensor(0.1))
    assert [key for key in weights if not torch.equal(weights[key], before[key])] == ["head.c"]
    assert {key.split(".", 1)[1] for key in moments if not torch.equal(optimizer.state[key], moments[key])} == {
        "head.c"
    }


def test_rates_are_factors_by_the_start_of_a_name() -> None:
    """The longest start counts; a name without one has the common rate."""
    weights = drawn(0)
    before = {key: weight.clone() for key, weight in weights.items()}
    optimizer = make_optimizer("sgd", weights, 0.0, {"backbone": 0.1, "backbone.b": 0.0})
    gradients = drawn(1)
    optimizer.apply(gradients, torch.tensor(0.5, dtype=torch.float64))
    for key, factor in {"backbone.a": 0.1, "backbone.b": 0.0, "head.c": 1.0}.items():
        torch.testing.assert_close(weights[key], before[key] - 0.5 * factor * gradients[key])


def test_the_state_holds_all_that_a_step_remembers() -> None:
    """A copy that gets the weights and the state goes on in the same way: what a checkpoint relies on."""
    for name in THEIRS:
        weights = drawn(0)
        optimizer = make_optimizer(name, weights, 1e-3, {})
        for step in range(4):
            optimizer.apply(drawn(step), torch.tensor(0.01))
        copied = {key: weight.clone() for key, weight in weights.items()}
        other = make_optimizer(name, copied, 1e-3, {})
        for key, value in optimizer.state.items():
            other.state[key].copy_(value)
        for one in (optimizer, other):
            one.apply(drawn(7), torch.tensor(0.01))
        assert all(torch.equal(copied[key], weights[key]) for key in weights)


@given(iterations=st.integers(1, 20_000))
def test_the_step_schedule_falls_at_eighty_percent(iterations: int) -> None:
    factor = schedule("step")
    first = -(-8 * iterations // 10)  # the first step of the last fifth

    def at(step: int) -> float:
        return float(factor(torch.tensor(step).double() / iterations))

    assert at(0) == 1
    assert at(first - 1) == 1
    assert at(first) == pytest.approx(0.1)
    assert at(iterations) == pytest.approx(0.1)


def test_cosine_falls_to_nothing_and_constant_stays() -> None:
    fractions = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert schedule("cosine")(fractions).tolist() == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0])
    assert schedule("constant")(fractions).tolist() == [1] * 5


def test_unknown_names_are_refused_with_near_ones() -> None:
    with pytest.raises(OpenDGError, match="no optimiser 'adamm': did you mean 'adam' or 'adamw'"):
        make_optimizer("adamm", drawn(0), 0.0, {})
    few = r"no schedule 'cosin': did you mean 'cosine'\? Choose step, cosine or constant\.$"
    with pytest.raises(OpenDGError, match=few):
        schedule("cosin")
