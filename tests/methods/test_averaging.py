"""Means of weights and fresh BatchNorm statistics."""

from __future__ import annotations

import copy

import pytest
import torch

from opendg.methods.averaging import ENOUGH, adopt, blank, fold, named, renew_batchnorm, spread
from opendg.methods.erm import ERM
from small import small_classifier
from tests.methods.averaging_surveys import Images


def test_folding_one_by_one_gives_the_mean() -> None:
    classifier = small_classifier(ERM())
    own = blank(classifier, "mean") | {"number": torch.zeros(())}
    mean = named(own, "mean")
    assert list(mean) == list(classifier.weights())
    for tensor in mean.values():
        tensor.fill_(9.0)  # what lay there before does not matter
    seen = []
    for k in range(5):
        with torch.no_grad():
            for weight in classifier.parameters():
                weight.normal_()
        seen.append({name: weight.detach().clone() for name, weight in classifier.weights().items()})
        fold(mean, classifier.weights(), 1 / torch.tensor(k + 1.0, dtype=torch.float64))
    adopt(classifier, mean)
    for name, weight in classifier.weights().items():
        torch.testing.assert_close(weight.detach(), torch.stack([s[name] for s in seen]).mean(0))


@pytest.mark.parametrize("count", [1, 300, ENOUGH, 2 * ENOUGH, 3 * ENOUGH + 77, 9000])
def test_spread_is_even(count: int) -> None:
    found = spread(Images(torch.arange(count)))
    assert len(found) == count if count <= 2 * ENOUGH else ENOUGH * 0.9 <= len(found) <= 2 * ENOUGH
    gaps = found.diff()
    assert count == 1 or int(gaps.max()) <= 2 * max(1, int(gaps.float().median()))
    assert count - int(found[-1]) <= 2 * -(-count // len(found))


def test_new_statistics_are_those_of_the_images_whatever_their_order() -> None:
    """Images sorted by kind: statistics of batches of one kind would miss the difference between kinds."""
    classifier = small_classifier(ERM(), batchnorm=True)
    images = torch.randn(512, 3, 8, 8, dtype=torch.float64)
    images[256:] += 3
    norm = classifier.backbone.net[0][1]
    maps = classifier.backbone.net[0][0](images).detach()
    renew_batchnorm(classifier, Images(images))
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)))
    torch.testing.assert_close(norm.running_var, maps.var((0, 2, 3)), rtol=0.03, atol=0)
    again = copy.deepcopy(norm.running_var)
    renew_batchnorm(classifier, Images(images))
    assert torch.equal(norm.running_var, again)
    assert norm.momentum == 0.1
    assert classifier.training


def test_new_statistics_of_a_compiled_network_come_from_plain_passes() -> None:
    def compiled(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a pass of another size would be compiled anew")

    classifier = small_classifier(ERM(), batchnorm=True)
    classifier.fused = compiled
    renew_batchnorm(classifier, Images(torch.randn(40, 3, 8, 8, dtype=torch.float64)))
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 1
    assert classifier.fused is compiled


def test_without_batchnorm_no_image_is_asked_for() -> None:
    renew_batchnorm(small_classifier(ERM()), Images(torch.empty(0)))
