"""ARPL: each class has a point that stands for all that is not this class; images are far from the point of their own.

Chen, Peng, Wang, Tian, Adversarial Reciprocal Points Learning for Open Set Recognition, TPAMI 2022,
https://arxiv.org/abs/2103.00953. With f the d pooled features, P_k the reciprocal points and R a learned radius:

    D_k = ||f - P_k||^2 / d - f . P_k,    z_k = D_k / T,
    min  mean [ CE(z, y) + lambda max(0, ||f - P_y||^2 / d - R + 1) ]

The second term keeps known features within R of their own point, so that unknown ones, which are far from no point,
lie in the middle. The confidence is max_k D_k, that is the score `max-logit`.

The points start as `spread` N(0, 1), 0.1 in the authors' code, which trains from scratch at a rate of 0.1. For a
pretrained network at the common rate that is too far out. Measured with stage 4 of a ResNet-18 on two pairs of domains
of PACS: logits start 20 times as large as with ERM's linear head, the gradient of the backbone 18 times, towards
directions that are random and stay, for training moves the points by an eighth of their length. The training loss then
falls below ERM's, and the loss on source validation images stays a fifth to a third above it. Points of the size of
ERM's first weights, the default, come to ERM's loss on both. The ConvNet leaves chance later with them than with 0.1
(on digits after some 250 iterations, not 150).

R starts at 0 and has a rate of its own (`rate`): it must come to distance + 1, about 3 with pretrained features, before
the term is a bound. At the network's rate 2,000 iterations of the common recipe take it to 1, and every image would be
outside all the time; at ten times that it is there after some 500.

Needs the pooled features; the points take the place of the linear closed-set head (so no score that looks at its
weights: ViM). Cost: that of ERM.
Deviations: none in the loss; where the points start and how fast R moves, as said; no confusing samples from a GAN (the
paper's ARPL+CS). The authors train 32-pixel images from scratch (SGD, lr 0.1, 100 epochs with three drops), which says
nothing of a pretrained network, so there is no `--recipe authors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opendg.episodes import Episode
from opendg.methods.base import Method, State, Update, gradients
from opendg.methods.checks import above
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier
from opendg.models.heads import DualHead


class ReciprocalHead(nn.Module):
    """Distances to reciprocal points as closed-set logits; the one-vs-all layer of DualHead where it is asked for."""

    def __init__(self, width: int, classes: int, spread: float, temperature: float, ova: bool) -> None:
        super().__init__()
        self.points = nn.Parameter(spread * torch.randn(classes, width))
        self.radius = nn.Parameter(torch.zeros(()))
        self.ova = DualHead(width, classes).ova if ova else None
        self.temperature = temperature

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = (self.distances(features) - features @ self.points.T) / self.temperature
        return logits, None if self.ova is None else self.ova(features).unflatten(1, (2, -1))

    def distances(self, features: Tensor) -> Tensor:
        """||f - P_k||^2 / d: (n, K)."""
        squares = features.square().sum(1, keepdim=True) + self.points.square().sum(1)
        return (squares - 2 * features @ self.points.T) / features.shape[1]

    def excess(self, features: Tensor, labels: Tensor) -> Tensor:
        """max(0, ||f - P_y||^2 / d - R + 1), an image each."""
        own = self.distances(features).gather(1, labels[:, None]).squeeze(1)
        return torch.relu(own - self.radius + 1)


class ReciprocalClassifier(Classifier):
    def __init__(self, backbone: Backbone, classes: int, spread: float, temperature: float, ova: bool) -> None:
        super().__init__(backbone, classes, "closed")
        self.head: ReciprocalHead = ReciprocalHead(backbone.width, classes, spread, temperature, ova)


class ARPL(Method):
    name = "arpl"
    title = "ARPL"
    paper = "Chen et al., Adversarial Reciprocal Points Learning, TPAMI 2022, https://arxiv.org/abs/2103.00953"
    idea = "Classify by the distance to points that stand for what a class is not, and bound the known space."
    kind = "open-set"
    score = "max-logit"

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 0.1  # lambda
        temperature: float = 1.0  # T
        spread: float = 0.006  # standard deviation of the points at the start; 0.1 in the authors' code
        rate: float = 10.0  # learning rate of R, as a factor

        def __post_init__(self) -> None:
            above(self, temperature=0)

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        config = self.config
        return ReciprocalClassifier(backbone, classes, config.spread, config.temperature, config.ova)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        return {"head.radius": self.config.rate}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, ReciprocalClassifier)
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        excess = classifier.head.excess(outputs.features, episode.labels).mean()
        losses["radius"] = self.config.weight * scaled(excess, episode)
        yield Update(losses, gradients(total(losses), weights))
