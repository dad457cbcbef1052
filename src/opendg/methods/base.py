"""The method contract: how one iteration turns an Episode into gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from opendg.episodes import Episode, Pool, Task
from opendg.methods.checks import none_negative
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights
from opendg.predictions import Predictions


@dataclass(frozen=True)
class Update:
    """One move of the optimiser: the losses to log, by name, and a gradient for each parameter that moves."""

    losses: dict[str, Tensor]
    gradients: Weights


@dataclass
class State:
    """What a step may know beside weights and images. All of it lies on the device and is checkpointed."""

    step: Tensor  # int64, counts from 0
    fraction: Tensor  # float64, step / iterations
    random: torch.Generator  # for what a method draws inside its step
    own: Weights  # the method's own tensors: memory banks, masks, moments


class Survey(Protocol):
    """The source images as a method may see them between iterations, not augmented. Never the target's."""

    pool: Pool  # the training images by source domain and class: what there is to draw

    def train(self) -> Predictions:
        """What the network, in evaluation mode, says of the training images, in the order of `Episode.positions`."""

    def val(self) -> Predictions:
        """The same for the source validation images."""

    def images(self, batch: int = 256) -> Iterator[Tensor]:
        """The training images, normalised, batch by batch in the same order."""

    def draw(self, task: Task, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Some of them, normalised, and their labels: for looks that come too often to go through all images."""


@dataclass(frozen=True)
class Authors:
    """The original recipe of a method, for `--recipe authors`: values of the Recipe and of the method's Config."""

    recipe: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


class Method:
    """A way to train. A subclass is one file: formula and paper in the docstring, a Config, a step."""

    name: ClassVar[str]
    title: ClassVar[str]  # as the literature calls it
    paper: ClassVar[str]  # citation with a link
    idea: ClassVar[str]  # one line
    kind: ClassVar[str] = "baseline"
    cost: ClassVar[str] = "1x"  # of ERM's time for an iteration with the same images
    score: ClassVar[str] = "cls"  # the confidence that the method is read with
    min_sources: int = 1  # source domains that it takes; a Config may choose it
    captures: ClassVar[bool] = True  # False when the step's control flow depends on data
    compiles: ClassVar[bool] = True  # False when the backbone cannot go through torch.compile
    interval: int | None = None  # call `every` each so many iterations; a Config may choose it
    averages: bool = False  # True when the finished weights are a mean over iterations: no iterate is selected
    restarts: bool = False  # True when the weights go back to their start within a run: no mean reaches over that
    authors: ClassVar[Authors | None] = None  # the original recipe, where it is known

    @dataclass(frozen=True)
    class Config:
        """Hyper-parameters of the method's own. `--set key=value` fills them."""

    def __init__(self, config: Any = None) -> None:
        self.config: Any = self.Config() if config is None else config
        none_negative(self.config)

    @property
    def head(self) -> str:
        """The kind of head that the Config asks for: with `ova` the one-vs-all one too, with `shared` one for both."""
        if getattr(self.config, "shared", False):
            return "shared"
        return "dual" if getattr(self.config, "ova", False) else "closed"

    def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
        """The tasks of one iteration. Their number and sizes are the same at every step.

        Default: 6 B images (what one iteration of MEDIC sees), shared evenly by the source domains, all classes.
        """
        everything = tuple(range(pool.classes))
        share = max(1, 6 * batch // pool.domains)
        return [Task((domain,), everything, share) for domain in range(pool.domains)]

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        """The network. Default: backbone and `head`."""
        return Classifier(backbone, classes, self.head)

    def rates(self, classifier: Classifier) -> dict[str, float]:
        """Factors of the learning rate, by the start of a parameter's name. Default: one rate for all."""
        return {}

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        """The method's own tensors at the start."""
        return {}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterable[Update]:
        """The updates of one iteration, in order. The loop applies each before it asks for the next."""
        raise NotImplementedError

    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        """Work over the source images, before the first iteration and after each `interval` of them, the last too."""

    def recall(self, state: State) -> None:
        """Take up from `state.own` what `tasks` needs on the host: called after `every` and when a run is resumed."""

    def finish(self, survey: Survey, classifier: Classifier, state: State) -> None:
        """Last work on the network after the last iteration: averaged weights, new statistics of BatchNorm."""


def gradients(loss: Tensor, weights: Weights, keep: bool = False) -> Weights:
    """d loss / d weights by name, summed over the processes of a data-parallel run; zeros where nothing depends.

    Losses are sums over images divided by B, so the sum over processes is the gradient of the whole batch. It is taken
    by hand: hooks of data-parallel wrappers do not fire for functional calls, and an inner step needs it at once.
    `keep` keeps the graph for another gradient of the same pass.
    """
    found = torch.autograd.grad(loss, list(weights.values()), retain_graph=keep, materialize_grads=True)
    return over_processes(dict(zip(weights, found, strict=True)))


def split_by_name(weights: Weights, start: str) -> tuple[Weights, Weights]:
    """The weights whose names start so, and the others: for parts of a network that move on losses of their own."""
    named = {name: weight for name, weight in weights.items() if name.startswith(start)}
    return named, {name: weight for name, weight in weights.items() if name not in named}


def leaves(weights: Weights) -> Weights:
    """The same weights, in the same memory, as plain tensors: code compiled for them then serves fast weights too."""
    return {name: weight.detach().requires_grad_() for name, weight in weights.items()}


def over_processes(tensors: Weights) -> Weights:
    """Each tensor summed over the processes of a data-parallel run, all in one message; as it is in a single one."""
    if not (dist.is_available() and dist.is_initialized()):
        return tensors
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors.values()])
    return {name: part.view_as(tensors[name]) for name, part in zip(tensors, parts, strict=True)}


def mean_over_processes(tensor: Tensor) -> Tensor:
    """The mean over the processes of a data-parallel run, for what all of them must decide alike."""
    summed = over_processes({"tensor": tensor, "count": torch.ones_like(tensor)})
    return summed["tensor"] / summed["count"]
