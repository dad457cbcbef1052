"""Arith: the falling weights, and the gradient that they make of MEDIC++'s steps."""

from __future__ import annotations

import copy

import pytest
import torch

from opendg.methods.arith import Arith
from opendg.methods.medicpp import MEDICpp
from small import small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import assert_same, flat, gradient_by_hand, loss_by_hand, move_by_hand

NINE = (2,) * 9


@pytest.mark.parametrize(("steps", "weights"), [(1, [1]), (2, [4 / 3, 2 / 3]), (3, [1.5, 1, 0.5])])
def test_weights_fall_evenly_and_sum_to_the_number_of_steps(steps: int, weights: list[float]) -> None:
    found = Arith().step_weights(steps)
    assert found == pytest.approx(weights)
    assert sum(found) == pytest.approx(steps)


def test_the_gradient_points_to_the_mean_of_the_points_on_the_way() -> None:
    """theta - mean(theta_1 .. theta_3) = alpha (g_0 + 2/3 g_1 + 1/3 g_2), scaled by 3/2 / alpha."""
    alpha = 0.2
    method = Arith(Arith.Config(alpha=alpha))
    classifier, episode = small_classifier(method), small_episode(NINE)
    network = copy.deepcopy(classifier)
    points = [{name: p.detach().clone() for name, p in network.named_parameters()}]
    for step in range(3):
        loss = loss_by_hand(network, episode.tasks(3 * step, 3 * step + 3))
        move_by_hand(network, gradient_by_hand(network, loss), alpha)
        points.append({name: p.detach().clone() for name, p in network.named_parameters()})
    (update,) = method.step(classifier, episode, small_state())
    start, *way = points
    mean = {name: torch.stack([point[name] for point in way]).mean(dim=0) for name in start}
    assert_same(update.gradients, {name: 1.5 * (start[name] - mean[name]) / alpha for name in start})


def test_its_weights_change_the_gradient_of_medicpp() -> None:
    found = []
    for method in (Arith(), MEDICpp()):
        (update,) = method.step(small_classifier(method), small_episode(NINE), small_state())
        found.append(flat(update))
    assert not torch.allclose(found[0], found[1], rtol=1e-3)
