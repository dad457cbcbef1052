"""Optimisers as plain updates of many tensors at once, with the learning rate in a tensor.

`torch.optim` refuses a tensor rate inside a captured graph; these few lines take one, and keep their moments in a dict
that is checkpointed like every other tensor. Weight decay is that of torch.optim: added to the gradient (sgd, adam), or
taken off the weights (adamw).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from opendg.errors import unknown_name
from opendg.models.classifier import Weights


class Optimizer:
    """Moves named parameters. `rates` are factors of the learning rate by the start of a parameter's name."""

    moments: tuple[str, ...] = ()

    def __init__(self, weights: Weights, weight_decay: float, rates: dict[str, float]) -> None:
        self.weights, self.decay = weights, weight_decay
        self.state = {f"{moment}.{n}": torch.zeros_like(w) for n, w in weights.items() for moment in self.moments}
        self.factor = {name: _factor(name, rates) for name in weights}

    @torch.no_grad()
    def apply(self, gradients: Weights, lr: Tensor) -> None:
        """One step of the parameters that have a gradient, those of one rate together."""
        for factor in sorted(set(self.factor.values())):
            names = [name for name in gradients if self.factor[name] == factor]
            if names:
                self.move(names, [gradients[name] for name in names], lr if factor == 1.0 else lr * factor)

    def move(self, names: list[str], gradients: list[Tensor], lr: Tensor) -> None:
        raise NotImplementedError

    def moment(self, kind: str, names: list[str]) -> list[Tensor]:
        return [self.state[f"{kind}.{name}"] for name in names]

    def chosen(self, names: list[str]) -> list[Tensor]:
        return [self.weights[name] for name in names]


class SGD(Optimizer):
    """v <- 0.9 v + (g + decay w);  w <- w - lr v."""

    moments = ("momentum",)

    def move(self, names: list[str], gradients: list[Tensor], lr: Tensor) -> None:
        weights, momentum = self.chosen(names), self.moment("momentum", names)
        torch._foreach_mul_(momentum, 0.9)
        torch._foreach_add_(momentum, gradients)
        torch._foreach_add_(momentum, weights, alpha=self.decay)
        torch._foreach_sub_(weights, torch._foreach_mul(momentum, lr))


class Adam(Optimizer):
    """m <- 0.9 m + 0.1 g;  v <- 0.999 v + 0.001 g^2;  w <- w - lr m^ / (sqrt(v^) + 1e-8), with bias correction."""

    moments = ("first", "second")
    decoupled = False

    def __init__(self, weights: Weights, weight_decay: float, rates: dict[str, float]) -> None:
        super().__init__(weights, weight_decay, rates)
        self.state |= {f"steps.{name}": weight.new_zeros(()) for name, weight in weights.items()}

    def move(self, names: list[str], gradients: list[Tensor], lr: Tensor) -> None:
        weights, first, second = self.chosen(names), self.moment("first", names), self.moment("second", names)
        steps = self.moment("steps", names)
        torch._foreach_add_(steps, 1.0)
        if self.decoupled:
            torch._foreach_sub_(weights, torch._foreach_mul(weights, lr * self.decay))
        else:
            gradients = list(torch._foreach_add(gradients, weights, alpha=self.decay))
        torch._foreach_lerp_(first, gradients, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, gradients, gradients, value=0.001)
        width = torch._foreach_div(second, [-torch.expm1(step * math.log(0.999)) for step in steps])
        torch._foreach_sqrt_(width)
        torch._foreach_add_(width, 1e-8)
        move = torch._foreach_div(first, [-torch.expm1(step * math.log(0.9)) for step in steps])
        torch._foreach_div_(move, width)
        torch._foreach_sub_(weights, torch._foreach_mul(move, lr))


class AdamW(Adam):
    """Adam with the decay taken off the weights: w <- w - lr decay w."""

    decoupled = True


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}


def make_optimizer(name: str, weights: Weights, weight_decay: float, rates: dict[str, float]) -> Optimizer:
    if name not in OPTIMIZERS:
        raise unknown_name("optimiser", name, OPTIMIZERS)
    return OPTIMIZERS[name](weights, weight_decay, rates)


def _factor(name: str, rates: dict[str, float]) -> float:
    """The factor of the longest start of the name that has one."""
    fitting = [start for start in rates if name.startswith(start)]
    return rates[max(fitting, key=len)] if fitting else 1.0


def _step(fraction: Tensor) -> Tensor:
    return torch.where(fraction < 0.8, 1.0, 0.1)


def _cosine(fraction: Tensor) -> Tensor:
    return 0.5 * (1 + torch.cos(math.pi * fraction))


def _constant(fraction: Tensor) -> Tensor:
    return torch.ones_like(fraction)


SCHEDULES: dict[str, Callable[[Tensor], Tensor]] = {"step": _step, "cosine": _cosine, "constant": _constant}


def schedule(name: str) -> Callable[[Tensor], Tensor]:
    """The factor of the learning rate at a fraction of the run: step (x 0.1 at 80 %), cosine (to 0), constant."""
    if name not in SCHEDULES:
        raise unknown_name("schedule", name, SCHEDULES)
    return SCHEDULES[name]
