"""DAML: one network for each source domain, taught by mixed features, by the other networks, and by the other domains.

Shu, Cao, Wang, Wang, Long, Open Domain Generalization with Domain-Augmented Meta-Learning, CVPR 2021,
https://arxiv.org/abs/2104.03620. N_j is the network of domain j, x_i, y_i images of domain i, fresh ones in each line:

    train  = sum_j [ CE(N_j(x_j), y_j) + distill T^2 KL(blend_j || N_j(x_j) at temperature T) ]
             + mix_train sum_j CE(head_j(mix_j), ymix_j)                        with mix_j ~ Dir(own for j, other else)
    theta^ = theta - alpha grad train
    test   = across sum_{j != i} CE(N_j(x_i), y_i) + mix_test sum_j CE(head_j(mix_j), ymix_j)   with own, other swapped
    theta <- theta - eta (grad train + grad test at theta^)                     first order

mix_j is the weighted sum of one random feature of each domain, all of them made by network j, and ymix_j that of their
labels; blend_j is a Dir(1, .., 1)-weighted sum of what the other networks say of x_j, softened by T, without gradient.
Weights are drawn for each image. So a network learns classes that its own domain lacks: DAML is made for source domains
with different class sets (`--protocol daml`) and works with equal ones too.

Inference: p = the mean of the networks' softmaxes; argmax and max of it. The logits given are log p + the mean of the
networks' energies, so that softmax(logits) = p and the energy score keeps a meaning; features are the networks' side by
side; one-vs-all logits, with `ova`, their mean.

Needs from the backbone: pooled features; S copies of it are made. Cost: S times ERM, for each network sees all images,
and somewhat more, for a pass has half of them and the networks, which wait for nothing of each other, run one by one.

Deviations: any number of sources, where the code has three; 3 B images on each side, shared evenly by the domains, go
through each network as one batch, where the code passes domain by domain; with `ova` the one-vs-all loss stands beside
each CE of an image, and the mixed features have none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opendg.episodes import Episode, Pool, Task
from opendg.methods.base import Authors, Method, State, Update
from opendg.methods.chance import dirichlet, permutation
from opendg.methods.checks import above
from opendg.methods.erm import image_losses
from opendg.methods.medic import meta_update, sides
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Outputs, Weights
from opendg.models.parted import PartedHead, Said, mean_logits, mean_ova


class Experts(Backbone):
    """Copies of a backbone side by side: their features one after the other."""

    def __init__(self, backbone: Backbone, count: int) -> None:
        nets = nn.ModuleList([backbone, *(copy.deepcopy(backbone) for _ in range(count - 1))])
        super().__init__(backbone.name, nets, count * backbone.width, backbone.input, stages={})
        self.start = backbone.start

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([net(images) for net in self.net.children()], dim=1)


class MeanHead(PartedHead):
    """log of the mean softmax, plus the mean energy (which no softmax sees); the mean one-vs-all logits."""

    def join(self, said: list[Said]) -> Said:
        return mean_logits(torch.stack([logits for logits, _ in said])), mean_ova(said)


class DAML(Method):
    name = "daml"
    title = "DAML"
    paper = "Shu et al., Open Domain Generalization with Domain-Augmented Meta-Learning, CVPR 2021, https://arxiv.org/abs/2104.03620"
    idea = "A network for each domain; features mixed over domains and the other networks teach what it lacks."
    kind = "meta-learning"
    cost = "3.8x: one network for each of three sources"
    min_sources = 2
    authors: ClassVar[Authors | None] = Authors(
        recipe={"lr": 1e-3, "batch": 24, "iterations": 3030, "weight_decay": 1e-4, "augment": "none"}
    )

    @dataclass(frozen=True)
    class Config:
        alpha: float = 0.01  # rate of the inner step
        mix_train: float = 3.0  # weight of mixed features, meta-train
        distill: float = 1.0  # weight of what the other networks teach
        across: float = 1.0  # weight of the other domains, meta-test
        mix_test: float = 3.0  # weight of mixed features, meta-test
        temperature: float = 2.0  # of what the other networks teach
        own: float = 0.6  # Dirichlet parameter of a network's own domain; that of the others in meta-test
        other: float = 0.2  # Dirichlet parameter of the other domains; that of the own one in meta-test
        ova: bool = False  # add the one-vs-all heads and their loss
        ova_scale: float = 0.5  # 0.5 as coded by MEDIC's authors, 1 as in their Eq. 7

        def __post_init__(self) -> None:
            above(self, temperature=0, own=0, other=0)

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """A task for each domain, twice: meta-train, meta-test."""
        everything = tuple(range(pool.classes))
        share = max(1, 3 * batch // pool.domains)
        return [Task((domain,), everything, share) for domain in range(pool.domains)] * 2

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        classifier = Classifier(Experts(backbone, domains), classes, "closed")
        classifier.head = MeanHead(self.head, domains, backbone.width, classes)
        return classifier

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        train, test = sides(episode)
        yield meta_update(
            classifier,
            lambda weights: self.train_loss(classifier, weights, train, state),
            lambda weights: self.test_loss(classifier, weights, test, state),
            classifier.weights(), self.config.alpha, beta=1.0, order=1,
        )  # fmt: skip

    def train_loss(self, classifier: Classifier, weights: Weights, side: Episode, state: State) -> Tensor:
        said = networks(classifier, weights, side.images)
        config = self.config
        losses = [config.mix_train * self.mixed(classifier, weights, side, said, (config.own, config.other), state)]
        for own, rows in enumerate(rows_of(side)):
            losses.append(image_losses(said[own], side.labels, config.ova_scale)[rows].sum())
            others = torch.stack([outputs.logits[rows] for j, outputs in enumerate(said) if j != own], dim=1)
            losses.append(config.distill * distillation(said[own].logits[rows], others, config.temperature, state))
        return torch.stack(losses).sum() / side.batch

    def test_loss(self, classifier: Classifier, weights: Weights, side: Episode, state: State) -> Tensor:
        said = networks(classifier, weights, side.images)
        config = self.config
        losses = [config.mix_test * self.mixed(classifier, weights, side, said, (config.other, config.own), state)]
        for own, outputs in enumerate(said):
            each = image_losses(outputs, side.labels, config.ova_scale)
            foreign = [each[rows].sum() for i, rows in enumerate(rows_of(side)) if i != own]
            losses.append(config.across * torch.stack(foreign).sum())
        return torch.stack(losses).sum() / side.batch

    def mixed(
        self, classifier: Classifier, weights: Weights, side: Episode, said: list[Outputs],
        concentration: tuple[float, float], state: State,
    ) -> Tensor:  # fmt: skip
        """sum_j CE(head_j(mix_j), ymix_j), as many mixtures a network as a domain has images."""
        labels = F.one_hot(side.labels, classifier.classes)
        features, targets = [], []
        for own, outputs in enumerate(said):
            ratio, picks = mixture(len(said), own, side.sizes[0], concentration, state)
            ratio = ratio.to(outputs.features.dtype)
            features.append((ratio * outputs.features[picks]).sum(dim=1))
            targets.append((ratio * labels[picks]).sum(dim=1))
        assert isinstance(classifier.head, MeanHead)
        answers = classifier.head.each(weights, torch.cat(features, dim=1))
        entropies = [-(y * a.logits.log_softmax(dim=1)).sum() for y, a in zip(targets, answers, strict=True)]
        return torch.stack(entropies).sum()


def networks(classifier: Classifier, weights: Weights, images: Tensor) -> list[Outputs]:
    """What each network says of all images."""
    assert isinstance(classifier.head, MeanHead)
    return classifier.head.each(weights, classifier.at(weights, images).features)


def rows_of(side: Episode) -> list[slice]:
    """Where the images of each domain stand."""
    return [slice(sum(side.sizes[:i]), sum(side.sizes[: i + 1])) for i in range(len(side.sizes))]


def mixture(
    domains: int, own: int, size: int, concentration: tuple[float, float], state: State
) -> tuple[Tensor, Tensor]:
    """Weights (size, domains, 1) ~ Dir(own, other, ..) and, for each of them, one image of each domain."""
    ratio = dirichlet(state, [concentration[0 if i == own else 1] for i in range(domains)], size)
    return ratio[:, :, None], torch.stack([i * size + permutation(state, size) for i in range(domains)], dim=1)


def distillation(logits: Tensor, others: Tensor, temperature: float, state: State) -> Tensor:
    """T^2 KL(blend of the others || the network), both softened by T, summed over images."""
    share = dirichlet(state, [1.0] * others.shape[1], len(others))[:, :, None]
    blend = (share * (others.detach() / temperature).softmax(dim=2)).sum(dim=1).to(logits.dtype)
    return temperature**2 * F.kl_div((logits / temperature).log_softmax(dim=1), blend, reduction="sum")
