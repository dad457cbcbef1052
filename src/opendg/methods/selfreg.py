"""SelfReg: pull images of one class together, in logits and in features, with no negatives.

Kim et al., SelfReg: Self-supervised Contrastive Regularization for Domain Generalization, ICCV 2021,
https://arxiv.org/abs/2104.09841. With z the logits, f the features, r = proj(f), s and s' two shuffles of the batch
that stay inside each class, and l ~ Beta(0.5, 0.5) once an iteration:

    z2 = z[s],  r2 = r[s],    z3 = l z2 + (1 - l) z[s'],  r3 = l r2 + (1 - l) r[s']
    L = CE + c { l [ MSE(z, z2) + 0.3 MSE(f, r2) ] + (1 - l) [ MSE(z, z3) + 0.3 MSE(f, r3) ] },    c = min(1, CE)

c is a number, not a path for the gradient. Two more parts belong to the method: source domains join one after the
other in the first third of the run (`curriculum`; the authors: of 30 epochs 5 with one domain, 5 with two, then all
three), and the finished weights are the mean of those of the last fifth (`average_from`; theirs: from epoch 24), with
new BatchNorm statistics, of training images without augmentation. `--select source-accuracy`, which would keep an
iterate in its place, needs `average_from=1`.

Needs the pooled features; proj is an MLP d - h - h - d with BatchNorm, h = 2 d (d where d is 2048 or more).
Cost: that of ERM; a copy of the weights.
Deviations: the mean takes in every iteration, not every epoch. The common recipe lowers the rate tenfold just where the
mean begins, so that it lies close to the last weights; the authors' rate is constant (`--schedule constant`). When
domains join is known after the first 20 iterations (until then there is one). `--recipe authors`: their lr 4e-3 is for
the mean loss, a sixth of it here; 30 epochs of PACS in batches of 128 are about 1,500 iterations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from opendg.episodes import Episode, Pool, Task
from opendg.methods.averaging import adopt, blank, fold, named, renew_batchnorm
from opendg.methods.base import Authors, Method, State, Survey, Update, gradients
from opendg.methods.chance import beta, uniform
from opendg.methods.checks import above
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Outputs, Weights


class ProjectingClassifier(Classifier):
    """A Classifier with an MLP on its features; the MLP takes part in training alone."""

    def __init__(self, backbone: Backbone, classes: int, head: str) -> None:
        super().__init__(backbone, classes, head)
        wide = backbone.width
        hidden = 2 * wide if wide < 2048 else wide
        self.projection = nn.Sequential(
            nn.Linear(wide, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU(),
            nn.Linear(hidden, wide, bias=False), nn.BatchNorm1d(wide),
        )  # fmt: skip


class SelfReg(Method):
    name = "selfreg"
    title = "SelfReg"
    paper = (
        "Kim et al., SelfReg: Self-supervised Contrastive Regularization, ICCV 2021, https://arxiv.org/abs/2104.09841"
    )
    idea = "Pull logits and projected features of images of one class together; average the last weights."
    kind = "contrastive"
    interval = 20
    authors = Authors(
        recipe={"iterations": 1500, "batch": 21, "lr": 4e-3 / 6, "weight_decay": 0.0, "schedule": "constant"}
    )

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 1.0  # of all in the braces
        feature_weight: float = 0.3  # of features against logits
        beta: float = 0.5  # of the distribution of l
        curriculum: bool = True  # source domains join one after the other in the first third of the run
        average_from: float = 0.8  # from this fraction of the run on weights are averaged; 1: never

        def __post_init__(self) -> None:
            above(self, beta=0)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.averages = self.config.average_from < 1
        self.iterations = 0  # of the whole run; 0: not known yet

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """ERM's, with only the first domains while the curriculum lasts."""
        tasks = super().tasks(pool, batch, step, random)
        joined = self.joined(step, pool.domains)
        if joined == pool.domains:
            return tasks
        return [Task(tuple(range(joined)), task.classes, task.size) for task in tasks]

    def joined(self, step: int, domains: int) -> int:
        """How many source domains are in play: the d-th joins at d / (S - 1) of the first third of the run."""
        if not self.config.curriculum:
            return domains
        thirds = 3 * step / self.iterations if self.iterations else 0.0
        return min(domains, 1 + int(thirds * (domains - 1) + 1e-9))

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return ProjectingClassifier(backbone, classes, self.head)

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        device = next(classifier.parameters()).device
        averaged = torch.zeros((), dtype=torch.float64, device=device)  # iterations in the mean
        iterations = torch.zeros((), dtype=torch.int64, device=device)
        return blank(classifier, "mean") | {"averaged": averaged, "iterations": iterations}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, ProjectingClassifier)
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        pull = self.pull(outputs, classifier.projection(outputs.features), episode.labels, state)
        ease = (losses["ce"].detach() / scaled(torch.ones_like(losses["ce"]), episode)).clamp_max(1)
        losses["selfreg"] = self.config.weight * scaled(ease * pull, episode)
        yield Update(losses, gradients(total(losses), weights))
        counts = (state.fraction >= self.config.average_from).double()
        state.own["averaged"] += counts
        fold(named(state.own, "mean"), weights, counts / state.own["averaged"].clamp_min(1))

    def pull(self, outputs: Outputs, projected: Tensor, labels: Tensor, state: State) -> Tensor:
        """What stands in the braces."""
        share = beta(state, self.config.beta, self.config.beta).to(projected.dtype)
        first, second = class_shuffle(labels, state), class_shuffle(labels, state)
        feature_weight: float = self.config.feature_weight

        def distance(logits: Tensor, features: Tensor) -> Tensor:
            return mse_loss(outputs.logits, logits) + feature_weight * mse_loss(outputs.features, features)

        def mixed(values: Tensor) -> Tensor:
            return values[second].lerp(values[first], share)

        alone = distance(outputs.logits[first], projected[first])
        return share * alone + (1 - share) * distance(mixed(outputs.logits), mixed(projected))

    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        if not self.iterations and int(state.step):
            state.own["iterations"].fill_(round(int(state.step) / float(state.fraction)))

    def recall(self, state: State) -> None:
        self.iterations = self.iterations or int(state.own["iterations"])

    def finish(self, survey: Survey, classifier: Classifier, state: State) -> None:
        if float(state.own["averaged"]):
            adopt(classifier, named(state.own, "mean"))
            renew_batchnorm(classifier, survey)


def class_shuffle(labels: Tensor, state: State) -> Tensor:
    """Positions in a random order that keeps every image's class: an image alone in its class meets itself."""
    by_class = labels.argsort(stable=True)
    shuffled = (labels + uniform(state, len(labels)).double()).argsort()
    return torch.empty_like(labels).scatter(0, by_class, shuffled)
