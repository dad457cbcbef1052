"""MIRO: keep the maps informative about those of the pretrained network.

Cha, Lee, Park, Chun, ECCV 2022, https://arxiv.org/abs/2203.10789. With f_l the map after stage l, f0_l that of a frozen
copy of the network as the run found it, and a variance v_l for each channel:

    L = CE + lambda sum_l 1/2 mean[ (f_l - f0_l)^2 / v_l + log v_l ],     v_l = softplus(b_l) + 1e-5

a variational bound on the mutual information of f_l and f0_l. v_l starts at 0.1.

The network sees the bound times lambda. b_l sees the bound of its channel bare, since the best v_l, the mean of
(f_l - f0_l)^2, depends neither on lambda nor on the number of channels. The gradient of L at b_l is C / lambda times
smaller: at the start on PACS (ResNet-18) so small that SGD, even with ten times the network's rate, would move b_l by
0.01 to 0.02 in 2,000 iterations and leave v_l at 0.1. Bare, b_l goes half of its way in some 100 to 400 of them. The
authors' Adam, which does not feel the scale of a gradient, has ten times the network's rate for b_l (`rate=10`, part of
`--recipe authors`).

Needs maps (n, C, h, w) after the stages (stem and 1 to 4 of a ResNet) and weights that are worth staying close to:
start from pretrained ones. The ConvNet has none and is refused. Off in evaluation.
Cost: 1.7 times ERM, and the weights twice in memory. The copy is not saved: a resumed run makes it again.
Deviations: lambda is 0.01, the authors' value for PACS and VLCS; set weight=0.1 for Office-Home, TerraIncognita and
DomainNet. The authors freeze BatchNorm in the network too (`freeze_batchnorm=true`, part of `--recipe authors`), and
on some datasets use dropout, which is left out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.base import Authors, Method, State, Update, gradients, split_by_name
from opendg.methods.erm import DOMAINBED, ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier
from opendg.models.stages import channels, looks, touched, wide

START = 0.1  # of the variances
LEAST = 1e-5


class RememberingClassifier(Classifier):
    """A Classifier with a frozen copy of its first self and a variance for each channel of each stage."""

    def __init__(self, backbone: Backbone, classes: int, head: str, freeze_batchnorm: bool) -> None:
        super().__init__(backbone, classes, head, freeze_batchnorm)
        # In a tuple, so that it is no submodule: nothing trains, saves or averages it, or takes it out of eval mode.
        self.first = (copy.deepcopy(backbone).eval().requires_grad_(False),)
        raw = math.log(math.expm1(START - LEAST))  # softplus(raw) + LEAST = START
        self.variance = nn.ParameterDict(
            {stage: torch.full((count, 1, 1), raw) for stage, count in channels(backbone).items()}
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RememberingClassifier:
        """The copy goes where the network goes (device, type, layout)."""
        self.first[0]._apply(fn, recurse)  # type: ignore[no-untyped-call]
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    @torch.no_grad()
    def first_maps(self, images: Tensor) -> dict[str, Tensor]:
        """The maps of the frozen copy by stage."""
        maps: dict[str, Tensor] = {}
        (first,) = self.first
        low = torch.autocast(images.device.type, dtype=self.low, enabled=self.low is not None)
        with low, touched(first, looks(first.stages, maps)):
            first(images)
        return maps


class MIRO(Method):
    name = "miro"
    title = "MIRO"
    paper = "Cha et al., Domain Generalization by Mutual-Information Regularization with Pre-trained Models, ECCV 2022, https://arxiv.org/abs/2203.10789"
    idea = "Keep the maps close to those of the frozen pretrained network, channel by channel."
    kind = "regularisation"
    cost = "1.7x"
    # Adam does not feel that our loss is 6 times the mean.
    authors = Authors(recipe=DOMAINBED | {"lr": 3e-5}, settings={"freeze_batchnorm": True, "rate": 10.0})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 0.01  # lambda
        rate: float = 1.0  # learning rate of the variances, as a factor
        freeze_batchnorm: bool = False  # normalise with the statistics of the pretrained network, as the authors do

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        if backbone.name == "convnet" or not backbone.stages:
            raise OpenDGError(
                f"MIRO stays close to the maps of a pretrained network, and the backbone {backbone.name!r} has none: "
                "choose one with stages and ImageNet weights, such as resnet18.tv_in1k."
            )
        return RememberingClassifier(backbone, classes, self.head, self.config.freeze_batchnorm)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        return {"variance.": self.config.rate}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, RememberingClassifier)
        weights = classifier.weights()
        maps: dict[str, Tensor] = {}
        outputs = classifier.at(weights, episode.images, looks(classifier.backbone.stages, maps))
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        first = classifier.first_maps(episode.images)
        bounds = {stage: distance(maps[stage], first[stage], raw) for stage, raw in classifier.variance.items()}
        losses["miro"] = self.config.weight * scaled(torch.stack(list(bounds.values())).sum(), episode)
        bare = torch.stack([len(classifier.variance[stage]) * bound for stage, bound in bounds.items()]).sum()
        raws, _ = split_by_name(weights, "variance.")
        found = gradients(total(losses), weights, keep=True) | gradients(scaled(bare, episode), raws)
        yield Update(losses, found)


def distance(found: Tensor, first: Tensor, raw: Tensor) -> Tensor:
    """1/2 mean[ (f - f0)^2 / v + log v ] with v = softplus(raw) + 1e-5, a value for each channel."""
    variance = F.softplus(raw) + LEAST
    return 0.5 * ((wide(found) - wide(first)).square() / variance + variance.log()).mean()
