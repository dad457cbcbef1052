"""EBiL-HaDS: MEDIC with a follower network that chooses the held-out domain, and two evidential branches.

Peng, Wen, Yang, Luo, Chen, Fu, Sarfraz, Roitberg, Stiefelhagen, Advancing Open-Set Domain Generalization Using
Evidential Bi-Level Hardest Domain Scheduler, NeurIPS 2024, https://arxiv.org/abs/2409.17555. Branches j = 1, 2 with
features f_j, closed-set logits z_j and one-vs-all logits b_j; the follower says w(x) = sigmoid(.) + 1e-5, how far the
main network is to be trusted on x. The loss of an image in MEDIC's tasks, for the main network:

    L  = mean_j [ CE(z_j, y) + L_ova(b_j, y) ] + weighted w CE(z_1, y) + evidential sum_j ( log A_j - log alpha_jy )
         - rebias MMD(f_1, f_2) - opposed ( w - c )^2
         alpha_jk = exp(clamp(z_jk, -10, 10)) + 1,   A_j = sum_k alpha_jk,   c(x) = max_k mean_j alpha_jk / A_j

MMD has five Gaussian kernels, bandwidths 1/4 to 4 times the mean squared distance; it pushes the branches apart. w is
a number to the main network. The follower, with an update of its own, minimises sum_x ( w(x) - c(x) )^2 / B.

Every `interval` iterations the follower looks at `look` images of each source domain, of random classes C2, and

    r_d = exp(1 + mean w) (0.1 + 2e-4 share of the choices that fell on d),   held-out domain = argmin_d r_d

the domain that is trusted least stays held out until the next look. The share counts for at most 0.2 % of r, so that
one domain may be held out for long. Inference: closed set from the first branch, bcls from the mean of the branches'
one-vs-all logits; features are those of both branches side by side.

Needs from the backbone: two or more stages with maps. The second branch is a copy of all that comes behind the last
stage but one (stage 4 of a ResNet, the last block of the ConvNet), so that both start from pretrained weights; the
follower is a copy of the whole backbone. Cost: MEDIC, a second last stage, and a network that sees every image once.

Deviations from the authors' script, whose faults are not followed: the follower has an optimiser (theirs never
changes), the inner rate is not lowered at every step, S1 is without the held-out domain, targets of w have its shape.
At a look the follower sees classes drawn for it, and the tasks draw theirs in every iteration (theirs draw one set for
both every ten iterations). Chosen here: the follower's regression with weight 1 (1e-4 in theirs, whose follower does
not learn); branches that are copies (theirs are new residual blocks with a BatchNorm in common); a follower that only
regresses (theirs also ascends the weighted CE, which drives w to 1 everywhere); c as an evidential probability; order 1
(theirs is 2; with dropout the second derivative sees another mask than the first).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from opendg.episodes import Episode, Pool, Task, split_classes
from opendg.errors import OpenDGError
from opendg.losses import cross_entropy
from opendg.methods.base import Authors, State, Survey, Update, gradients, mean_over_processes, split_by_name
from opendg.methods.chance import on_host
from opendg.methods.checks import at_least, below
from opendg.methods.erm import image_losses
from opendg.methods.medic import MEDIC, meta_update, sides
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights
from opendg.models.modes import evaluating
from opendg.models.parted import PartedHead, Said, mean_ova
from opendg.models.stages import behind, channels, looks, touched


class Branches(Backbone):
    """A backbone whose last part is there twice: the features of both branches side by side."""

    def __init__(self, backbone: Backbone, dropout: float) -> None:
        if len(backbone.stages) < 2:
            raise OpenDGError(
                f"EBiL-HaDS forks a backbone before its last stage, and {backbone.name!r} has no stages: choose a "
                "convolutional backbone, such as resnet18.tv_in1k."
            )
        channels(backbone)  # refuses stages without maps
        stages = {name: f"net.{path}" for name, path in backbone.stages.items()}
        super().__init__(backbone.name, backbone, 2 * backbone.width, backbone.input, stages)
        self.start = backbone.start
        self.fork = list(backbone.stages)[-2]
        self.second = copy.deepcopy(behind(backbone, self.fork))
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        assert isinstance(self.net, Backbone)
        maps: dict[str, Tensor] = {}
        with touched(self.net, looks([self.fork], maps)):
            first = self.net(images)
        both: Tensor = self.dropout(torch.cat([first, self.second(maps[self.fork])], dim=1))
        return both


class BranchHead(PartedHead):
    """Closed-set logits of the first branch; one-vs-all logits: the mean of both."""

    def join(self, said: list[Said]) -> Said:
        return said[0][0], mean_ova(said)


class Follower(nn.Module):
    """w(x) = sigmoid(u . f(x) + v) + 1e-5: how far the main network is to be trusted on x."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone, self.linear = backbone, nn.Linear(backbone.width, 1)

    def forward(self, images: Tensor, low: torch.dtype | None = None) -> Tensor:
        with torch.autocast(images.device.type, dtype=low, enabled=low is not None):
            features = self.backbone(images)
        return torch.sigmoid(self.linear(features.to(self.linear.weight.dtype))).squeeze(1) + 1e-5


class Led(Classifier):
    """Two branches, and the follower beside them."""

    def __init__(self, backbone: Backbone, classes: int, head: str, dropout: float, freeze_batchnorm: bool) -> None:
        follower = Follower(copy.deepcopy(backbone))
        super().__init__(Branches(backbone, dropout), classes, "closed", freeze_batchnorm)
        self.head = BranchHead(head, 2, backbone.width, classes)
        self.follower = follower

    def trust(self, images: Tensor) -> Tensor:
        """w of each image."""
        given: Tensor = self.follower(images, self.low)
        return given


class EBiLHaDS(MEDIC):
    name = "ebil-hads"
    title = "EBiL-HaDS"
    paper = "Peng et al., Evidential Bi-Level Hardest Domain Scheduler, NeurIPS 2024, https://arxiv.org/abs/2409.17555"
    idea = "A follower network learns which domain to hold out; two evidential branches are pushed apart."
    cost = "2.6x: a second network and two branches"
    compiles = False  # the fork hooks into the backbone
    authors: ClassVar[Authors | None] = Authors(
        recipe={"lr": 1e-3, "iterations": 20000}, settings={"order": 2, "batchnorm": "per-task"}
    )

    @dataclass(frozen=True)
    class Config(MEDIC.Config):
        alpha: float = 1e-3  # rate of the inner step
        weighted: float = 1.0  # weight of the CE that the follower weighs
        evidential: float = 1.0  # weight of the evidential loss
        rebias: float = 1e-3  # weight of the distance between the branches
        opposed: float = 1e-4  # how strongly the main network works against the follower's regression
        dropout: float = 0.1  # on the features
        scheduler: bool = True  # the follower chooses the held-out domain; false: domain_order does
        interval: int = 10  # iterations between two choices
        look: int = 32  # images of each domain for a choice
        floor: float = 0.1  # of the factor of r_d
        repeat: float = 2e-4  # what being chosen often adds to it

        def __post_init__(self) -> None:
            super().__post_init__()
            at_least(self, interval=1, look=1, dropout=0)
            below(self, dropout=1)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.interval = self.config.interval if self.config.scheduler else None
        self.held: int | None = None  # the domain that was chosen last, on the host for `tasks`

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return Led(backbone, classes, self.head, self.config.dropout, self.config.batchnorm == "frozen")

    def _held_out(self, count: int, step: int, random: np.random.Generator) -> int:
        return super()._held_out(count, step, random) if self.held is None else self.held

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, Led)
        train, test = sides(episode)
        trust = classifier.trust(episode.images)
        of_train, of_test = trust.detach().split([len(train.labels), len(test.labels)])
        noted: Weights = {}  # the confidences of the first pass of each side

        def loss(weights: Weights, side: str, part: Episode, given: Tensor) -> Tensor:
            value, confidence = self.side_loss(classifier, weights, part, given)
            noted.setdefault(side, confidence.detach())
            return value

        follower, main = split_by_name(classifier.weights(), "follower.")
        yield meta_update(
            classifier,
            lambda weights: loss(weights, "train", train, of_train),
            lambda weights: loss(weights, "test", test, of_test),
            main, self.config.alpha, self.config.beta, self.config.order,
        )  # fmt: skip
        regression = (trust - torch.cat([noted["train"], noted["test"]])).square().sum() / episode.batch
        yield Update({"follower": regression}, gradients(regression, follower))

    def side_loss(self, classifier: Led, weights: Weights, side: Episode, trust: Tensor) -> tuple[Tensor, Tensor]:
        """L of one side over B, in one batch or task by task, and the main network's confidence in each image."""
        parts = side.each() if self.config.batchnorm == "per-task" else [side]
        shares = trust.split([len(part.labels) for part in parts])
        found = [self.part_loss(classifier, weights, part, share) for part, share in zip(parts, shares, strict=True)]
        return torch.stack([loss for loss, _ in found]).sum(), torch.cat([confidence for _, confidence in found])

    def part_loss(self, classifier: Led, weights: Weights, part: Episode, trust: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(classifier.head, BranchHead)
        config, labels = self.config, part.labels
        branches = classifier.head.each(weights, classifier.at(weights, part.images).features)
        confidence = torch.stack([evidence(branch.logits)[1] for branch in branches]).mean(dim=0).amax(dim=1)
        losses = torch.stack([image_losses(branch, labels, config.ova_scale) for branch in branches]).mean(dim=0)
        losses = losses + config.weighted * trust * cross_entropy(branches[0].logits, labels)
        losses = losses + config.evidential * sum(evidential(branch.logits, labels) for branch in branches)
        losses = losses - config.opposed * (trust - confidence).square()
        apart = config.rebias * len(labels) * mmd(branches[0].features, branches[1].features)
        return (losses.sum() - apart) / part.batch, confidence

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        """The domain that is held out, and how often each was chosen."""
        device = next(classifier.parameters()).device
        held = torch.zeros((), dtype=torch.int64, device=device)
        return {"held": held, "chosen": torch.zeros(pool.domains, device=device)} if self.interval else {}

    @torch.no_grad()
    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        """Choose the domain to hold out: the one with the smallest r_d."""
        assert isinstance(classifier, Led)
        random, chosen = on_host(state), state.own["chosen"]
        _, classes = split_classes(classifier.classes, random)
        shown = [survey.draw(Task((d,), classes, self.config.look), random)[0] for d in range(len(chosen))]
        with evaluating(classifier):
            trust = torch.stack([classifier.trust(images.to(classifier.precise)).mean() for images in shown])
        held = reliability(mean_over_processes(trust), chosen, self.config.floor, self.config.repeat).argmin()
        state.own["held"].copy_(held)
        chosen[held] += 1

    def recall(self, state: State) -> None:
        if "held" in state.own:
            self.held = int(state.own["held"])


def reliability(trust: Tensor, chosen: Tensor, floor: float, repeat: float) -> Tensor:
    """r_d = exp(1 + mean w of domain d) (floor + repeat share of the choices that fell on d)."""
    return torch.exp(1 + trust) * (floor + repeat * chosen / chosen.sum().clamp_min(1))


def evidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log alpha and alpha / A of the Dirichlet that the logits stand for, alpha = exp(clamp(z, -10, 10)) + 1."""
    log_alpha = nn.functional.softplus(logits.clamp(-10, 10))  # log(exp(z) + 1)
    return log_alpha, log_alpha.softmax(dim=1)


def evidential(logits: Tensor, labels: Tensor) -> Tensor:
    """log A - log alpha_y of each image: -log p(y) with the Dirichlet integrated out (Sensoy et al., NeurIPS 2018)."""
    log_alpha, _ = evidence(logits)
    return log_alpha.logsumexp(dim=1) - log_alpha.gather(1, labels[:, None]).squeeze(1)


def mmd(x: Tensor, y: Tensor) -> Tensor:
    """The squared mean discrepancy of two batches: mean k(x, x') + mean k(y, y') - 2 mean k(x, y).

    k is the sum of five Gaussians exp(-|a - b|^2 / h) with h = 1/4, 1/2, 1, 2, 4 times the mean squared distance of
    different images of both batches, which is a number and not differentiated.
    """
    both, n = torch.cat([x, y]), len(x)
    lengths = both.square().sum(dim=1)
    squares = (lengths[:, None] + lengths[None] - 2 * both @ both.T).clamp_min(0)
    mean = (squares.detach().sum() / (len(both) * (len(both) - 1))).clamp_min(torch.finfo(squares.dtype).tiny)
    kernel = torch.stack([torch.exp(-squares / (mean * 2.0**power)) for power in range(-2, 3)]).sum(dim=0)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
