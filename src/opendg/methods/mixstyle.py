"""MixStyle: new styles from old ones, by mixing the statistics of early maps between images.

Zhou, Yang, Qiao, Xiang, ICLR 2021, https://arxiv.org/abs/2104.02008. ERM, with this after each of the `stages`:

    x <- (x - mu) / sigma * (l sigma + (1 - l) sigma') + l mu + (1 - l) mu',    l ~ Beta(alpha, alpha) for each image

mu and sigma = sqrt(var + 1e-6) are the channel statistics of an image, mu' and sigma' those of a partner in the batch;
no gradient goes through them. A coin for each stage and iteration says whether it acts (`probability`). The partner is
any image (`mix = random`), or one of another domain (`crossdomain`): the images of each domain, shuffled, stand against
those of the domain a random number of places further on, which with two domains is what the authors do.

Needs maps (n, C, h, w) after stages 1, 2 and 3 of a ResNet; for Office-Home the authors use stages 1 and 2. A map of
fewer than `pixels` is left alone, and with it block 3 of the ConvNet (4 x 4): without normalisation many channels are
all but off in an image, and sigma' / sigma, which multiplies map and gradient, goes into the thousands. On the digit
set (ConvNet, common recipe, 1,000 to 1,500 iterations) block 3 in 4 of 5 runs made the training loss rise again or fall
to chance, with gradients of length 100 to 670 where ERM's stay below 35; with blocks 1 and 2 none of 6 did, and source
validation after 1,000 iterations is 92.0 % (ERM 92.2 %; mean of four targets, seed 0).

Off in evaluation. Cost: that of ERM.
Deviations: var divides by the number of pixels, not by one less. The authors' augmentation (flip and translation) is
not part of `--recipe authors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.chance import beta, permutation, uniform
from opendg.methods.checks import one_of
from opendg.methods.erm import ERM, classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier
from opendg.models.stages import shapes, stage_module, style


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
        pixels: int = 64  # a map with fewer is left alone
        mix: str = "random"  # the partner: any image (random) or one of another domain (crossdomain)

        def __post_init__(self) -> None:
            one_of(self, mix=("random", "crossdomain"))
            if not 0 <= self.probability <= 1 or not self.alpha > 0:
                raise ValueError(f"probability is {self.probability} (0 to 1) and alpha {self.alpha} (above 0)")

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        for stage in self.config.stages:
            stage_module(backbone, stage)
        sizes = {stage: height * width for stage, (_, height, width) in shapes(backbone).items()}
        if all(sizes[stage] < self.config.pixels for stage in self.config.stages):
            raise OpenDGError(
                f"No map of {backbone.name!r} after the stages {', '.join(self.config.stages)} has the "
                f"{self.config.pixels} pixels that MixStyle wants: name earlier stages, or fewer pixels."
            )
        return super().build(backbone, classes, domains)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        touches = {stage: lambda found: self.mixed(found, episode, state) for stage in self.config.stages}
        outputs = classifier.at(weights, episode.images, touches)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        yield Update(losses, gradients(total(losses), weights))

    def mixed(self, found: Tensor, episode: Episode, state: State) -> Tensor:
        """The map in mixed styles, or as it was when it is small or the coin says so."""
        if found.shape[2] * found.shape[3] < self.config.pixels:
            return found
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
