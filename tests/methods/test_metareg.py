"""MetaReg: the gradient of phi by finite differences, the two parts of a run, the new start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from opendg.methods.base import State
from opendg.methods.chance import permutation
from opendg.methods.metareg import MetaReg, unroll
from opendg.models.classifier import Classifier
from opendg.training.optim import make_optimizer
from small import small_classifier, small_state
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of
from tests.methods.meta_by_hand import full_pool

POOL = full_pool(3, 4)


def made(**config: object) -> tuple[MetaReg, Classifier, State]:
    method = MetaReg(MetaReg.Config(**config))
    classifier = small_classifier(method, batchnorm=True)
    torch.manual_seed(5)
    torch.nn.init.normal_(classifier.domain_heads.weight, std=0.7)
    return method, classifier, small_state(method.state(classifier, POOL))


def trained_by_hand(classifier: Classifier, phi: torch.Tensor, a: int, steps: int, alpha: float) -> tuple:
    """Head a after some steps on CE_a + R_phi, by autograd and plain assignment."""
    episode = domain_episode()
    features = classifier(episode.images).features.detach().split(4)[a]
    w, c = (t[a].detach().clone().requires_grad_() for t in classifier.domain_heads.parameters())
    for _ in range(steps):
        loss = cross_entropy(features @ w.T + c, episode.each()[a].labels) + (phi * w.abs()).sum()
        gw, gc = torch.autograd.grad(loss, (w, c))
        w, c = (w - alpha * gw).detach().requires_grad_(), (c - alpha * gc).detach().requires_grad_()
    return w.detach(), c.detach()


def test_unrolled_steps_are_steps_of_gradient_descent() -> None:
    _, classifier, _ = made()
    episode, phi = domain_episode(), torch.rand(4, 6, dtype=torch.float64)
    features = classifier(episode.images).features.detach().split(4)[1]
    start = [t[1].detach() for t in classifier.domain_heads.parameters()]
    found = unroll(*start, phi, features, episode.each()[1].labels, 0.1, 7)
    for mine, theirs in zip(found, trained_by_hand(classifier, phi, 1, 7, 0.1), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_slope_of_phi_by_finite_differences() -> None:
    """d/dphi of CE_b after training head a with R_phi, each entry moved by hand."""
    method, classifier, state = made(steps=5, alpha=0.2, meta=0.9)
    state.own["phi"].uniform_(0.1, 0.3)
    before = state.random.get_state()
    phi, episode = state.own["phi"].clone(), domain_episode()
    list(method.step(classifier, episode, state))
    found = (phi - state.own["phi"]) / method.config.eta
    state.random.set_state(before)
    a, b = permutation(state, 3)[:2].tolist()
    features = classifier(episode.images).features.detach().split(4)[b]

    def after(moved: torch.Tensor) -> float:
        w, c = trained_by_hand(classifier, moved, a, 5, 0.2)
        return float(cross_entropy(features @ w.T + c, episode.each()[b].labels, reduction="sum") / episode.batch)

    expected = torch.zeros_like(phi)
    for i, j in np.ndindex(4, 6):
        up, down = phi.clone(), phi.clone()
        up[i, j] += 1e-5
        down[i, j] -= 1e-5
        expected[i, j] = (after(up) - after(down)) / 2e-5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


def test_final_objective_by_hand() -> None:
    method, classifier, state = made(meta=0.0, weight=0.7)
    state.own["phi"].uniform_(0.1, 0.3)
    phi, episode = state.own["phi"].clone(), domain_episode()
    found = gradients_of(method, classifier, episode, state)
    loss = cross_entropy(classifier(episode.images).logits, episode.labels)
    loss = 6 * (loss + 0.7 * (phi * classifier.head.linear.weight.abs()).sum())
    expected = torch.autograd.grad(loss, list(classifier.parameters()), materialize_grads=True)
    for name, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert torch.equal(state.own["phi"], phi)  # learned no more


def test_first_part_trains_the_domain_heads_and_not_the_closed_set_head() -> None:
    method, classifier, state = made()
    episode = domain_episode()
    found = gradients_of(method, classifier, episode, state)
    parts = zip(
        classifier(episode.images).features.split(4), episode.each(), *classifier.domain_heads.parameters(), strict=True
    )
    loss = sum(cross_entropy(f @ w.T + c, task.labels, reduction="sum") for f, task, w, c in parts) / episode.batch
    expected = torch.autograd.grad(loss, list(classifier.parameters()), materialize_grads=True)
    for name, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(found[name], gradient, msg=name)
    assert float(found["head.linear.weight"].abs().max()) == 0
    assert float(state.own["phi"].max()) > 0


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    method, _, state = made(weight=0.0, meta=0.0, ova=ova)
    state.own["phi"].fill_(0.5)
    assert equals_erm(method, fitting(method, 0.5))
    method = MetaReg(MetaReg.Config(meta=0.0, ova=ova))
    same = compare(method, fitting(method, 0.5))
    assert not same["head.linear.weight"]
    assert all(
        equal for name, equal in same.items() if name != "head.linear.weight"
    )  # the penalty is on the head alone


def fitting(method: MetaReg, phi: float) -> State:
    """A state for the network that `beside_erm` makes, with phi already learned."""
    state = small_state(method.state(small_classifier(method, batchnorm=True), POOL))
    state.own["phi"].fill_(phi)
    return state


def test_the_network_starts_anew_and_phi_stays() -> None:
    method, classifier, state = made(meta=0.5)
    episode = domain_episode()
    start = {name: tensor.detach().clone() for name, tensor in classifier.state_dict().items()}
    optimizer = make_optimizer("sgd", classifier.weights(), 0.0, {})
    learned = []
    for step in range(6):
        state.fraction.fill_(step / 6)
        for number, update in enumerate(method.step(classifier, episode, state)):
            assert number == 0
            now = classifier.state_dict()
            back = all(torch.equal(now[name], start[name]) for name, _ in classifier.named_parameters())
            assert back == (step in (0, 3))
            optimizer.apply(update.gradients, torch.tensor(0.05))
        learned.append(state.own["phi"].clone())
    assert not torch.equal(learned[0], learned[2])
    assert torch.equal(learned[2], learned[5])
    norm = classifier.backbone.net[0][1]
    assert int(norm.num_batches_tracked) == 6
    assert not torch.allclose(norm.running_mean, start["backbone.net.0.1.running_mean"])


def test_phi_is_never_negative() -> None:
    method, classifier, state = made(eta=10.0, meta=0.9)
    for _ in range(5):
        list(method.step(classifier, domain_episode(), state))
        assert float(state.own["phi"].min()) == 0
    assert float(state.own["phi"].max()) > 0
