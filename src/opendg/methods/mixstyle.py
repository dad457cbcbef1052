"""MixStyle: new styles from old ones, by mixing the statistics of early maps between images.

Zhou, Yang, Qiao, Xiang, ICLR 2021, https://arxiv.org/abs/2104.02008. ERM, with this after each of the `stages`:

    x <- (x - mu) / sigma * (l sigma + (1 - l) sigma') + l mu + (1 - l) mu',    l ~ Beta(alpha, alpha) for each image

mu and sigma = sqrt(var + 1e-6) are the channel statistics of an image, mu' and sigma' those of a partner in the batch;
no gradient goes through them. A coin for each stage and iteration says whether it acts (`probability`). The partner is
any image (`mix = random`), or one of another domain (`crossdomain`): the images of each domain, shuffled, stand against
those of the domain a random number of places further on, which with two domains is what the authors do.

Needs maps (n, C, h, w) after stages 1, 2 and 3, of a ResNet or of the ConvNet (its last block is left alone: labels
live there); for Office-Home the authors use stages 1 and 2. Off in evaluation. Cost: that of ERM.
Deviations: var divides by the number of pixels, not by one less. The authors' augmentation (flip and translation) is
not part of `--recipe authors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.chance import beta, permutation, uniform
from opendg.methods.erm import ERM, classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier
from opendg.models.stages import stage_module, style


class MixStyle(Method):
    name = "mixstyle"
    title = "MixStyle"
    paper = "Zhou et al., Domain Generalization with MixStyle, ICLR 2021, https://arxiv.org/abs/2104.02008"
    idea = "Mix channel means and deviations of early maps between images: new styles, same labels."
    kind = "augmentation"
    # SGD 1e-3, decay 5e-4, 64 images. Our loss is 6 times their mean: the rate is divided by 6, the decay multiplied.
    authors = Authors(recipe={"lr": 1e-3 / 6, "weight_decay": 3e-3, "schedule": "cosine", "batch": 11})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        probability: float = 0.5  # that a stage mixes in an iteration; 0 is ERM
        alpha: float = 0.1  # of Beta(alpha, alpha): small values keep one of the two styles almost whole
        stages: tuple[str, ...] = ("1", "2", "3")  # mixing follows each of these
        mix: str = "random"  # the partner: any image (random) or one of another domain (crossdomain)

        def __post_init__(self) -> None:
            if self.mix not in ("random", "crossdomain"):
                raise ValueError(f"mix is {self.mix!r} and must be one of random, crossdomain")
            if not 0 <= self.probability <= 1 or not self.alpha > 0:
                raise ValueError(f"probability is {self.probability} (0 to 1) and alpha {self.alpha} (above 0)")

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        for stage in self.config.stages:
            stage_module(backbone, stage)
        return super().build(backbone, classes, domains)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        touches = {stage: lambda found: self.mixed(found, episode, state) for stage in self.config.stages}
        outputs = classifier.at(weights, episode.images, touches)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        yield Update(losses, gradients(total(losses), weights))

    def mixed(self, found: Tensor, episode: Episode, state: State) -> Tensor:
        """The map in mixed styles, or as it was when the coin says so."""
        partner = across_domains(state, episode) if self.config.mix == "crossdomain" else permutation(state, len(found))
        mean, variance = style(found.detach())
        sigma = (variance + 1e-6).sqrt()
        share = beta(state, self.config.alpha, self.config.alpha, len(found), 1, 1, 1).to(sigma.dtype)
        factor = (share * sigma + (1 - share) * sigma[partner]) / sigma
        shift = share * mean + (1 - share) * mean[partner] - mean * factor
        acts = uniform(state, 1) < self.config.probability
        return torch.where(acts, (found * factor + shift).to(found.dtype), found)


def across_domains(state: State, episode: Episode) -> Tensor:
    """For each image the number of one of another domain. The tasks of the episode are the domains, of one size."""
    domains, size = len(episode.sizes), episode.sizes[0]
    shuffled = uniform(state, domains, size).argsort(dim=1)
    turn = (uniform(state, 1) * (domains - 1)).long() + 1
    domain = (torch.arange(domains, device=shuffled.device) + turn) % domains
    return (domain[:, None] * size + shuffled).flatten()
