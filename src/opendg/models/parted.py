"""Networks of several parts, side by side: each part has its own share of the features and a head on it."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.func import functional_call

from opendg.models.classifier import HEADS, Outputs, Weights

Said = tuple[Tensor, Tensor | None]  # logits (n, K) and, where there is a one-vs-all head, (n, 2, K)


class PartedHead(nn.Module):
    """Heads of one kind, each on its share of the features (n, parts x width). A subclass says how they are joined."""

    def __init__(self, head: str, parts: int, width: int, classes: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(HEADS[head](width, classes) for _ in range(parts))

    def forward(self, features: Tensor) -> Said:
        shares = features.chunk(len(self.parts), dim=1)
        return self.join([part(share) for part, share in zip(self.parts, shares, strict=True)])

    def join(self, said: list[Said]) -> Said:
        """One answer from those of the parts."""
        raise NotImplementedError

    def each(self, weights: Weights, features: Tensor) -> list[Outputs]:
        """What each part says on its share, with the weights of the classifier whose `head` this is."""
        outputs = []
        for number, share in enumerate(features.chunk(len(self.parts), dim=1)):
            part = self.parts[number]
            own = {name: weights[f"head.parts.{number}.{name}"] for name, _ in part.named_parameters()}
            outputs.append(Outputs(share, *functional_call(part, own, (share,))))
        return outputs


def mean_logits(logits: Tensor) -> Tensor:
    """(n, K) from the logits (parts, n, K) of several parts: their softmax is the mean softmax, log-sum-exp the mean.

    So a probability is the mean of those of the parts, and the energy score keeps a meaning.
    """
    return log_mean(logits.log_softmax(dim=2)) + logits.logsumexp(dim=2, keepdim=True).mean(dim=0)


def log_mean(logs: Tensor) -> Tensor:
    """The logarithm of the mean over the parts, the first dimension, from logarithms."""
    return logs.logsumexp(dim=0) - math.log(len(logs))


def mean_ova(said: list[Said]) -> Tensor | None:
    """The mean of the one-vs-all logits, where there are any."""
    found = [ova for _, ova in said if ova is not None]
    return sum(found[1:], start=found[0]) / len(found) if found else None
