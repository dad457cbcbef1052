"""MEDIC: dualistic meta-learning, and its two halves, domain-wise (MLDG) and class-wise.

Wang, Zhang, Qi, Shi, ICCV 2023, https://arxiv.org/abs/2308.09391. One iteration (Algorithm 1):

    domains split into S1, S2, classes into C1, C2;  F = images of S1, G = images of S2, index = class half
    L1     = L(F1) + L(G2)                          at theta        (meta-train)
    theta^ = theta - alpha grad L1(theta)                           (Eq. 2)
    L2     = L(F2) + L(G1)                          at theta^       (meta-test)
    theta <- theta - eta ( grad L1 + beta grad L2 ),   L = CE + L_ova (Eq. 8)

To first order in alpha this minimises L1 + beta L2 - alpha beta grad L1 . grad L2 (Eq. 5): the gradients of different
domains and of different classes are made to agree. `order` 1 takes grad L2 at theta^ as it is; 2 goes back through the
inner step, as the authors' code does.

Batches, as in the authors' code: S2 is one domain, S1 two others, each of the six tasks has B images:
F1 of the first and of the second domain, G2 | F2 of both, G1, G1. With two sources S1 is one domain; with more than
three the rest sit out. C2 is a third of the classes. Every loss is a sum over images divided by B.

Deviations from the authors' code: images are drawn class-balanced and none is thrown away; the tasks of a side go
through the network as one batch (`batchnorm = merged`; they use `per-task`); first order is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from opendg.episodes import Episode, Pool, Task, split_classes
from opendg.methods.base import Authors, Method, State, Update, gradients, leaves, over_processes
from opendg.methods.checks import one_of
from opendg.methods.erm import classification_losses, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights

PAPER = "Wang et al., Generalizable Decision Boundaries, ICCV 2023, https://arxiv.org/abs/2308.09391"


class MEDIC(Method):
    name = "medic"
    title = "MEDIC"
    paper = PAPER
    idea = "Match gradients between domains and between classes at once, with a one-vs-all head."
    kind = "meta-learning"
    cost = "1.3x; order 2: 5x compiled, 7x not"
    score = "bcls"
    authors: ClassVar[Authors | None] = Authors(recipe={"lr": 5e-4}, settings={"order": 2, "batchnorm": "per-task"})

    @dataclass(frozen=True)
    class Config:
        order: int = 1  # 1: first order; 2: through the inner step
        alpha: float = 0.01  # rate of the inner step
        beta: float = 1.0  # weight of the meta-test loss
        ova: bool = True  # the one-vs-all head and its loss
        ova_scale: float = 0.5  # 0.5 as in the authors' code, 1 as in Eq. 7
        shared: bool = False  # closed-set logits = positive one-vs-all logits
        domain_order: str = "cycle"  # how the held-out source domain is chosen: cycle or random
        domain_split: bool = True  # meta-train and meta-test differ in domains
        class_split: bool = True  # meta-train and meta-test differ in classes
        batchnorm: str = "merged"  # statistics over a side (merged), over each task (per-task), or frozen

        def __post_init__(self) -> None:
            one_of(self, order=(1, 2), domain_order=("cycle", "random"), batchnorm=("merged", "per-task", "frozen"))
            if self.shared and not self.ova:
                raise ValueError("shared=true needs the one-vs-all head, that is ova=true")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.min_sources = 2 if getattr(self.config, "domain_split", True) else 1  # presets without it always split

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return Classifier(backbone, classes, self.head, freeze_batchnorm=self.config.batchnorm == "frozen")

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """Meta-train tasks, then meta-test tasks; 3 B images on each side. C2 is redrawn while a task has no image."""
        first, second = self._domains(pool.domains, step, random)
        for _ in range(10):
            tasks = self._sides(first, second, *self._classes(pool.classes, random), batch)
            if all(pool.can_draw(task) for task in tasks):
                break
        return tasks

    def _domains(self, count: int, step: int, random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """S1 (two domains, or the only other one) and S2 (the held-out one); all on both sides without the split."""
        if not self.config.domain_split:
            return tuple(range(count)), tuple(range(count))
        held = self._held_out(count, step, random)
        others = [domain for domain in random.permutation(count).tolist() if domain != held]
        return tuple(others[:2]), (held,)

    def _held_out(self, count: int, step: int, random: np.random.Generator) -> int:
        return step % count if self.config.domain_order == "cycle" else int(random.integers(count))

    def _classes(self, count: int, random: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if not self.config.class_split:
            return tuple(range(count)), tuple(range(count))
        return split_classes(count, random)

    def _sides(
        self, s1: tuple[int, ...], s2: tuple[int, ...], c1: tuple[int, ...], c2: tuple[int, ...], batch: int
    ) -> list[Task]:
        if self.config.domain_split and self.config.class_split:
            f1 = [Task((s1[0],), c1, batch), Task((s1[-1],), c1, batch)]
            g1 = [Task(s2, c1, batch)] * 2
            return [*f1, Task(s2, c2, batch), Task(s1, c2, batch), *g1]
        return [Task(s1, c1, 3 * batch), Task(s2, c2, 3 * batch)]

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        train, test = sides(episode)
        yield meta_update(
            classifier,
            lambda weights: self.loss(classifier, weights, train),
            lambda weights: self.loss(classifier, weights, test),
            classifier.weights(), self.config.alpha, self.config.beta, self.config.order,
        )  # fmt: skip

    def loss(self, classifier: Classifier, weights: Weights, side: Episode) -> Tensor:
        """L = CE + L_ova of one side, in one batch or task by task."""
        parts = side.each() if self.config.batchnorm == "per-task" else [side]
        scale = self.config.ova_scale
        losses = [total(classification_losses(classifier.at(weights, part.images), part, scale)) for part in parts]
        return torch.stack(losses).sum()


def sides(episode: Episode) -> tuple[Episode, Episode]:
    """Meta-train and meta-test: the first half of the tasks and the second."""
    half = len(episode.sizes) // 2
    return episode.tasks(0, half), episode.tasks(half, 2 * half)


Loss = Callable[[Weights], Tensor]


def meta_update(
    classifier: Classifier, train: Loss, test: Loss, weights: Weights, alpha: float, beta: float, order: int
) -> Update:
    """L1 at theta, L2 at theta^ = theta - alpha grad L1, and g1 + beta g2 (first order) or, in second order,

    d/dtheta [ L1 + beta L2(theta^) ] = g1 + beta ( g2 - alpha H1 g2 ),   g2 = grad L2 at theta^, H1 = Hessian of L1
    """
    weights = leaves(weights)
    train_loss = train(weights)
    inner = gradients(train_loss, weights)
    fast = classifier.fusing(descend)(weights, inner, alpha)
    test_loss = test(fast)
    outer = gradients(test_loss, fast)
    if order == 2:
        outer = add(outer, classifier.plainly(hessian_times, train, weights, outer), -alpha)
    return Update({"meta-train": train_loss, "meta-test": test_loss}, add(inner, outer, beta))


def hessian_times(loss: Loss, weights: Weights, vector: Weights) -> Weights:
    """H v = d/dtheta ( grad L . v ), by name. Written with torch.func, so that it can be compiled as a whole."""

    def along(theta: Weights) -> Tensor:
        slope = grad(loss)(theta)
        return torch.stack([(slope[name] * vector[name]).sum() for name in slope]).sum()

    return over_processes(grad(along)({name: weight.detach() for name, weight in weights.items()}))


def descend(weights: Weights, gradient: Weights, alpha: float) -> Weights:
    """theta^ = theta - alpha g, as new leaves."""
    moved = torch._foreach_sub(list(weights.values()), torch._foreach_mul([gradient[name] for name in weights], alpha))
    return leaves(dict(zip(weights, moved, strict=True)))


def add(first: Weights, second: Weights, factor: float = 1.0) -> Weights:
    """first + factor second, name by name."""
    total = torch._foreach_add(list(first.values()), [second[name] for name in first], alpha=factor)
    return dict(zip(first, total, strict=True))


class MLDG(MEDIC):
    """MLDG: meta-train on two domains, meta-test on the third (Li et al., AAAI 2018); MEDIC's domain-wise half.

    min F(theta) + beta G(theta - alpha grad F(theta)): 3 B images of S1 | 3 B images of S2, all classes.

    Deviations: S1, S2, alpha and order are MEDIC's, so that the two differ in the classes alone. The authors hold out a
    random domain (`domain_order=random`), train on all the others, and go through the inner step (`order=2`) of rate
    0.5, on features that stay fixed.
    """

    name = "mldg"
    title = "MLDG"
    paper = "Li et al., Learning to Generalize, AAAI 2018, https://arxiv.org/abs/1710.03463"
    idea = "A gradient step on some source domains must also help on the held-out one."
    score = "cls"
    authors = None

    @dataclass(frozen=True)
    class Config(MEDIC.Config):
        ova: bool = False
        class_split: bool = False


class Classwise(MEDIC):
    """The class-wise half of MEDIC, the row "Cw" of its ablation: the sides differ in classes, not in domains.

    min F(theta) + beta G(theta - alpha grad F(theta)): 3 B images of C1 | 3 B images of C2, all source domains on both
    sides. The paper gives neither a name nor code; this is read from the ablation table. Works with one source domain.
    """

    name = "classwise"
    title = "Class-wise meta-learning"
    idea = "A gradient step on some classes must also help on the held-out ones; no split of domains."

    @dataclass(frozen=True)
    class Config(MEDIC.Config):
        domain_split: bool = False
