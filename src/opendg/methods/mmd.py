"""MMD: make the features of every two source domains alike in the eyes of a kernel.

Li, Pan, Wang, Kot, Domain Generalization with Adversarial Feature Learning (MMD-AAE), CVPR 2018,
https://openaccess.thecvf.com/content_cvpr_2018/html/Li_Domain_Generalization_With_CVPR_2018_paper.html, reduced to its
discrepancy as in DomainBed:

    min_theta  mean CE + gamma mean_{i < j} [ k(f_i, f_i) + k(f_j, f_j) - 2 k(f_i, f_j) ],
    k(a, b) = mean over pairs of sum_g exp( -g ||a - b||^2 ),    g in 0.001, 0.01, ..., 1000

f_i are the pooled features of domain i. No image is paired with itself, so that the bracket is 0 in expectation where
two domains are alike.

Needs the pooled features. Cost: that of ERM and one matrix of n x n distances.
Deviations from the paper, shared with DomainBed: no auto-encoder and no adversary that shapes the features to a Laplace
prior. From DomainBed: all domains go through the network as one batch, so BatchNorm sees them together; and its means
take in each image paired with itself (`biased=true`, part of `--recipe authors`). That adds up to 14 / n to the bracket
of domains with n images each, and only features that all fall into one point get rid of it: with 16 images a domain a
network from scratch did just that.
With many features the squared distances are large, and only the smallest g still see a neighbour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.erm import DOMAINBED, ERM, classification_losses, scaled, total
from opendg.models.classifier import Classifier

WIDTHS = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class MMD(Method):
    name = "mmd"
    title = "MMD"
    paper = (
        "Li et al., Domain Generalization with Adversarial Feature Learning, CVPR 2018, "
        "https://openaccess.thecvf.com/content_cvpr_2018/html/Li_Domain_Generalization_With_CVPR_2018_paper.html"
    )
    idea = "Match the feature distributions of every two domains by a sum of Gaussian kernels."
    kind = "alignment"
    min_sources = 2
    authors = Authors(recipe=DOMAINBED, settings={"biased": True})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 1.0  # gamma
        biased: bool = False  # pair each image with itself too

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        apart = discrepancy(outputs.features, episode.sizes, self.config.biased)
        losses["mmd"] = self.config.weight * scaled(apart, episode)
        yield Update(losses, gradients(total(losses), weights))


def discrepancy(features: Tensor, sizes: tuple[int, ...], biased: bool = False) -> Tensor:
    """The mean over pairs of domains; `sizes` are the numbers of their images, one domain after the other.

    With M the S x S table of k(f_i, f_j), the sum over pairs is (S - 1) sum_i M_ii - sum_{i != j} M_ij.
    """
    distances = square_distances(features)
    kernel = torch.stack([torch.exp(-width * distances) for width in WIDTHS]).sum(0)
    rows = torch.stack([part.mean(0) for part in kernel.split(sizes)])
    table = torch.stack([part.mean(1) for part in rows.split(sizes, dim=1)])
    inside, count = table.diagonal(), len(sizes)
    across = table.sum() - inside.sum()
    if not biased:  # an image and itself give exactly len(WIDTHS): take these n of the n^2 pairs out
        pairs = zip(inside, sizes, strict=True)
        inside = torch.stack([(n * mean - len(WIDTHS)) / max(n - 1, 1) for mean, n in pairs])
    return ((count - 1) * inside.sum() - across) / (count * (count - 1) / 2)


def square_distances(points: Tensor) -> Tensor:
    """||p_i - p_j||^2 for all pairs; exactly 0 on the diagonal, also in its gradient."""
    products = points @ points.T
    own = products.diagonal()
    return (own[:, None] + own - 2 * products).clamp_min(0)
