"""The loop: one way to train, for every method, on the CPU and on the GPU, step by step or captured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from opendg.data.augment import Augment
from opendg.episodes import Episode
from opendg.errors import Diverged, OpenDGError
from opendg.methods.averaging import fold
from opendg.methods.base import Method, State
from opendg.models.classifier import Classifier, Weights, compiled
from opendg.runs.checkpoint import Checkpoint
from opendg.seeds import derive
from opendg.training.capture import capture
from opendg.training.feed import Feed
from opendg.training.optim import make_optimizer, schedule
from opendg.training.recipe import Recipe


class Loop:
    """Everything that moves during a run, as tensors on one device: `tensors()` is the whole of it.

    `advance()` does one iteration: gather, augment, the method's updates, averaging. Nothing in it asks the device for
    a value, so that it can be captured and the host can run ahead.
    """

    def __init__(
        self, method: Method, classifier: Classifier, feed: Feed, augment: Augment, recipe: Recipe, seed: int
    ) -> None:
        self.method, self.classifier, self.feed, self.augment, self.recipe = method, classifier, feed, augment, recipe
        device = feed.device
        classifier.train()
        self.weights = classifier.weights()
        self.buffers = {name: b for name, b in classifier.named_buffers() if b is not None}
        self.optimizer = make_optimizer(recipe.optimizer, self.weights, recipe.weight_decay, method.rates(classifier))
        self.schedule = schedule(recipe.schedule)
        self.dropout = default_generator(device).clone_state()
        self.dropout.manual_seed(derive(seed, "dropout"))
        random = torch.Generator(device)
        random.manual_seed(derive(seed, "method"))
        self.state = State(
            step=torch.zeros((), dtype=torch.int64, device=device),
            fraction=torch.zeros((), dtype=torch.float64, device=device),
            random=random,
            own=method.state(classifier, feed.pool),
        )
        self.averaged = (
            {name: value.detach().clone() for name, value in classifier.moving().items()} if recipe.average_over else {}
        )
        self.start = {name: value.clone() for name, value in self.averaged.items()} if recipe.average_start else {}
        self.sums: Weights = {}  # of the losses since they were last asked for
        shown = classifier.backbone.input
        self.size, self.mean, self.std = shown.size, *(torch.tensor(v, device=device) for v in (shown.mean, shown.std))
        self.prepare_images, self.update, self.average = augment.apply, self.optimizer.apply, move_average
        self.captures = False
        self.replay: Callable[[], None] | None = None

    def run(self) -> None:
        """One iteration: replayed from a CUDA graph where there is one, which the first one makes when asked to."""
        if self.replay:
            self.replay()
            return
        with in_place_of_default(self.dropout):
            self.advance()
            if self.captures:
                self.replay = capture(self.advance, self.tensors().values(), self.generators())

    def advance(self) -> None:
        batch = self.feed.batch(self.state.step)
        images = self.prepare_images(batch.images, batch.plan, self.size, self.mean, self.std).to(
            self.classifier.precise
        )
        episode = Episode(
            images, batch.labels, batch.domains, batch.positions, sizes=self.feed.sizes, batch=self.recipe.batch
        )
        lr = (self.recipe.lr * self.schedule(self.state.fraction)).float()
        for update in self.method.step(self.classifier, episode, self.state):
            self.update(update.gradients, lr)
            self._note(update.losses)
        if self.averaged:
            self.average(self.averaged, self.classifier.moving(), self.state.step, self.recipe.decay)
        self.state.step += 1
        self.state.fraction.copy_(self.state.step.double() / self.recipe.iterations)

    def capture(self, compile: bool = False) -> None:
        """From the second iteration on, replay the step from a CUDA graph; the first one runs step by step.

        With `compile`, network, augmentation, optimiser and averaging go through torch.compile before.
        """
        if compile:
            self.classifier.fuse()
            self.prepare_images = compiled(self.augment.apply)
            self.update, self.average = compiled(self.optimizer.apply), compiled(move_average)
        torch.backends.cudnn.benchmark = True
        self.captures = True

    def rate(self, step: int) -> float:
        """The learning rate of a step, without asking the device."""
        return self.recipe.lr * float(self.schedule(torch.tensor(step / self.recipe.iterations, dtype=torch.float64)))

    def losses(self, iterations: int) -> dict[str, float]:
        """Means over the last iterations. This is where the host waits for the device."""
        means = {name: float(total) / iterations for name, total in self.sums.items()}
        for total in self.sums.values():
            total.zero_()
        return means

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes, by name: what a checkpoint holds."""
        groups = {
            "weights": self.weights, "buffers": self.buffers, "optimizer": self.optimizer.state,
            "averaged": self.averaged, "own": self.state.own, "losses": self.sums,
            "state": {"step": self.state.step, "fraction": self.state.fraction},
        }  # fmt: skip
        return {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}

    def generators(self) -> list[torch.Generator]:
        return [self.state.random, self.dropout]

    def save(self) -> dict[str, Tensor]:
        random = {f"random.{i}": generator.get_state() for i, generator in enumerate(self.generators())}
        return self.tensors() | random

    @torch.no_grad()
    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of the same run."""
        for name in (n for n in checkpoint.tensors if n.startswith("losses.")):
            self.sums.setdefault(name.removeprefix("losses."), torch.zeros((), device=self.feed.device))
        mine, theirs = self.tensors(), checkpoint.tensors
        if misfit := [name for name, t in mine.items() if name not in theirs or theirs[name].shape != t.shape]:
            raise OpenDGError(f"The checkpoint does not belong to this run: {misfit[0]!r} differs; train it anew.")
        states = [(generator, theirs[f"random.{i}"]) for i, generator in enumerate(self.generators())]
        if any(generator.get_state().shape != state.shape for generator, state in states):
            raise OpenDGError(
                f"The run was started on another kind of device than {self.feed.device.type}: resume it there, with "
                "--device cpu or --device cuda."
            )
        for name, tensor in mine.items():
            tensor.copy_(theirs[name])
        for generator, state in states:
            generator.set_state(state)

    def finished_weights(self, averaged: bool = False) -> dict[str, Tensor]:
        """Parameters and stored buffers as `Classifier.load_state_dict` takes them."""
        tensors = {**self.weights, **self.buffers}
        if averaged:
            tensors |= mixed(self.averaged, self.start, self.recipe.average_start)
        return {name: tensors[name] for name in self.classifier.state_dict()}

    @torch.no_grad()
    def _note(self, losses: Weights) -> None:
        for name, value in losses.items():
            if name in self.sums:
                self.sums[name] += value.detach()
            else:
                self.sums[name] = value.detach().float().clone()


def default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


@contextmanager
def in_place_of_default(random: torch.Generator) -> Iterator[None]:
    """What torch draws without being given a generator, dropout that is, comes from `random`.

    So loops that take turns in one process, or a program around them, do not disturb each other.
    """
    default = default_generator(random.device)
    if random.device.type == "cuda":  # a graph that is captured here keeps this state, and is replayed with it
        outside = default.graphsafe_get_state()
        default.graphsafe_set_state(random)
        try:
            yield
        finally:
            default.graphsafe_set_state(outside)
        return
    before = default.get_state()
    default.set_state(random.get_state())
    try:
        yield
    finally:
        random.set_state(default.get_state())
        default.set_state(before)


def check_finite(losses: Mapping[str, float], step: int) -> None:
    """Refuse to go on from losses that are no numbers any more."""
    if bad := [name for name, value in losses.items() if not math.isfinite(value)]:
        raise Diverged(f"The loss {bad[0]!r} is no longer finite at step {step}: try a smaller --lr.")


@torch.no_grad()
def mixed(averaged: Weights, start: Weights, share: float) -> Weights:
    """(1 - s) w~ + s w_0: averaged weights with a share s of the starting ones (Wortsman et al., CVPR 2022)."""
    return averaged | {
        name: torch.lerp(averaged[name], old, share) for name, old in start.items() if old.is_floating_point()
    }


@torch.no_grad()
def move_average(averaged: Weights, values: Weights, step: Tensor, decay: float) -> None:
    """w~ <- w~ + (1 - d) / (1 - d^t) (w - w~), t = step + 1: the mean of w_1 ... w_t with weights d^(t - i).

    The correction of Adam's moments: the start has no part in it, and it looks back over 1 / (1 - d) iterations, or
    over all of them while there are fewer.
    """
    t = (step + 1).double()
    fold(averaged, values, (1 - decay) / -torch.expm1(t * math.log(decay)))
