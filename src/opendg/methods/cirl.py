"""CIRL: features that a change of style leaves alone, that are independent of one another and that all carry the class.

Lv, Liang, Li, Zang, Liu, Wang, Liu, CVPR 2022, https://arxiv.org/abs/2203.14237. Each image x has a double with the
Fourier phase of x and the amplitude (1 - l) |F x| + l |F x'|, x' a random image of the batch, l ~ U(0, 1).

    c = correlations between the features of the images and of their doubles, each standardised over the batch (d x d)
    L_fac = mean_i (c_ii - 1)^2 + 0.005 mean_{i != j} c_ij^2
    m = max over k draws of Gumbel-softmax(masker(sg f), tau = 0.5)            (n x d; the dimensions that count most)
    L_sup = CE(h1(f m), y),    L_inf = CE(h2(f (1 - m)), y)                    (over images and doubles)
    encoder, h1, h2:  min 1/2 L_sup + 1/2 L_inf + w L_fac;        masker:  min 1/2 L_sup - 1/2 L_inf

w rises as 5 exp(-5 (1 - t)^2) over the first tenth of the run; in the first 12 % both masks are all ones (the authors'
5 and 6 epochs of 50). In evaluation h1 reads the whole feature.
Masker: d - 4d - 4d - d, dropout 0.5 before the first two layers, BatchNorm after each (the last without scale and
shift), ReLU.

Needs the pooled feature. Images are brought back to [0, 1] for the mixing and cut to it after. Cost: twice ERM, for
twice as many images go through the network; the masker and its draws are small beside a ResNet.
What to expect: h1 learns from some 0.3 of the dimensions at a time and reads all of them in evaluation, as the authors'
does, so that its logits grow and softmax is surer than it was in training: `energy` tells more than `cls`.
Deviations: the k = 0.6 d draws are independent (the authors' loop feeds each draw to the next as logits) and made at
once. The masker learns from the features of the same pass, not of a second one after the encoder's step, which would
cost a third more. The rates of masker and second head fall with the others (the authors step no schedule for them).
Nesterov momentum is left out. With the one-vs-all head its loss goes beside both cross-entropies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from opendg.episodes import Episode, Pool
from opendg.methods.base import Authors, Method, State, Update, gradients, split_by_name
from opendg.methods.chance import permutation, uniform
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import HEADS, Classifier, Outputs, Weights

TEMPERATURE = 0.5


class MaskingClassifier(Classifier):
    """A Classifier with a second head, for the dimensions that a masker leaves to it."""

    def __init__(self, backbone: Backbone, classes: int, head: str) -> None:
        super().__init__(backbone, classes, head)
        self.second = HEADS[head](backbone.width, classes)
        width, wide = backbone.width, 4 * backbone.width
        self.masker = nn.Sequential(
            nn.Dropout(), nn.Linear(width, wide), nn.BatchNorm1d(wide), nn.ReLU(),
            nn.Dropout(), nn.Linear(wide, wide), nn.BatchNorm1d(wide), nn.ReLU(),
            nn.Linear(wide, width), nn.BatchNorm1d(width, affine=False),
        )  # fmt: skip

    def halves(self, features: Tensor, first: Tensor, second: Tensor) -> tuple[Outputs, Outputs]:
        """What both heads say of their parts of the features."""
        return self.heads(features * first), Outputs(features, *self.second(features * second))


class CIRL(Method):
    name = "cirl"
    title = "CIRL"
    paper = "Lv et al., Causality Inspired Representation Learning for Domain Generalization, CVPR 2022, https://arxiv.org/abs/2203.14237"
    idea = "Features unmoved by Fourier style mixing, independent of each other, all of use for the class."
    kind = "invariance"
    cost = "2.1x"
    # SGD 1e-3 (heads 1e-2), decay 5e-4, 32 images and their doubles. Our loss is 6 times their mean: the rate is
    # divided by 6, the decay multiplied. 50 epochs of 16 images of PACS.
    authors = Authors(
        recipe={"lr": 1e-3 / 6, "weight_decay": 3e-3, "batch": 5, "iterations": 18000}, settings={"rate": 10.0}
    )

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 5.0  # w, of L_fac
        ramp: float = 0.1  # share of the run in which w rises
        warm_up: float = 0.12  # share of the run without masks
        off_diagonal: float = 0.005  # of the correlations between different dimensions
        draws: float = 0.6  # k, as a share of the number of dimensions
        rate: float = 1.0  # learning rate of heads and masker, as a factor; 10 in the authors' code

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return MaskingClassifier(backbone, classes, self.head)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        return dict.fromkeys(("head.", "second.", "masker."), self.config.rate)

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        like, shown = next(classifier.head.parameters()), classifier.backbone.input
        return {name: torch.tensor(getattr(shown, name)).to(like).view(3, 1, 1) for name in ("mean", "std")}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, MaskingClassifier)
        weights = classifier.weights()
        masker, others = split_by_name(weights, "masker.")
        pairs = doubled(episode, state)
        features = classifier.at(weights, pairs.images).features
        with torch.no_grad():
            mask = self.mask(classifier, features, state)
            early = state.fraction < self.config.warm_up
            first, second = (torch.where(early, 1.0, part) for part in (mask, 1 - mask))
        losses = self.losses(classifier.halves(features, first, second), pairs)
        weight = self.config.weight * rise(state.fraction, self.config.ramp)
        images, doubles = features.chunk(2)
        losses["fac"] = weight * scaled(factorisation(images, doubles, self.config.off_diagonal), episode)
        yield Update(losses, gradients(total(losses), others))
        mask = self.mask(classifier, features.detach(), state)
        against = self.losses(classifier.halves(features.detach(), mask, 1 - mask), pairs)
        yield Update({}, gradients(against["sup"] - against["inf"], masker))

    def mask(self, classifier: MaskingClassifier, features: Tensor, state: State) -> Tensor:
        """How far each dimension is among the drawn ones, 0 to 1."""
        draws = max(1, round(self.config.draws * features.shape[1]))
        logits: Tensor = classifier.masker(features)
        noise = uniform(state, draws, *logits.shape).clamp_(1e-20, 1 - 6e-8).log_().neg_().log_().neg_()
        return ((logits + noise) / TEMPERATURE).softmax(-1).amax(0)

    def losses(self, halves: tuple[Outputs, Outputs], pairs: Episode) -> dict[str, Tensor]:
        scale = self.config.ova_scale
        parts = (0.5 * total(classification_losses(half, pairs, scale)) for half in halves)
        return dict(zip(("sup", "inf"), parts, strict=True))


def doubled(episode: Episode, state: State) -> Episode:
    """The images and after them their doubles. B is doubled too, so that the loss keeps its scale."""
    images = episode.images * state.own["std"] + state.own["mean"]
    partner = permutation(state, len(images))
    doubles = mixed_amplitude(images, images[partner], uniform(state, len(images), 1, 1, 1).to(images.dtype))
    doubles = (doubles.clamp(0, 1) - state.own["mean"]) / state.own["std"]
    fields = {name: getattr(episode, name).repeat(2) for name in ("labels", "domains", "positions")}
    both = torch.cat([episode.images, doubles]).contiguous(memory_format=torch.channels_last)
    return replace(episode, images=both, **fields, sizes=episode.sizes * 2, batch=2 * episode.batch)


def mixed_amplitude(images: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """The phase of each image, with `share` of its partner's amplitude in its own."""
    spectrum = torch.fft.rfft2(images)
    amplitude, other = spectrum.abs(), torch.fft.rfft2(partners).abs()
    factor = ((1 - share) * amplitude + share * other) / amplitude.clamp_min(1e-8)
    mixed: Tensor = torch.fft.irfft2(spectrum * factor, s=images.shape[2:])
    return mixed


def factorisation(features: Tensor, doubles: Tensor, off_diagonal: float) -> Tensor:
    """L_fac from the correlations between the dimensions of the features and those of their doubles."""
    first, second = ((f - f.mean(0)) / (f.std(0) + 1e-6) for f in (features, doubles))
    correlation = first.T @ second / len(first)
    own = correlation.diagonal()
    others = correlation.square().sum() - own.square().sum()
    return (own - 1).square().mean() + off_diagonal * others / (correlation.numel() - len(own))


def rise(fraction: Tensor, length: float) -> Tensor:
    """exp(-5 (1 - t)^2), t from 0 to 1 in the first `length` of the run."""
    t = (fraction / max(length, math.ulp(1.0))).clamp(max=1)
    return torch.exp(-5 * (1 - t).square())
