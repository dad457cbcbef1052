"""MEDIC++: dualistic meta-learning over many small tasks, in several first-order steps.

Wang, Zhang, Qi, Gao, Shi, Exploring Dualistic Meta-Learning to Enhance Domain Generalization in Open Set Scenarios,
2026, https://arxiv.org/abs/2606.23758. One iteration:

    source domains dealt at random into task_d parts; for each of them the classes dealt anew into task_c parts
    the task_d x task_c tasks (B images each), shuffled and dealt into m steps
    theta_0 = theta,  theta_{s+1} = theta_s - alpha g_s,  g_s = grad at theta_s of the sum of step s's task losses
    theta <- theta - eta (theta - theta_m) / alpha  =  theta - eta sum_s g_s

To first order in alpha every ordered pair of steps has its gradients matched, at the cost of plain gradients. L = CE +
L_ova as in MEDIC. The tasks of a step go through the network as one batch, so BatchNorm sees them mixed.

`select = hard` keeps classes that are confused apart: from time to time the network, in evaluation mode, looks at a few
source images of each domain; the mean softmax by true class is a transition matrix over the class groups, a walk goes
from a random group to the next unused one with probability proportional to confusion, and is dealt round-robin.

Needs from the backbone: nothing. Cost: that of ERM for the same 9 B images, and a copy of the weights.

Deviations: the outer gradient is summed as it stands and not taken from a difference of weights. With fewer sources
than task_d, task_d is their number; with fewer class groups than task_c likewise; with more sources a task shares its
images among those of its part. Parts of classes are redrawn, ten times at most, while a task has no image. The authors
look for confusions at every iteration; here a look serves `interval` of them. Groups are those of MEDIC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from opendg.episodes import Episode, Pool, Task, class_groups
from opendg.methods.base import Authors, State, Survey, Update, gradients, leaves, mean_over_processes
from opendg.methods.chance import on_host
from opendg.methods.checks import at_least, one_of
from opendg.methods.medic import MEDIC, add, descend
from opendg.models.classifier import Classifier, Weights
from opendg.models.modes import evaluating

T = TypeVar("T")


class MEDICpp(MEDIC):
    name = "medic++"
    title = "MEDIC++"
    paper = "Wang et al., Exploring Dualistic Meta-Learning, 2026, https://arxiv.org/abs/2606.23758"
    idea = "Match gradients over all domain x class tasks in several small first-order steps."
    cost = "1.3x; it sees 9 B images"
    authors: ClassVar[Authors | None] = Authors(recipe={"lr": 2e-4, "batch": 16, "iterations": 6000})

    @dataclass(frozen=True)
    class Config:
        alpha: float = 0.01  # rate of the inner steps
        task_d: int = 3  # parts that the source domains are dealt into
        task_c: int = 3  # parts that the classes are dealt into, anew for each part of the domains
        steps: int = 3  # inner steps, over which the tasks are dealt evenly
        ova: bool = True  # the one-vs-all head and its loss
        ova_scale: float = 0.5  # 0.5 as in the authors' code, 1 as in MEDIC's Eq. 7
        shared: bool = False  # closed-set logits = positive one-vs-all logits
        batchnorm: str = "merged"  # statistics over a step (merged), over each task (per-task), or frozen
        select: str = "random"  # how classes are dealt: random, or hard (those that are confused apart)
        interval: int = 10  # hard: iterations between two looks at the confusions
        look: int = 8  # hard: images of each domain and class group at a look

        def __post_init__(self) -> None:
            one_of(self, select=("random", "hard"), batchnorm=("merged", "per-task", "frozen"))
            at_least(self, task_d=1, task_c=1, steps=1, interval=1, look=1)
            if self.shared and not self.ova:
                raise ValueError("shared=true needs the one-vs-all head, that is ova=true")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.interval = self.config.interval if self.config.select == "hard" else None
        self.confusion: NDArray[np.float64] | None = None  # (domains, classes, classes), on the host for `tasks`

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """The tasks in the order of the steps that take them, B images each."""
        parts = deal(random.permutation(pool.domains).tolist(), self.config.task_d)
        tasks = [task for domains in parts for task in self._tasks_of(pool, tuple(domains), batch, random)]
        return [tasks[number] for number in random.permutation(len(tasks))]

    def _tasks_of(
        self, pool: Pool, domains: tuple[int, ...], batch: int, random: np.random.Generator
    ) -> list[Task]:  # fmt: skip
        """One part of the domains with each part of the classes, redrawn while a task has no image."""
        groups = class_groups(pool.classes)
        for _ in range(10):
            parts = deal(self._order(groups, domains, random), self.config.task_c)
            tasks = [Task(domains, tuple(sorted(c for g in part for c in groups[g])), batch) for part in parts]
            if all(pool.can_draw(task) for task in tasks):
                break
        return tasks

    def _order(self, groups: list[tuple[int, ...]], domains: tuple[int, ...], random: np.random.Generator) -> list[int]:
        """The class groups in random order, or along a walk from each to one that it is confused with."""
        if self.confusion is None:
            return [int(group) for group in random.permutation(len(groups))]
        between = self.confusion[list(domains)].mean(axis=0)
        return walk(np.array([[between[np.ix_(g, h)].sum() for h in groups] for g in groups]), random)

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = leaves(classifier.weights())
        losses: Weights = {}
        outer: Weights = {}
        parts = deal_in_order(episode, self.config.steps)
        for number, (part, factor) in enumerate(zip(parts, self.step_weights(len(parts)), strict=True), start=1):
            loss = self.loss(classifier, weights, part)
            gradient = gradients(loss, weights)
            outer = add(outer or _zeros(gradient), gradient, factor)
            losses[f"step-{number}"] = loss
            if number < len(parts):
                weights = classifier.fusing(descend)(weights, gradient, self.config.alpha)
        yield Update(losses, outer)

    def step_weights(self, steps: int) -> list[float]:
        """What the gradient of each step counts in the outer one."""
        return [1.0] * steps

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        if self.config.select == "random":
            return {}
        shape = (pool.domains, pool.classes, pool.classes)
        return {"confusion": torch.full(shape, 1 / pool.classes, device=next(classifier.parameters()).device)}

    @torch.no_grad()
    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        """confusion[d, c] = mean softmax over a few images of class c in domain d; unchanged where none was drawn."""
        random, confusion = on_host(state), state.own["confusion"]
        with evaluating(classifier):
            for domain, known in enumerate(confusion):
                groups = class_groups(len(known))
                drawn = [survey.draw(Task((domain,), group, self.config.look), random) for group in groups]
                images, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
                probabilities = classifier(images.to(classifier.precise)).logits.softmax(dim=1)
                of_class = torch.nn.functional.one_hot(labels, len(known)).to(probabilities.dtype)
                seen = of_class.sum(dim=0)[:, None]
                mean = of_class.T @ probabilities / seen.clamp_min(1)
                known.copy_(torch.where(seen > 0, mean.to(known.dtype), known))
        confusion.copy_(mean_over_processes(confusion))

    def recall(self, state: State) -> None:
        if "confusion" in state.own:
            self.confusion = state.own["confusion"].double().cpu().numpy()


def deal(items: Sequence[T], parts: int) -> list[list[T]]:
    """Like cards, one by one, into so many hands; never an empty one."""
    parts = min(parts, len(items))
    return [list(items[part::parts]) for part in range(parts)]


def deal_in_order(episode: Episode, steps: int) -> list[Episode]:
    """The tasks of each step: consecutive, as evenly as they go, never none."""
    tasks = len(episode.sizes)
    steps = min(steps, tasks)
    return [episode.tasks(tasks * step // steps, tasks * (step + 1) // steps) for step in range(steps)]


def walk(transition: NDArray[np.float64], random: np.random.Generator) -> list[int]:
    """All numbers once: from a random one always on to an unused one, with probability in proportion to the row."""
    here = int(random.integers(len(transition)))
    left, path = [number for number in range(len(transition)) if number != here], [here]
    while left:
        weight = transition[here, left]
        chance = weight / weight.sum() if weight.sum() > 0 else np.full(len(left), 1 / len(left))
        here = left.pop(int(random.choice(len(left), p=chance)))
        path.append(here)
    return path


def _zeros(weights: Weights) -> Weights:
    return {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
