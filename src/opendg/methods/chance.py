"""Random numbers that methods draw inside a step: on the device, from the state's generator, safe to capture."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from opendg.methods.base import State


def on_host(state: State) -> np.random.Generator:
    """A generator for what `every` draws on the host, seeded from the state's: never inside a step."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=state.random, device=state.random.device)))


def uniform(state: State, *shape: int) -> Tensor:
    """U(0, 1)."""
    return torch.rand(*shape, generator=state.random, device=state.random.device)


def beta(state: State, a: float, b: float, *shape: int) -> Tensor:
    """Beta(a, b) = X / (X + Y) with X ~ Gamma(a), Y ~ Gamma(b)."""
    x, y = (torch._standard_gamma(torch.full(shape, c, device=state.random.device), state.random) for c in (a, b))
    return x / (x + y).clamp_min(torch.finfo(x.dtype).tiny)


def dirichlet(state: State, alphas: list[float], *shape: int) -> Tensor:
    """Dirichlet(alphas): (*shape, len(alphas)), each line sums to 1."""
    device = state.random.device
    parts = torch.stack([torch._standard_gamma(torch.full(shape, a, device=device), state.random) for a in alphas], -1)
    return parts / parts.sum(-1, keepdim=True).clamp_min(torch.finfo(parts.dtype).tiny)


def permutation(state: State, n: int) -> Tensor:
    """The numbers 0..n-1 in random order."""
    return uniform(state, n).argsort()
