"""CORAL: means and covariances entry by entry."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from opendg.methods.coral import CORAL, misalignment
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of, pair


def pair_by_hand(a: torch.Tensor, b: torch.Tensor) -> float:
    """mean((mu_a - mu_b)^2) + mean((C_a - C_b)^2)."""
    d = a.shape[1]
    means, covariances = [], []
    for part in (a, b):
        mu = [sum(float(row[i]) for row in part) / len(part) for i in range(d)]
        means.append(mu)
        covariances.append([
            [sum((float(r[i]) - mu[i]) * (float(r[j]) - mu[j]) for r in part) / (len(part) - 1) for j in range(d)]
            for i in range(d)
        ])  # fmt: skip
    first = sum((x - y) ** 2 for x, y in zip(*means, strict=True)) / d
    second = sum((covariances[0][i][j] - covariances[1][i][j]) ** 2 for i in range(d) for j in range(d)) / d**2
    return first + second


@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 2), (2, 3, 4, 5)])
def test_misalignment_by_hand(sizes: tuple[int, ...]) -> None:
    features = torch.randn(sum(sizes), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    pairs = [pair_by_hand(a, b) for a, b in combinations(features.split(sizes), 2)]
    assert float(misalignment(features, sizes)) == pytest.approx(sum(pairs) / len(pairs), rel=1e-10)


def test_domains_that_are_shuffles_of_each_other_are_aligned() -> None:
    one = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert float(misalignment(torch.cat([one, one.flip(0)]), (6, 6))) == pytest.approx(0, abs=1e-12)


def test_one_image_of_a_domain_is_enough_for_a_finite_value() -> None:
    assert misalignment(torch.randn(3, 5), (1, 2)).isfinite()


def test_gradient_is_that_of_the_objective() -> None:
    method, episode = CORAL(CORAL.Config(weight=0.7)), domain_episode()
    mine, _ = pair(method)
    found = gradients_of(method, mine, episode)
    outputs = mine(episode.images)
    parts = outputs.features.split(4)
    penalty = sum(
        (a.mean(0) - b.mean(0)).square().mean() + (a.T.cov() - b.T.cov()).square().mean()
        for a, b in combinations(parts, 2)
    )
    loss = 6 * (torch.nn.functional.cross_entropy(outputs.logits, episode.labels) + 0.7 * penalty / 3)
    for name, gradient in zip(found, torch.autograd.grad(loss, list(mine.parameters())), strict=True):
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    assert equals_erm(CORAL(CORAL.Config(weight=0.0, ova=ova)))
    same = compare(CORAL(CORAL.Config(ova=ova)))
    assert all(equal == name.startswith("head.") for name, equal in same.items())  # the heads see no penalty
