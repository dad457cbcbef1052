"""DSON: the normalisation value by value, domains kept apart, branches averaged."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from opendg.errors import OpenDGError
from opendg.methods.dson import DSON, DomainNorm, averaged
from opendg.models.backbones import build_backbone
from opendg.models.classifier import Outputs
from small import small_classifier
from tests.methods.beside_erm import domain_episode, gradients_of


def started(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """As if it came from a trained network."""
    torch.manual_seed(2)
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm


def some_layer(domains: int) -> DomainNorm:
    layer = DomainNorm(started(nn.BatchNorm2d(3)), domains).double()
    for parameter in layer.parameters():  # every domain its own
        nn.init.normal_(parameter)
    return layer


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2 + 1


def moments(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / len(values)


@pytest.mark.parametrize("training", [True, False])
def test_layer_by_hand(training: bool) -> None:
    layer, x = some_layer(2).train(training), images(6)
    running = layer.running_mean.clone(), layer.running_var.clone()
    found = layer(x)
    for d in range(2):
        w, v = (torch.softmax(raw[d], 0).tolist() for raw in (layer.mean_mix, layer.variance_mix))
        for c in range(3):
            batch = moments(x[3 * d : 3 * d + 3, c].flatten().tolist())
            if training:
                torch.testing.assert_close(layer.running_mean[d, c], 0.9 * running[0][d, c] + 0.1 * batch[0])
                torch.testing.assert_close(layer.running_var[d, c], 0.9 * running[1][d, c] + 0.1 * batch[1] * 24 / 23)
            else:
                batch = float(running[0][d, c]), float(running[1][d, c])
            for i in range(3 * d, 3 * d + 3):
                image = moments(x[i, c].flatten().tolist())
                mean, variance = w[0] * image[0] + w[1] * batch[0], v[0] * image[1] + v[1] * batch[1]
                expected = layer.weight[d, c] * (x[i, c] - mean) / math.sqrt(variance + 1e-5) + layer.bias[d, c]
                torch.testing.assert_close(found[i, c], expected)


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_alone_are_batchnorm(training: bool) -> None:
    norm = started(nn.BatchNorm2d(3)).double()
    layer = DomainNorm(norm, 1).double().train(training)
    with torch.no_grad():
        for raw in (layer.mean_mix, layer.variance_mix):
            raw.copy_(torch.tensor([[-1e4, 1e4]]))
    torch.testing.assert_close(layer(images(6)), norm.train(training)(images(6)))
    torch.testing.assert_close(layer.running_mean[0], norm.running_mean)
    torch.testing.assert_close(layer.running_var[0], norm.running_var)


def test_a_domain_is_not_moved_by_another() -> None:
    layer, x = some_layer(3), images(9)
    other = x.clone()
    other[3:6] += 5 * torch.rand_like(other[3:6])
    first, second = layer(x), layer(other)
    torch.testing.assert_close(first[:3], second[:3])
    torch.testing.assert_close(first[6:], second[6:])
    assert not torch.allclose(first[3:6], second[3:6])
    (gradient,) = torch.autograd.grad(second[3:6].square().sum(), layer.weight)
    assert (gradient[1] != 0).all()
    assert (gradient[[0, 2]] == 0).all()


def test_every_batchnorm_starts_as_a_copy_and_mixes_evenly() -> None:
    backbone = build_backbone("resnet10t")
    norm = started(backbone.net.layer2[0].bn1)
    network = DSON().build(backbone, 4, 3)
    assert not [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    layer = backbone.net.layer2[0].bn1
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(getattr(layer, name), getattr(norm, name).expand(3, -1))
    assert torch.equal(layer.mean_mix.softmax(1), torch.full((3, 2), 0.5))


def test_what_timm_fuses_with_batchnorm_stays() -> None:
    """EfficientNet's normalisation layers hold their activation."""
    backbone = build_backbone("efficientnet_b0")
    network = DSON().build(backbone, 4, 2).eval()
    kept = [type(m).__name__ for m in network.backbone.net.bn1.then]
    assert kept[-1] == "SiLU"
    assert network(torch.randn(2, 3, 32, 32)).logits.shape == (2, 4)


def test_branches_are_averaged_as_probabilities() -> None:
    torch.manual_seed(0)
    outputs = Outputs(torch.randn(6, 5), torch.randn(6, 4), torch.randn(6, 2, 4))  # two images, three domains
    found = averaged(outputs, 3)
    for i in range(2):
        rows = [i, i + 2, i + 4]
        torch.testing.assert_close(found.features[i], sum(outputs.features[r] for r in rows) / 3)
        torch.testing.assert_close(found.logits[i].softmax(0), sum(outputs.logits[r].softmax(0) for r in rows) / 3)
        torch.testing.assert_close(found.ova[i].softmax(0), sum(outputs.ova[r].softmax(0) for r in rows) / 3)
        energies = sum(outputs.logits[r].logsumexp(0) for r in rows) / 3
        torch.testing.assert_close(found.logits[i].logsumexp(0), energies)


def test_evaluation_sees_an_image_as_one_of_each_domain() -> None:
    method, episode = DSON(), domain_episode()
    network = small_classifier(method, batchnorm=True)
    gradients_of(method, network, episode)  # running statistics part ways
    network.eval()
    layer = network.backbone.net[0][1]
    expected = []
    for d in range(3):
        x = network.backbone.net[0][0](episode.images[:2])
        together = torch.cat([torch.zeros(2 * d, *x.shape[1:]), x, torch.zeros(2 * (2 - d), *x.shape[1:])])
        x = network.backbone.net[1](network.backbone.net[0][2](layer(together)[2 * d : 2 * d + 2])).mean((2, 3))
        expected.append(network.head(x)[0].softmax(1))
    found = network(episode.images[:2]).logits.softmax(1)
    torch.testing.assert_close(found, sum(expected) / 3)
    assert not torch.allclose(expected[0], expected[1])
    torch.testing.assert_close(network(episode.images[:1]).logits, network(episode.images[:2]).logits[:1])


def test_the_mixing_weights_learn() -> None:
    method = DSON()
    network = small_classifier(method, batchnorm=True)
    found = gradients_of(method, network, domain_episode())
    assert (found["backbone.net.0.1.mean_mix"] != 0).all()
    assert (found["backbone.net.0.1.variance_mix"] != 0).all()


def test_a_backbone_without_batchnorm_is_refused() -> None:
    with pytest.raises(OpenDGError, match="DSON replaces the BatchNorm layers .* 'convnet' has none: choose"):
        DSON().build(build_backbone("convnet"), 4, 3)
