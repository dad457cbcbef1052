"""A network and an episode small enough to differentiate by hand, in float64."""

from __future__ import annotations

import torch
from torch import nn

from opendg.episodes import Episode
from opendg.methods.base import Method, State
from opendg.models.backbones import Backbone, Input
from opendg.models.classifier import Classifier

HALF = (0.5, 0.5, 0.5)


def small_backbone(batchnorm: bool = False, seed: int = 0) -> Backbone:
    """Two smooth convolutions (tanh, so that finite differences work), 6 features, 8 x 8 images."""
    torch.manual_seed(seed)
    norm: list[nn.Module] = [nn.BatchNorm2d(4)] if batchnorm else []
    first = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), *norm, nn.Tanh())
    second = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Tanh())
    net = nn.Sequential(first, second, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Backbone("small", net, 6, Input((8, 8), HALF, HALF), {"1": "net.0", "2": "net.1"})


def small_classifier(method: Method, classes: int = 4, domains: int = 3, batchnorm: bool = False) -> Classifier:
    classifier = method.build(small_backbone(batchnorm), classes, domains)
    for parameter in classifier.head.parameters():  # larger than at the start of training, so that nothing is near zero
        nn.init.normal_(parameter, std=0.7)
    return classifier.double().train()


def small_episode(sizes: tuple[int, ...], classes: int = 4, domains: int = 3, batch: int = 2) -> Episode:
    torch.manual_seed(1)
    n = sum(sizes)
    images = torch.randn(n, 3, 8, 8, dtype=torch.float64)
    return Episode(images, torch.arange(n) % classes, torch.arange(n) % domains, torch.arange(n), sizes, batch)


def small_state(own: dict[str, torch.Tensor] | None = None) -> State:
    zero, fraction = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.float64)
    return State(zero, fraction, torch.Generator(), own or {})
