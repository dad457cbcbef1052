"""MMLD: latent domains, found by clustering styles, that the features learn not to tell apart.

Matsuura, Harada, AAAI 2020, https://arxiv.org/abs/1911.07661. The given domain labels are not used.

    L = CE(z, y) + L_dom(D(R_a f), cluster) + b H(p),     a = b = 2 / (1 + exp(-10 t)) - 1,   t = fraction of the run

R_a leaves f as it is and turns its gradient by -a (gradient reversal): D learns the clusters, f learns to hide them.
L_dom is a cross-entropy weighted by the inverse size of the clusters; H(p) is the entropy of the softmax.

Clusters: channel means and deviations of the maps after stages 1 and 2 of all source images, PCA to 256 dimensions,
K-means; their numbers follow those of the time before (the Hungarian matching with the most common images).
D: d - 1024 - 1024 - clusters, ReLU, dropout 0.5.

Needs maps after stages 1 and 2 (the first two blocks of the ConvNet). The first clusters come from the weights that the
run starts with. Cost: that of ERM, and every `interval` iterations a forward pass over the source images in evaluation
mode with PCA and K-means on the host.
Deviations: the authors cluster once an epoch, 30 times in a run (`interval=50`, part of `--recipe authors`), and the
source images kept for validation with the others. Nesterov momentum is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from opendg.episodes import Episode, Pool
from opendg.errors import OpenDGError
from opendg.methods.base import Authors, Method, State, Survey, Update, gradients, mean_over_processes
from opendg.methods.checks import at_least
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights
from opendg.models.modes import evaluating
from opendg.models.stages import channels, looks, stage_module, style

STAGES = ("1", "2")
DIMENSIONS = 256


class LatentDomainClassifier(Classifier):
    """A Classifier with a second reader of its features: which cluster is an image from?"""

    def __init__(self, backbone: Backbone, classes: int, head: str, clusters: int) -> None:
        super().__init__(backbone, classes, head)
        first, second, third = nn.Linear(backbone.width, 1024), nn.Linear(1024, 1024), nn.Linear(1024, clusters)
        self.discriminator = nn.Sequential(first, nn.ReLU(), nn.Dropout(), second, nn.ReLU(), nn.Dropout(), third)


class MMLD(Method):
    name = "mmld"
    title = "MMLD"
    paper = "Matsuura & Harada, Domain Generalization Using a Mixture of Multiple Latent Domains, AAAI 2020, https://arxiv.org/abs/1911.07661"
    idea = "Cluster styles into latent domains and train the features against a discriminator of them."
    kind = "adversarial"
    cost = "1x, and a pass over the source images each interval"
    # SGD 1e-3, decay 5e-4, 128 images. Our loss is 6 times their mean: the rate is divided by 6, the decay multiplied.
    # 30 epochs of PACS, the clusters anew in each.
    authors = Authors(
        recipe={"lr": 1e-3 / 6, "weight_decay": 3e-3, "batch": 21, "iterations": 1500},
        settings={"rate": 10.0, "interval": 50},
    )

    @dataclass(frozen=True)
    class Config(ERM.Config):
        clusters: int = 3  # latent domains
        adversary: float = 1.0  # factor of a, the reversed gradient
        entropy: float = 1.0  # factor of b; with adversary 0 and entropy 0 this is ERM
        rate: float = 1.0  # learning rate of heads and discriminator, as a factor; 10 in the authors' code
        interval: int = 200  # iterations between two clusterings

        def __post_init__(self) -> None:
            at_least(self, clusters=2, interval=1)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.interval = self.config.interval

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        for stage in STAGES:
            stage_module(backbone, stage)
        channels(backbone)  # refuses stages without maps
        return LatentDomainClassifier(backbone, classes, self.head, self.config.clusters)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        return {"head.": self.config.rate, "discriminator.": self.config.rate}

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        like, images = next(classifier.head.parameters()), int(pool.counts.sum())
        if self.config.clusters > images:
            raise OpenDGError(
                f"MMLD cannot deal {images} training images into {self.config.clusters} clusters: set fewer "
                "clusters, or bring more images."
            )
        clusters = torch.zeros(images, dtype=torch.int64, device=like.device)
        return {"clusters": clusters, "weights": torch.ones(self.config.clusters, dtype=like.dtype, device=like.device)}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, LatentDomainClassifier)
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        ramp = 2 / (1 + torch.exp(-10 * state.fraction)) - 1
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        clusters = state.own["clusters"].index_select(0, episode.positions)
        features = reversed_gradient(outputs.features, self.config.adversary * ramp)
        guess = classifier.discriminator(features)
        losses["domain"] = scaled(F.cross_entropy(guess, clusters, state.own["weights"]), episode)
        log_p = outputs.logits.log_softmax(1)
        losses["entropy"] = -self.config.entropy * ramp * (log_p.exp() * log_p).sum() / episode.batch
        yield Update(losses, gradients(total(losses), weights))

    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        """New clusters, numbered after the old ones; none after the last iteration, when nobody learns from them."""
        if float(state.fraction) >= 1:
            return
        found = cluster(styles(survey, classifier), self.config.clusters)
        if int(state.step) > 0:
            found = renumber(found, state.own["clusters"].cpu().numpy(), self.config.clusters)
        sizes = np.bincount(found, minlength=self.config.clusters)
        state.own["clusters"].copy_(torch.from_numpy(found))
        state.own["weights"].copy_(torch.from_numpy(1 / sizes.clip(min=1)))


def reversed_gradient(features: Tensor, factor: Tensor) -> Tensor:
    """The features as they are; their gradient times -factor."""
    return features.detach() - factor.to(features.dtype) * (features - features.detach())


@torch.no_grad()
def styles(survey: Survey, classifier: Classifier) -> NDArray[np.float32]:
    """Channel means and deviations after the early stages, a row for each training image."""
    rows = []
    with evaluating(classifier):
        for images in survey.images():
            maps: dict[str, Tensor] = {}
            classifier(images.to(classifier.precise), looks(STAGES, maps))
            parts = [(mean, variance.sqrt()) for mean, variance in (style(maps[stage]) for stage in STAGES)]
            rows.append(torch.cat([*parts[0], *parts[1]], dim=1).flatten(1).float())
    return mean_over_processes(torch.cat(rows)).cpu().numpy()  # statistics of BatchNorm differ between processes


def cluster(rows: NDArray[np.float32], clusters: int) -> NDArray[np.int64]:
    """PCA to at most 256 dimensions, then K-means."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    small = PCA(min(DIMENSIONS, *rows.shape), svd_solver="full").fit_transform(rows)
    return np.asarray(KMeans(clusters, n_init=10, random_state=0).fit_predict(small), dtype=np.int64)


def renumber(new: NDArray[np.int64], old: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
    """The new clusters under the numbers of the old ones that they share most images with, all told."""
    from scipy.optimize import linear_sum_assignment

    common = np.zeros((clusters, clusters), dtype=np.int64)
    np.add.at(common, (new, old), 1)
    return np.asarray(linear_sum_assignment(common, maximize=True)[1][new], dtype=np.int64)
