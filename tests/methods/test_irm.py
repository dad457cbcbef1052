"""IRM: the slope by autograd, the penalty made of it, the weight over the run."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.irm import IRM, invariance_penalty, restraint
from small import small_state
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of, pair


def slope(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """d/dw of the mean cross-entropy of w z at w = 1, by autograd."""
    w = torch.ones((), dtype=logits.dtype, requires_grad=True)
    return torch.autograd.grad(cross_entropy(w * logits, labels), w, create_graph=True)[0]


def penalty_by_hand(logits: torch.Tensor, episode: Episode, halves: bool) -> torch.Tensor:
    parts = []
    for z, task in zip(logits.split(episode.sizes), episode.each(), strict=True):
        if halves:
            parts.append(slope(z[::2], task.labels[::2]) * slope(z[1::2], task.labels[1::2]))
        else:
            parts.append(slope(z, task.labels) ** 2)
    return sum(parts) / len(parts)


@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 3), (2, 2, 2, 2)])
def test_penalty_is_made_of_autograds_slopes(sizes: tuple[int, ...], halves: bool) -> None:
    episode = domain_episode(sizes)
    logits = torch.randn(sum(sizes), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = penalty_by_hand(logits, episode, halves).detach()
    torch.testing.assert_close(invariance_penalty(logits, episode, halves), expected)


def test_one_image_has_no_halves() -> None:
    with pytest.raises(OpenDGError, match="needs two images of each domain"):
        invariance_penalty(torch.randn(3, 4), domain_episode((2, 1)), halves=True)


@pytest.mark.parametrize("halves", [True, False])
def test_gradient_is_that_of_the_objective(halves: bool) -> None:
    """sum CE / B + 6 lambda (mean_e P_e), with autograd's own second derivative inside."""
    method, episode = IRM(IRM.Config(weight=2.5, anneal=0.0, halves=halves, restrain=False)), domain_episode()
    mine, _ = pair(method)
    found = gradients_of(method, mine, episode)
    logits = mine(episode.images).logits
    risks = [cross_entropy(z, t.labels) for z, t in zip(logits.split(episode.sizes), episode.each(), strict=True)]
    loss = 6 * (torch.stack(risks).mean() + 2.5 * penalty_by_hand(logits, episode, halves))
    for name, gradient in zip(found, torch.autograd.grad(loss, list(mine.parameters())), strict=True):
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("weight", [1e-3, 1000.0])
def test_restraint_keeps_the_penalty_below_the_cross_entropy(weight: float) -> None:
    """CE' + c (lambda P)', the second at most half as long as the first at the logits; a weak penalty stays whole."""
    method, episode = IRM(IRM.Config(weight=weight, anneal=0.0)), domain_episode()
    mine, _ = pair(method)
    logits = mine(episode.images).logits
    ce, penalty = 6 * cross_entropy(logits, episode.labels), 6 * weight * invariance_penalty(logits, episode)
    pull, push = (torch.autograd.grad(loss, logits, retain_graph=True)[0].norm() for loss in (ce, penalty))
    share = min(1.0, float(pull / (2 * push)))
    assert (share == 1) == (weight < 1)
    expected = torch.autograd.grad(ce + share * penalty, list(mine.parameters()))
    found = gradients_of(method, mine, episode)
    for name, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_restraint_leads_out_of_the_trap_at_zero() -> None:
    """Near z = 0 the bare objective climbs in cross-entropy as soon as the slope is beyond -1 / (2 lambda)."""
    labels = torch.arange(12) % 4
    logits = (0.05 * torch.nn.functional.one_hot(labels).double()).requires_grad_()
    episode = domain_episode()
    ce, penalty = 6 * cross_entropy(logits, labels), 600 * invariance_penalty(logits, episode)
    pull, push = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ce, penalty))
    assert (pull * (pull + push)).sum() < 0
    assert (pull * (pull + restraint(ce, penalty, logits) * push)).sum() > 0.4 * pull.square().sum()


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    assert equals_erm(IRM(IRM.Config(weight=0.0, ova=ova)))
    same = compare(IRM(IRM.Config(weight=1.0, ova=ova, restrain=False)))
    assert all(equal == name.startswith("head.ova.") for name, equal in same.items())


def test_lambda_is_1_first_and_whole_later() -> None:
    method, episode = IRM(IRM.Config(weight=100.0, anneal=0.1)), domain_episode()
    state, logged = small_state(), []
    for fraction in (0.0, 0.05, 0.1, 0.9):
        state.fraction.fill_(fraction)
        (update,) = method.step(pair(method)[0], episode, state)
        logged.append(float(update.losses["irm"].detach()))
    assert logged[0] == logged[1] != 0
    assert logged[2] == logged[3] == pytest.approx(100 * logged[0])
