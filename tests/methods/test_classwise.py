"""The class-wise half of MEDIC: its tasks, and its two sides by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from opendg.methods.medic import MEDIC, Classwise
from opendg.methods.registry import make_method
from small import small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import assert_same, full_pool, gradient_by_hand, loss_by_hand, move_by_hand


@pytest.mark.parametrize("domains", [1, 2, 3, 5])
def test_the_sides_differ_in_classes_and_not_in_domains(domains: int) -> None:
    for step in range(5):
        train, test = Classwise().tasks(full_pool(domains, 6), 8, step, np.random.default_rng(step))
        assert train.domains == test.domains == tuple(range(domains))
        assert sorted(train.classes + test.classes) == list(range(6))
        assert len(test.classes) == 2
        assert train.size == test.size == 24


@pytest.mark.parametrize("ova", [True, False])
def test_both_sides_by_hand(ova: bool) -> None:
    method = Classwise(Classwise.Config(alpha=0.2, beta=0.7, ova=ova))
    classifier, episode = small_classifier(method), small_episode((6, 6))
    network = copy.deepcopy(classifier)
    train, test = episode.each()
    inner = gradient_by_hand(network, loss_by_hand(network, train))
    move_by_hand(network, inner, 0.2)
    outer = gradient_by_hand(network, loss_by_hand(network, test))
    (update,) = method.step(classifier, episode, small_state())
    assert_same(update.gradients, {name: inner[name] + 0.7 * outer[name] for name in inner})


def test_it_is_medic_without_the_domain_split() -> None:
    assert make_method("classwise").config == Classwise.Config()
    preset, plain = make_method("classwise"), make_method("medic", {"domain_split": False})
    for step in range(3):
        drawn = [m.tasks(full_pool(3, 6), 4, step, np.random.default_rng(step)) for m in (preset, plain)]
        assert drawn[0] == drawn[1]
    assert Classwise.step is MEDIC.step
