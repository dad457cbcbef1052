"""Means of weights and fresh BatchNorm statistics."""

from __future__ import annotations

import copy

import torch

from opendg.methods.averaging import adopt, blank, fold, named, renew_batchnorm
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


def test_new_statistics_are_those_of_even_batches_however_many_images_a_domain_has() -> None:
    """40 images of one domain and 360 of another, one after the other: both count alike, and in every batch."""
    classifier = small_classifier(ERM(), batchnorm=True)
    images = torch.randn(400, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images[40:] += 3
    norm = classifier.backbone.net[0][1]
    maps = classifier.backbone.net[0][0](images).detach()
    survey = Images(images, domains=[0] * 40 + [1] * 360)
    renew_batchnorm(classifier, survey)
    means = torch.stack([maps[:40].mean((0, 2, 3)), maps[40:].mean((0, 2, 3))])
    within = (maps[:40].var((0, 2, 3)) + maps[40:].var((0, 2, 3))) / 2
    torch.testing.assert_close(norm.running_mean, means.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(norm.running_var, within + means.diff(dim=0)[0].square() / 4, rtol=0.03, atol=0)
    again = copy.deepcopy(norm.running_var)
    renew_batchnorm(classifier, survey)
    assert torch.equal(norm.running_var, again)
    assert norm.momentum == 0.1
    assert classifier.training


def test_new_statistics_of_a_compiled_network_come_from_plain_passes() -> None:
    def compiled(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a pass of another size would be compiled anew")

    classifier = small_classifier(ERM(), batchnorm=True)
    classifier.fused = compiled
    renew_batchnorm(classifier, Images(torch.randn(40, 3, 8, 8, dtype=torch.float64)))
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 16
    assert classifier.fused is compiled


def test_without_batchnorm_no_image_is_asked_for() -> None:
    renew_batchnorm(small_classifier(ERM()), Images(torch.empty(0)))
