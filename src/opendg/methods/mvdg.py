"""MVDG: several trajectories of meta-learning steps, and the weights drawn towards the mean of their ends.

Zhang, Qi, Shi, Gao, MVDG: A Unified Multi-view Framework for Domain Generalization, ECCV 2022,
https://arxiv.org/abs/2112.12329. One iteration:

    for t = 1 .. trajectories:   theta_t = theta
        `length` times:   new images of every source domain; the domains split at random into S - 1 and 1;
                          an Adam step on the S - 1, then an Adam step on the one, both moving theta_t
    theta <- theta - lr (theta - mean_t theta_t)

No joint loss and nothing second order. The moments of the inner Adam (weight decay 5e-4) go on from step to step, from
trajectory to trajectory and from iteration to iteration. After training BatchNorm's statistics are estimated anew, from
training images without augmentation, for the selected weights alone: averaged ones (`--average-over`) keep the average
of the statistics that training moved.

Under the common recipe the gradient handed out is (theta - mean) / `scale`. SGD of momentum 0.9 moves lr / (1 - 0.9) of
it, so scale 0.1 draws theta by 100 lr: by 0.01 an iteration at lr 1e-4, which over 4,000 iterations is the way that the
authors' 0.05 makes in their 800; and by 0.2 at the lr 2e-3 of a network from scratch. The inner steps do not depend
on lr and keep their rate to the end, as the authors' do: their optimiser's state brings the rate of the start along.

Inference: `views` > 1 averages the logits over the image and views - 1 weakly augmented ones (crop of 0.8 to 1 of the
area, half of them mirrored). They are drawn once, the same for every image and every run. The authors offer 32; MEDIC's
paper does not say whether its tables use them, so the default is 1.

Needs from the backbone: nothing. Cost: about ten times ERM's for 4.5 times its images (9 S B where ERM has 6 B, three
sources): the 2 x trajectories x length = 18 passes, of B and (S - 1) B images, are too small to fill a GPU and run one
after the other, for each starts where the Adam step before it ended, and each trajectory takes up the moments that the
one before left. At test `views` times.

Deviations: B images of a domain for each of the nine splits (authors: 64); losses are sums over images divided by B,
which Adam hardly sees; all inner passes move BatchNorm's running statistics (the authors throw those of the copies away
and estimate anew after each epoch); the moments go on as in their serial code, while the parallel one that their script
runs begins each trajectory without any; the head has a bias; with more than three sources S - 1 train and 1 tests. The
authors' outer SGD has no momentum: `--recipe authors` has a tenth of their rate instead, which makes the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from opendg.data.augment import FLIP, HEIGHT, LEFT, TOP, UNCHANGED, WIDTH, Augment
from opendg.episodes import Episode, Pool, Task
from opendg.methods.averaging import blank, renew_batchnorm
from opendg.methods.base import Authors, Method, State, Survey, Update, gradients, leaves
from opendg.methods.checks import above, at_least
from opendg.methods.erm import classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Outputs, Weights
from opendg.models.stages import Touch


class MultiView(Classifier):
    """In evaluation: the features, and so the logits of the linear heads, averaged over fixed views of each image."""

    def __init__(self, backbone: Backbone, classes: int, head: str, views: int, mirror: bool) -> None:
        super().__init__(backbone, classes, head)
        weak = Augment(crop=(0.8, 1.0), flip=0.5 if mirror else 0.0)
        self.plan = weak.plan(np.random.default_rng(0), views)
        self.plan[0] = UNCHANGED

    def forward(self, images: Tensor, touches: Mapping[str, Touch] | None = None) -> Outputs:
        if self.training or len(self.plan) == 1:
            return super().forward(images, touches)
        features = torch.zeros((), dtype=self.precise, device=images.device)
        for row in self.plan.tolist():
            features = features + super().forward(view(images, row), touches).features
        return self.heads(features / len(self.plan))


def view(images: Tensor, row: list[float]) -> Tensor:
    """The crop and the flip of one row of a plan, for all images alike, at the size that they have."""
    height, width = images.shape[2:]
    left, top = round(row[LEFT] * width), round(row[TOP] * height)
    wide, high = max(1, round(row[WIDTH] * width)), max(1, round(row[HEIGHT] * height))
    crop = images[:, :, top : top + high, left : left + wide]
    shown = F.interpolate(crop, (height, width), mode="bilinear", align_corners=False)
    return shown.flip(3) if row[FLIP] > 0.5 else shown


class MVDG(Method):
    name = "mvdg"
    title = "MVDG"
    paper = "Zhang et al., MVDG, ECCV 2022, https://arxiv.org/abs/2112.12329"
    idea = "Move towards the mean of several trajectories of domain-wise steps; average views at test."
    kind = "meta-learning"
    cost = "10x: 18 passes one after the other over 27 B images (three sources)"
    min_sources = 2
    authors: ClassVar[Authors | None] = Authors(
        recipe={"lr": 5e-3, "batch": 64, "iterations": 800}, settings={"scale": 1.0, "head_rate": 10.0}
    )

    @dataclass(frozen=True)
    class Config:
        trajectories: int = 3
        length: int = 3  # splits of the domains along a trajectory, two steps each
        inner_lr: float = 1e-3  # of the inner Adam: the authors' outer rate 0.05 / 50
        inner_decay: float = 5e-4  # weight decay of the inner Adam
        scale: float = 0.1  # the gradient is (theta - mean of the ends) / scale
        head_rate: float = 1.0  # factor of the outer rate for the heads
        views: int = 1  # views of an image at test
        mirror: bool = True  # some views are mirrored; not for digits
        ova: bool = False  # add the one-vs-all head and its loss
        ova_scale: float = 0.5  # 0.5 as coded by MEDIC's authors, 1 as in their Eq. 7

        def __post_init__(self) -> None:
            at_least(self, trajectories=1, length=1, views=1)
            above(self, scale=0)

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """For each split, B images of every domain, those of the held-out one last."""
        everything = tuple(range(pool.classes))
        splits = [random.permutation(pool.domains) for _ in range(self.config.trajectories * self.config.length)]
        return [Task((int(domain),), everything, batch) for split in splits for domain in split]

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return MultiView(backbone, classes, self.head, self.config.views, self.config.mirror)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        return {"head.": self.config.head_rate}

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        """The moments of the inner Adam, and how many steps it has made."""
        device = next(classifier.parameters()).device
        steps = torch.zeros((), dtype=torch.float64, device=device)
        return blank(classifier, "first") | blank(classifier, "second") | {"steps": steps}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        config, weights = self.config, leaves(classifier.weights())
        domains = len(episode.sizes) // (config.trajectories * config.length)
        starts = [domains * split for split in range(config.trajectories * config.length)]
        ends: list[Weights] = []
        losses: list[Tensor] = []
        move = classifier.fusing(adam_step)
        for trajectory in range(config.trajectories):
            fast = weights
            for start in starts[trajectory * config.length : (trajectory + 1) * config.length]:
                held = start + domains - 1
                for side in (episode.tasks(start, held), episode.tasks(held, held + 1)):
                    outputs = classifier.at(fast, side.images)
                    loss = total(classification_losses(outputs, side, config.ova_scale))
                    moved = move(fast, gradients(loss, fast), state.own, config.inner_lr, config.inner_decay)
                    fast = leaves(moved)
                    losses.append(loss.detach())
            ends.append(fast)
        named_losses = {"meta-train": torch.stack(losses[::2]).mean(), "meta-test": torch.stack(losses[1::2]).mean()}
        yield Update(named_losses, away_from(ends, weights, config.scale))

    def finish(self, survey: Survey, classifier: Classifier, state: State) -> None:
        renew_batchnorm(classifier, survey)


@torch.no_grad()
def away_from(ends: list[Weights], weights: Weights, scale: float) -> Weights:
    """(theta - the mean of the ends) / scale."""
    return {n: (weight - torch.stack([end[n] for end in ends]).mean(dim=0)) / scale for n, weight in weights.items()}


@torch.no_grad()
def adam_step(weights: Weights, gradient: Weights, own: Weights, lr: float, decay: float) -> Weights:
    """torch.optim.Adam(lr, weight_decay=decay) on fast weights: new ones out, the moments in `own` moved in place."""
    values = list(weights.values())
    first, second = ([own[f"{moment}.{name}"] for name in weights] for moment in ("first", "second"))
    own["steps"].add_(1)
    rate = (lr / (1 - 0.9 ** own["steps"])).to(values[0].dtype)
    width = (1 - 0.999 ** own["steps"]).sqrt().to(values[0].dtype)
    pulled = torch._foreach_add([gradient[name] for name in weights], values, alpha=decay)
    torch._foreach_lerp_(first, pulled, 0.1)
    torch._foreach_mul_(second, 0.999)
    torch._foreach_addcmul_(second, pulled, pulled, value=0.001)
    spread = torch._foreach_div(torch._foreach_sqrt(second), width)
    torch._foreach_add_(spread, 1e-8)
    moved = torch._foreach_sub(values, torch._foreach_mul(torch._foreach_div(first, spread), rate))
    return dict(zip(weights, moved, strict=True))
