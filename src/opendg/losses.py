"""Losses that several methods share, one value an image. Methods sum them and divide by B (see Episode)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(z)_y, an image each."""
    return F.cross_entropy(logits, labels, reduction="none")


def one_vs_all(ova: Tensor, labels: Tensor, scale: float = 0.5) -> Tensor:
    """The one-vs-all loss with the hardest negative (Eq. 7 of MEDIC; Saito & Saenko, ICCV 2021), an image each.

        L_ova(x, y) = scale * ( -log q_y(x) - min_{j != y} log(1 - q_j(x)) ),   q_k = softmax(b_0k, b_1k)_1

    Eq. 7 has scale 1, the authors' code 0.5. Logarithms are exact (log-sigmoid); their code adds 1e-8 inside.
    """
    margin = ova[:, 1] - ova[:, 0]
    positive = F.softplus(-margin.gather(1, labels[:, None])).squeeze(1)
    own = torch.zeros_like(margin, dtype=torch.bool).scatter(1, labels[:, None], True)
    hardest = margin.masked_fill(own, -torch.inf).amax(dim=1)
    return scale * (positive + F.softplus(hardest))
