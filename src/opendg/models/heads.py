"""Heads on pooled features: closed set (K logits), one-vs-all (2 x K logits), and the two with shared weights."""

from __future__ import annotations

from torch import Tensor, nn


def _linear(width: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(width, outputs)
    nn.init.xavier_uniform_(layer.weight, gain=0.1)
    nn.init.zeros_(layer.bias)
    return layer


class ClosedHead(nn.Module):
    """z = W f + c, for K known classes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = _linear(width, classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.linear(features), None


class DualHead(nn.Module):
    """Closed-set logits z and one-vs-all logits b: (n, 2, K), channel 0 "not class k", channel 1 "class k"."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = _linear(width, classes)
        self.ova = _linear(width, 2 * classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.linear(features), self.ova(features).unflatten(1, (2, -1))


class SharedHead(nn.Module):
    """One layer for both: the positive channel of the one-vs-all logits doubles as the closed-set logits."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.ova = _linear(width, 2 * classes)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        ova = self.ova(features).unflatten(1, (2, -1))
        return ova[:, 1], ova
