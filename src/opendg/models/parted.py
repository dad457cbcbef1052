"""Networks of several parts, side by side: each part has its own share of the features and a head on it."""

from __future__ import annotations

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


def mean_ova(said: list[Said]) -> Tensor | None:
    """The mean of the one-vs-all logits, where there are any."""
    found = [ova for _, ova in said if ova is not None]
    return sum(found[1:], start=found[0]) / len(found) if found else None
