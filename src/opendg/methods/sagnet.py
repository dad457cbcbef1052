"""SagNet: learn content under random styles, and early layers from which style alone tells no class.

Nam, Lee, Park, Yoon, Yoo, CVPR 2021, https://arxiv.org/abs/1910.11645. Style is mean mu and variance s of each channel
of the map F after stage 2, content is N = (F - mu) / sqrt(s + 1e-5). With a random other image of the batch (') :

    content path   F_c = N sqrt(s_m + 1e-5) + mu_m,   (mu_m, s_m) = l (mu, s) + (1 - l) (mu', s'),   l ~ U(0, 1)
    style branch   F_s = sg(N') sqrt(s + 1e-5) + mu        (its own content is replaced by another's)
    L_c = CE(content(F_c), y),    L_s = CE(branch(F_s), y),    L_adv = -w mean_k log softmax_k(branch(F_s))

L_s trains the branch alone (a copy of stages 3 and 4 with a head of its own), L_c everything in the content path, and
L_adv, which wants the branch to be undecided, the scale and shift of the normalisation layers of stem, stages 1 and 2;
the norm of its gradient is cut at `clip`.

Needs a stage 2 with stages behind it. Where the early layers have no normalisation (the ConvNet: blocks 1 and 2), L_adv
trains all their weights. The branch is not used in evaluation. Cost: 1.8 times ERM.
Deviations: the three gradients come from one forward pass and are added up to one update. To first order in the rate
that is what the authors' three optimisers do one after the other, each of whose backward passes sees the steps before
it; their adversarial weights decay a second time. `--recipe authors` keeps the common augmentation and test size.
Variance divides by the number of pixels, not by one less. Dropout is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from opendg.episodes import Episode
from opendg.losses import cross_entropy
from opendg.methods.base import Authors, Method, State, Update, gradients, over_processes, split_by_name
from opendg.methods.chance import permutation, uniform
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Outputs, Weights
from opendg.models.stages import behind, channels, style

NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm)
EPSILON = 1e-5


class StyleClassifier(Classifier):
    """A Classifier with a branch that sees the map after `stage` and is to tell the class by its style."""

    def __init__(self, backbone: Backbone, classes: int, head: str, stage: str) -> None:
        super().__init__(backbone, classes, head)
        self.branch = Classifier(copy.deepcopy(behind(backbone, stage)), classes, "closed")

    def place(self, device: torch.device, precision: str) -> None:
        super().place(device, precision)
        self.branch.low = self.low


class SagNet(Method):
    name = "sagnet"
    title = "SagNet"
    paper = "Nam et al., Reducing Domain Gap by Reducing Style Bias, CVPR 2021, https://arxiv.org/abs/1910.11645"
    idea = "Randomise style in the content path, and train early layers against a style classifier."
    kind = "adversarial"
    cost = "1.8x"
    # SGD 0.004, decay 1e-4, 96 images. Our loss is 6 times their mean: the rate is divided by 6, the decay multiplied.
    authors = Authors(
        recipe={"lr": 4e-3 / 6, "weight_decay": 6e-4, "schedule": "cosine", "batch": 16, "iterations": 2000}
    )

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 0.1  # w, of the adversarial loss
        clip: float = 0.1  # largest norm of its gradient, as the gradient of a mean over images
        stage: str = "2"  # style is taken from the map after this stage

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        channels(backbone)  # says so where there is no map
        return StyleClassifier(backbone, classes, self.head, self.config.stage)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, StyleClassifier)
        weights = classifier.weights()
        branch, main = split_by_name(weights, "branch.")
        adversary = adversarial(classifier, self.config.stage)
        content, styled = self.forward(classifier, episode, state)
        losses = classification_losses(content, episode, self.config.ova_scale)
        told = cross_entropy(styled, episode.labels).sum() / episode.batch
        undecided = -self.config.weight * scaled(styled.log_softmax(1).mean(), episode)
        # keep: the graph of the one forward pass serves the gradient that comes next too.
        learnt = gradients(told, branch, keep=True)
        images = over_processes({"images": torch.full_like(state.fraction, len(episode.labels))})["images"]
        most = self.config.clip * images / episode.batch
        fooled = clipped(gradients(undecided, adversary, keep=True), most)
        moves = gradients(total(losses), main)
        moves |= {name: moves[name] + part for name, part in fooled.items()} | learnt
        yield Update(losses | {"style": told, "adversary": undecided}, moves)

    def forward(self, classifier: StyleClassifier, episode: Episode, state: State) -> tuple[Outputs, Tensor]:
        """What the content path says of the images in random styles, and the branch of their styles (logits)."""
        maps: list[Tensor] = []

        def randomised(found: Tensor) -> Tensor:
            maps.append(found)
            return restyled(found, permutation(state, len(found)), uniform(state, len(found), 1, 1, 1))

        content = classifier.at(classifier.weights(), episode.images, {self.config.stage: randomised})
        styled = classifier.branch(recontented(maps[0], permutation(state, len(maps[0]))))
        return content, styled.logits


def restyled(found: Tensor, partner: Tensor, share: Tensor) -> Tensor:
    """F_c: the content of each image in a style between its own and its partner's."""
    mean, variance = style(found)
    content = (found - mean) / (variance + EPSILON).sqrt()
    share = share.to(mean.dtype)
    mean, variance = (share * own + (1 - share) * own[partner] for own in (mean, variance))
    return (content * (variance + EPSILON).sqrt() + mean).to(found.dtype)


def recontented(found: Tensor, partner: Tensor) -> Tensor:
    """F_s: the partner's content, fixed, in the style of each image."""
    mean, variance = style(found)
    content = ((found - mean) / (variance + EPSILON).sqrt())[partner].detach()
    return (content * (variance + EPSILON).sqrt() + mean).to(found.dtype)


def adversarial(classifier: Classifier, stage: str) -> Weights:
    """Scale and shift of the normalisation layers up to a stage; all weights up to there where it has none."""
    later = {id(weight) for weight in behind(classifier.backbone, stage).parameters()}
    early = {name: weight for name, weight in classifier.backbone.named_parameters() if id(weight) not in later}
    norms = {id(w) for layer in classifier.backbone.modules() if isinstance(layer, NORMS) for w in layer.parameters()}
    chosen = {name: weight for name, weight in early.items() if id(weight) in norms} or early
    return {f"backbone.{name}": weight for name, weight in chosen.items()}


def clipped(moves: Weights, most: Tensor) -> Weights:
    """All of them together no longer than `most`."""
    norm = torch.stack([move.norm() for move in moves.values()]).norm()
    factor = (most.to(norm.dtype) / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp(max=1)
    return {name: move * factor for name, move in moves.items()}
