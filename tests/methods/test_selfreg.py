"""SelfReg: the braces image by image, shuffles that keep the class, the curriculum, the mean of the last weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from opendg.methods.base import State
from opendg.methods.chance import beta
from opendg.methods.erm import ERM
from opendg.methods.selfreg import SelfReg, class_shuffle
from opendg.models.backbones import Backbone
from opendg.training.optim import make_optimizer
from small import small_backbone, small_classifier, small_state
from tests.methods.averaging_surveys import Images
from tests.methods.beside_erm import compare, domain_episode, equals_erm
from tests.methods.meta_by_hand import full_pool

POOL = full_pool(3, 4)


def own_state(method: SelfReg) -> State:
    return small_state(method.state(small_classifier(method, batchnorm=True), POOL))


def mse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return sum((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten(), strict=True)) / a.numel()


@pytest.mark.parametrize("hard", [True, False])
def test_loss_by_hand(hard: bool) -> None:
    """Both sides of c = min(1, CE)."""
    method, episode = SelfReg(SelfReg.Config(weight=0.7)), domain_episode()
    classifier = small_classifier(method, batchnorm=True)
    with torch.no_grad():
        classifier.head.linear.weight *= 8
        if not hard:  # the labels are what the network says
            episode = replace(episode, labels=classifier(episode.images).logits.argmax(1))
    state = own_state(method)
    start = state.random.get_state()
    update = next(iter(method.step(classifier, episode, state)))

    state.random.set_state(start)  # the same l and shuffles again, in the same order
    share = beta(state, 0.5, 0.5).double()
    s, t = class_shuffle(episode.labels, state).tolist(), class_shuffle(episode.labels, state).tolist()
    outputs = classifier(episode.images)
    z, f, r = outputs.logits, outputs.features, classifier.projection(outputs.features)
    z2, r2 = (torch.stack([v[i] for i in s]) for v in (z, r))
    z3, r3 = (torch.stack([share * v[i] + (1 - share) * v[j] for i, j in zip(s, t, strict=True)]) for v in (z, r))
    ce = torch.nn.functional.cross_entropy(z, episode.labels)
    assert (float(ce.detach()) > 1) == hard
    braces = share * (mse(z, z2) + 0.3 * mse(f, r2)) + (1 - share) * (mse(z, z3) + 0.3 * mse(f, r3))
    loss = 6 * (ce + 0.7 * min(1.0, float(ce.detach())) * braces)
    torch.testing.assert_close(torch.stack(list(update.losses.values())).sum(), loss)
    for name, gradient in zip(update.gradients, torch.autograd.grad(loss, list(classifier.parameters())), strict=True):
        torch.testing.assert_close(update.gradients[name], gradient, msg=name)


def test_shuffles_keep_the_class_and_reach_every_partner() -> None:
    labels = torch.tensor([2, 0, 1, 0, 2, 2, 300, 0])
    state, met = small_state(), set()
    for _ in range(200):
        order = class_shuffle(labels, state)
        assert sorted(order.tolist()) == list(range(8))
        assert torch.equal(labels[order], labels)
        assert int(order[6]) == 6  # alone in its class
        met.add((int(order[0]), int(order[4])))
    assert met == {(a, b) for a in (0, 4, 5) for b in (0, 4, 5) if a != b}


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    plain = SelfReg(SelfReg.Config(weight=0.0, curriculum=False, average_from=1.0, ova=ova))
    assert equals_erm(plain, own_state(plain))
    drawn = [m.tasks(POOL, 4, 0, np.random.default_rng(0)) for m in (plain, ERM())]
    assert drawn[0] == drawn[1]
    method = SelfReg(SelfReg.Config(ova=ova))
    same = compare(method, own_state(method))
    assert all(equal == name.startswith("head.ova.") for name, equal in same.items() if "bias" not in name)


def test_projection_as_in_the_notes() -> None:
    shapes = [tuple(p.shape) for p in small_classifier(SelfReg()).projection.parameters()]
    assert shapes == [(12, 6), (12,), (12,), (12, 12), (12,), (12,), (6, 12), (6,), (6,)]
    with torch.device("meta"):
        large = Backbone("large", torch.nn.Identity(), 2048, small_backbone().input, {})
        assert SelfReg().build(large, 4, 3).projection[0].weight.shape == (2048, 2048)


def known_length(method: SelfReg, iterations: int) -> SelfReg:
    """The run's length as a run tells it: after the first interval."""
    state = own_state(method)
    state.step.fill_(20)
    state.fraction.fill_(20 / iterations)
    method.every(Images(torch.empty(0)), small_classifier(method), state)
    method.recall(state)
    return method


@pytest.mark.parametrize(("domains", "joins"), [(3, [0, 100, 200]), (2, [0, 200]), (5, [0, 50, 100, 150, 200])])
def test_domains_join_in_the_first_third(domains: int, joins: list[int]) -> None:
    method = known_length(SelfReg(), 600)
    assert method.iterations == 600
    for count, step in enumerate(joins, start=1):
        assert method.joined(step, domains) == count
        assert step == 0 or method.joined(step - 1, domains) == count - 1
    assert method.joined(599, domains) == domains
    pool = full_pool(domains, 4)
    sizes = [task.size for task in ERM().tasks(pool, 4, 0, np.random.default_rng(0))]
    for step in (0, 60, 599):
        tasks = method.tasks(pool, 4, step, np.random.default_rng(0))
        assert [task.size for task in tasks] == sizes
        assert {d for task in tasks for d in task.domains} == set(range(method.joined(step, domains)))


def test_a_resumed_run_recalls_the_length_and_a_new_one_starts_with_one_domain() -> None:
    method = SelfReg()
    assert method.joined(50, 3) == 1
    state = own_state(method)
    state.own["iterations"].fill_(600)
    method.recall(state)
    assert method.joined(100, 3) == 2
    assert SelfReg(SelfReg.Config(curriculum=False)).joined(0, 3) == 3


def test_finished_weights_are_the_mean_of_the_last_fifth() -> None:
    method, episode = SelfReg(), domain_episode()
    classifier = small_classifier(method, batchnorm=True)
    state, path = small_state(method.state(classifier, POOL)), []
    optimizer = make_optimizer("sgd", classifier.weights(), 0.0, {})
    for step in range(10):
        state.fraction.fill_(step / 10)
        for update in method.step(classifier, episode, state):
            optimizer.apply(update.gradients, torch.tensor(0.05))
        path.append(classifier.head.linear.weight.detach().clone())
        state.step += 1
    assert float(state.own["averaged"]) == 2
    images = torch.randn(96, 3, 8, 8, dtype=torch.float64)  # as many as are drawn at a time: each comes once
    method.finish(Images(images), classifier, state)
    torch.testing.assert_close(classifier.head.linear.weight.detach(), torch.stack(path[8:]).mean(0))
    norm, maps = classifier.backbone.net[0][1], classifier.backbone.net[0][0](images)
    torch.testing.assert_close(norm.running_mean, maps.detach().mean((0, 2, 3)))


def test_without_averaging_the_last_weights_stay() -> None:
    method = SelfReg(SelfReg.Config(average_from=1.0))
    classifier = small_classifier(method)
    state, before = small_state(method.state(classifier, POOL)), classifier.head.linear.weight.detach().clone()
    list(method.step(classifier, domain_episode(), state))
    method.finish(Images(torch.empty(0)), classifier, state)
    assert torch.equal(classifier.head.linear.weight, before)
