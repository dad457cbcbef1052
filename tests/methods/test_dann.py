"""DANN: two updates of disjoint weights, the second against the discriminator that the first has moved."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from opendg.methods.dann import DANN
from opendg.training.optim import make_optimizer
from small import small_classifier, small_state
from tests.methods.beside_erm import compare, domain_episode, equals_erm


def test_both_updates_by_hand() -> None:
    method, episode = DANN(DANN.Config(weight=0.7)), domain_episode()
    classifier = small_classifier(method, batchnorm=True)
    optimizer = make_optimizer("sgd", classifier.weights(), 0.0, {})
    start = copy.deepcopy(classifier)
    updates = []
    for update in method.step(classifier, episode, small_state()):
        optimizer.apply(update.gradients, torch.tensor(0.1))
        updates.append(update)
    first, second = updates
    assert set(first.gradients) == {n for n in classifier.weights() if n.startswith("discriminator.")}
    assert not set(first.gradients) & set(second.gradients)
    assert set(first.gradients) | set(second.gradients) == set(classifier.weights())

    outputs = start(episode.images)
    told = 6 * cross_entropy(start.discriminator(outputs.features.detach()), episode.domains)
    expected = torch.autograd.grad(told, list(start.discriminator.parameters()))
    for (name, found), gradient in zip(first.gradients.items(), expected, strict=True):
        torch.testing.assert_close(found, gradient, msg=name)
    with torch.no_grad():
        for parameter, gradient in zip(start.discriminator.parameters(), expected, strict=True):
            parameter -= 0.1 * gradient
    fooled = cross_entropy(start.discriminator(outputs.features), episode.domains)
    aim = 6 * (cross_entropy(outputs.logits, episode.labels) - 0.7 * fooled)
    others = {name: weight for name, weight in start.named_parameters() if name not in first.gradients}
    for name, gradient in zip(others, torch.autograd.grad(aim, list(others.values())), strict=True):
        torch.testing.assert_close(second.gradients[name], gradient, msg=name)


def test_discriminator_has_two_hidden_layers_and_an_output_a_domain() -> None:
    shapes = [tuple(p.shape) for p in small_classifier(DANN(), domains=5).discriminator.parameters()]
    assert shapes == [(256, 6), (256,), (256, 256), (256,), (5, 256), (5,)]


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    assert equals_erm(DANN(DANN.Config(weight=0.0, ova=ova)))
    same = compare(DANN(DANN.Config(ova=ova)))
    assert all(equal == name.startswith("head.") for name, equal in same.items())  # the heads do not feel the adversary


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_ramp(fraction: float) -> None:
    state = small_state()
    state.fraction.fill_(fraction)
    expected = 0.5 * (2 / (1 + math.exp(-10 * fraction)) - 1)
    assert float(DANN(DANN.Config(weight=0.5, ramp=True))._weight(state)) == pytest.approx(expected)
    assert float(DANN(DANN.Config(weight=0.5))._weight(state)) == 0.5
    if fraction == 0:
        assert equals_erm(DANN(DANN.Config(ramp=True)), state)


def test_the_discriminator_learns_to_tell_domains_where_nobody_works_against_it() -> None:
    method, episode = DANN(DANN.Config(weight=0.0)), domain_episode()
    classifier = small_classifier(method)
    optimizer = make_optimizer("sgd", classifier.weights(), 0.0, {})
    losses = []
    for _ in range(60):
        for update in method.step(classifier, episode, small_state()):
            optimizer.apply(update.gradients, torch.tensor(0.02))
        losses.append(float(update.losses["domain"].detach()))
    assert losses[-1] < 0.7 * losses[0]
