"""DANN: a domain classifier reads the features, and the network learns features that fool it.

Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 17(59), 2016, https://arxiv.org/abs/1505.07818:

    min_{f, h} max_D  CE(h(f(x)), y) - lambda CE(D(f(x)), domain)

One iteration: D takes a step on its cross-entropy with the features fixed; then f and h take a step on the difference,
against the D that has just learned. D is DomainBed's: three linear layers with two hidden ones of 256, ReLU.
lambda is 1 throughout as in DomainBed; with `ramp` it grows as 2 / (1 + exp(-10 t)) - 1 over the run, as in the paper.

Needs the pooled features. Cost: that of ERM, for both steps share one pass through the backbone.
Deviations: DomainBed takes the two steps on different batches in turn, so that only every second step trains the
classifier, with Adam's betas 0.5 and 0.9; ours, with `--recipe authors` too, are 0.9 and 0.999. The paper reverses the
gradient in one step for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from opendg.episodes import Episode
from opendg.losses import cross_entropy
from opendg.methods.base import Authors, Method, State, Update, gradients, split_by_name
from opendg.methods.erm import DOMAINBED, ERM, classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier

HIDDEN = 256


class AdversarialClassifier(Classifier):
    """A Classifier with a second reader of its features: which source domain is an image from?"""

    def __init__(self, backbone: Backbone, classes: int, head: str, domains: int) -> None:
        super().__init__(backbone, classes, head)
        sizes = (backbone.width, HIDDEN, HIDDEN, domains)
        first, second, third = (nn.Linear(a, b) for a, b in pairwise(sizes))
        self.discriminator = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), third)


class DANN(Method):
    name = "dann"
    title = "DANN"
    paper = "Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016, https://arxiv.org/abs/1505.07818"
    idea = "Learn features from which a domain classifier cannot tell the domain."
    kind = "adversarial"
    min_sources = 2
    authors = Authors(recipe=DOMAINBED)

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 1.0  # lambda
        ramp: bool = False  # let lambda grow from 0 over the run

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return AdversarialClassifier(backbone, classes, self.head, domains)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, AdversarialClassifier)
        weights = classifier.weights()
        adversary, others = split_by_name(weights, "discriminator.")
        outputs = classifier.at(weights, episode.images)
        told = domain_loss(classifier, outputs.features.detach(), episode)
        yield Update({}, gradients(told, adversary))
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        fooled = domain_loss(classifier, outputs.features, episode)
        aim = total(losses) - self._weight(state).to(fooled.dtype) * fooled
        yield Update(losses | {"domain": fooled}, gradients(aim, others))

    def _weight(self, state: State) -> Tensor:
        rise = 2 * torch.sigmoid(10 * state.fraction) - 1 if self.config.ramp else torch.ones_like(state.fraction)
        return rise * float(self.config.weight)


def domain_loss(classifier: AdversarialClassifier, features: Tensor, episode: Episode) -> Tensor:
    """Cross-entropy of D, summed over the images and divided by B."""
    return cross_entropy(classifier.discriminator(features), episode.domains).sum() / episode.batch
