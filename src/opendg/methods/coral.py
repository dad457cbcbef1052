"""CORAL: make mean and covariance of the features the same in every source domain.

Sun and Saenko, Deep CORAL, ECCV Workshops 2016, https://arxiv.org/abs/1607.01719, among source domains as in DomainBed:

    min_theta  mean CE + gamma mean_{i < j} [ mean((mu_i - mu_j)^2) + mean((C_i - C_j)^2) ]

mu_i and C_i (with n - 1) are mean and covariance of the d pooled features of domain i; the inner means run over the d
and the d x d entries.

Needs the pooled features. Cost: that of ERM and one d x d covariance a domain.
Deviations from the paper, shared with DomainBed: the means are aligned too, between all pairs of sources; the
covariance term is divided by d^2 where the paper has 4 d^2. From DomainBed: all domains go through the network as one
batch, so BatchNorm sees them together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.erm import DOMAINBED, ERM, classification_losses, scaled, total
from opendg.models.classifier import Classifier


class CORAL(Method):
    name = "coral"
    title = "CORAL"
    paper = "Sun and Saenko, Deep CORAL, ECCV Workshops 2016, https://arxiv.org/abs/1607.01719"
    idea = "Match mean and covariance of the features of every two domains."
    kind = "alignment"
    min_sources = 2
    authors = Authors(recipe=DOMAINBED)

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 1.0  # gamma

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        losses["coral"] = self.config.weight * scaled(misalignment(outputs.features, episode.sizes), episode)
        yield Update(losses, gradients(total(losses), weights))


def misalignment(features: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The mean over pairs of domains; `sizes` are the numbers of their images, one domain after the other."""
    moments = [_moments(part) for part in features.split(sizes)]
    pairs = [
        (mean - other_mean).square().mean() + (covariance - other_covariance).square().mean()
        for (mean, covariance), (other_mean, other_covariance) in combinations(moments, 2)
    ]
    return torch.stack(pairs).mean()


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    mean = features.mean(0)
    centred = features - mean
    return mean, centred.T @ centred / max(len(features) - 1, 1)
