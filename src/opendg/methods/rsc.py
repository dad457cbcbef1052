"""RSC: mute the parts of the last map that speak most for the true class, so that the others are learnt too.

Huang, Wang, Xing, Huang, ECCV 2020, https://arxiv.org/abs/2007.02454. With F the last map (C x h x w), z = h(F):

    g = d z_y / d F,   g_c = its mean over the cells,   s_hw = sum_c g_c F_chw   (as in Grad-CAM)
    m = 0 at the ceil(h w / 3) cells with the largest s, or in the ceil(C / 3.2) channels with the largest g_c; else 1
    loss = CE( h(F * m), y )

A coin says for each iteration whether cells or channels are muted. Only some images are: the share `images` (0.3, 0.5,
0.7 in the thirds of the run) whose probability of the true class falls most when they are, and by more than 1e-4.
No gradient goes through g or m.

Needs a map after the last stage: 7 x 7 cells in a ResNet at 224 pixels, 2 x 2 in the ConvNet (two cells are muted).
Off in evaluation. Cost: ERM's and two passes of pooling and head.
Deviations: the authors' batch holds every image twice, the second one mirrored; ours does not, for the augmentation
mirrors. Their images have 222 pixels. As in their code the mask is chosen from a detached F in evaluation mode: where
BatchNorm follows the last map (EfficientNet, ResNet-V2), muted maps do not move its running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.chance import uniform
from opendg.methods.erm import ERM, classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier
from opendg.models.modes import evaluating
from opendg.models.stages import behind, channels, wide


class RSC(Method):
    name = "rsc"
    title = "RSC"
    paper = "Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020, https://arxiv.org/abs/2007.02454"
    idea = "Mute the features with the largest gradient of the true class."
    kind = "regularisation"
    cost = "1.1x"
    # SGD 0.01, decay 5e-4, 64 images. Our loss is 6 times their mean: the rate is divided by 6, the decay multiplied.
    authors = Authors(recipe={"lr": 1e-2 / 6, "weight_decay": 3e-3, "batch": 11, "iterations": 1800})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        images: tuple[float, ...] = (0.3, 0.5, 0.7)  # share that is muted, in equal parts of the run; 0 is ERM
        cells: float = 1 / 3  # share of the cells that is muted
        channels: float = 1 / 3.2  # share of the channels

        def __post_init__(self) -> None:
            if not all(0 <= share < 1 for share in (*self.images, self.cells, self.channels)) or not self.images:
                raise ValueError("images, cells and channels are shares and must be at least 0 and below 1")

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        channels(backbone)  # says so where there is no map
        return super().build(backbone, classes, domains)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        last = list(classifier.backbone.stages)[-1]
        touch = {last: lambda found: found * self.mask(classifier, last, found, episode.labels, state)}
        losses = classification_losses(classifier.at(weights, episode.images, touch), episode, self.config.ova_scale)
        yield Update(losses, gradients(total(losses), weights))

    def mask(self, classifier: Classifier, stage: str, found: Tensor, labels: Tensor, state: State) -> Tensor:
        """(n, C, h, w) of 0 and 1. It is called inside the forward pass, and runs the rest of the network twice."""
        rest = behind(classifier.backbone, stage)
        leaf = found.detach().requires_grad_()
        with evaluating(rest):
            logits = classifier.heads(rest(leaf.clone())).logits  # a clone: the next layer may work in place
            (gradient,) = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), leaf)
            with torch.no_grad():
                mask = self.muted(leaf, gradient, uniform(state, 1) < 0.5)
                after = classifier.heads(rest(leaf * mask)).logits
        with torch.no_grad():
            fall = (logits.softmax(1) - after.softmax(1)).gather(1, labels[:, None]).squeeze(1)
            chosen = self.chosen(fall, state.fraction)
            return torch.where(chosen[:, None, None, None], mask, torch.ones_like(mask))

    def muted(self, found: Tensor, gradient: Tensor, by_cells: Tensor) -> Tensor:
        """0 for the cells, or for the channels, that speak most for the class."""
        count, cells = found.shape[1], found.shape[2] * found.shape[3]
        by_channel = wide(gradient).mean((2, 3))
        by_cell = (found * by_channel[:, :, None, None]).sum(1).flatten(1)
        channel = _not_among_top(by_channel, math.ceil(count * self.config.channels))[:, :, None, None]
        cell = _not_among_top(by_cell, math.ceil(cells * self.config.cells)).view(len(found), 1, *found.shape[2:])
        return torch.where(by_cells, cell, channel).to(found.dtype).expand_as(found)

    def chosen(self, fall: Tensor, fraction: Tensor) -> Tensor:
        """The images with the largest fall of the true class's probability."""
        fall = (fall - 1e-4).clamp_min(0)
        shares = self.config.images
        place = torch.zeros_like(fraction, dtype=torch.int64)
        for part, share in enumerate(shares):
            most = min(round(len(fall) * share), len(fall) - 1)
            place = torch.where(fraction >= part / len(shares), most, place)
        return fall > fall.sort(descending=True).values.index_select(0, place.view(1))


def _not_among_top(values: Tensor, count: int) -> Tensor:
    """1 where a value is not among the `count` largest of its row (fewer are, when values tie), else 0."""
    limit = values.sort(dim=1, descending=True).values[:, min(count, values.shape[1] - 1), None]
    return torch.where(values > limit, 0.0, 1.0)
