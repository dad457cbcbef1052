"""MMD: the discrepancy pair by pair and image by image."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch

from opendg.methods.mmd import MMD, discrepancy, square_distances
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of, pair

G = (0.001, 0.01, 0.1, 1, 10, 100, 1000)


def kernel_by_hand(a: torch.Tensor, b: torch.Tensor, biased: bool) -> float:
    """Mean over pairs of sum_g exp(-g ||x - y||^2); without self-pairs where a and b are the same domain."""
    pairs = [(x, y) for i, x in enumerate(a) for j, y in enumerate(b) if biased or a is not b or i != j]
    values = [sum(math.exp(-g * float(((x - y) ** 2).sum())) for g in G) for x, y in pairs]
    return sum(values) / len(values)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 2), (2, 3, 4, 5)])
@pytest.mark.parametrize("spread", [0.05, 1.0, 20.0])
def test_discrepancy_by_hand(sizes: tuple[int, ...], spread: float, biased: bool) -> None:
    features = spread * torch.randn(sum(sizes), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def k(a: torch.Tensor, b: torch.Tensor) -> float:
        return kernel_by_hand(a, b, biased)

    pairs = [k(a, a) + k(b, b) - 2 * k(a, b) for a, b in combinations(features.split(sizes), 2)]
    assert float(discrepancy(features, sizes, biased)) == pytest.approx(sum(pairs) / len(pairs), rel=1e-9)


def test_alike_domains_have_no_discrepancy() -> None:
    """Biased: for equal images. Not biased: on average for draws from one distribution, where the biased one is off."""
    random = torch.Generator().manual_seed(2)
    one = torch.randn(4, 5, dtype=torch.float64, generator=random)
    assert float(discrepancy(torch.cat([one, one, one]), (4, 4, 4), biased=True)) == pytest.approx(0, abs=1e-12)
    assert float(discrepancy(torch.cat([one, one + 1, one]), (4, 4, 4), biased=True)) > 0.1
    draws = [torch.randn(12, 5, dtype=torch.float64, generator=random) for _ in range(400)]
    means = {b: sum(float(discrepancy(draw, (4, 4, 4), b)) for draw in draws) / 400 for b in (True, False)}
    assert abs(means[False]) < 0.02 < 1 < means[True]


def test_one_image_of_a_domain_is_enough_for_a_finite_value() -> None:
    assert discrepancy(torch.randn(3, 5), (1, 2)).isfinite()


def test_distances_of_images_to_themselves_are_0_in_float32_too() -> None:
    """The narrowest kernel multiplies them by 1000, so that a rounding error would count."""
    points = (30 * torch.randn(20, 512)).requires_grad_()
    distances = square_distances(points)
    assert torch.equal(distances.diagonal(), torch.zeros(20))
    (gradient,) = torch.autograd.grad(distances.diagonal().sum(), points)
    assert float(gradient.detach().abs().max()) < 1e-3
    torch.testing.assert_close(distances, torch.cdist(points, points).square(), rtol=1e-4, atol=1.0)


@pytest.mark.parametrize("setting", [{"biased": True}, {}])
def test_gradient_is_that_of_the_objective(setting: dict[str, bool]) -> None:
    method, episode = MMD(MMD.Config(weight=0.7, **setting)), domain_episode()
    mine, _ = pair(method)
    found = gradients_of(method, mine, episode)
    outputs = mine(episode.images)
    kernel = sum(torch.exp(-g * torch.cdist(outputs.features, outputs.features).square()) for g in G)
    blocks = [[kernel[4 * i : 4 * i + 4, 4 * j : 4 * j + 4].mean() for j in range(3)] for i in range(3)]
    if not setting:  # an image and itself are 4 of 16 pairs, each with the 7 kernels at 1
        blocks = [[(16 * b - 28) / 12 if i == j else b for j, b in enumerate(row)] for i, row in enumerate(blocks)]
    penalty = sum(blocks[i][i] + blocks[j][j] - 2 * blocks[i][j] for i, j in ((0, 1), (0, 2), (1, 2))) / 3
    loss = 6 * (torch.nn.functional.cross_entropy(outputs.logits, episode.labels) + 0.7 * penalty)
    for name, gradient in zip(found, torch.autograd.grad(loss, list(mine.parameters())), strict=True):
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_weight_1_is_not(ova: bool) -> None:
    assert equals_erm(MMD(MMD.Config(weight=0.0, ova=ova)))
    same = compare(MMD(MMD.Config(ova=ova)))
    assert all(equal == name.startswith("head.") for name, equal in same.items())  # the heads see no penalty
