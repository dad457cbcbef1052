"""What the tests of the meta-learning methods share: losses and steps by hand, a pool, a survey of real images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from opendg.data.store import Store
from opendg.data.tree import scan
from opendg.episodes import Episode, Pool
from opendg.methods.base import Update
from opendg.models.classifier import Classifier
from opendg.protocol import make_protocol
from opendg.training.survey import SourceSurvey


def ova_by_hand(b: Tensor, y: int) -> Tensor:
    """Half of MEDIC's Eq. 7 for one image, class by class."""
    q = [torch.exp(b[1, k]) / (torch.exp(b[0, k]) + torch.exp(b[1, k])) for k in range(b.shape[1])]
    return 0.5 * (-torch.log(q[y]) - min(torch.log(1 - q[j]) for j in range(len(q)) if j != y))


def losses_by_hand(logits: Tensor, ova: Tensor | None, labels: Tensor) -> Tensor:
    """Sum of CE (+ half of Eq. 7) over the images, one by one."""
    total = torch.zeros((), dtype=logits.dtype)
    for i, y in enumerate(labels.tolist()):
        total = total - torch.log(torch.exp(logits[i, y]) / torch.exp(logits[i]).sum())
        if ova is not None:
            total = total + ova_by_hand(ova[i], y)
    return total


def loss_by_hand(network: Classifier, task: Episode) -> Tensor:
    """CE + L_ova of one task, a sum over images divided by B: no code of ours but the forward pass."""
    outputs = network(task.images)
    return losses_by_hand(outputs.logits, outputs.ova, task.labels) / task.batch


def gradient_by_hand(network: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    loss.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in network.named_parameters()}


@torch.no_grad()
def move_by_hand(network: nn.Module, gradient: dict[str, Tensor], rate: float) -> None:
    for name, parameter in network.named_parameters():
        if name in gradient:
            parameter -= rate * gradient[name]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert set(found) == set(expected)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-8, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def flat(update: Update) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in update.gradients.values()])


def full_pool(domains: int, classes: int, each: int = 5) -> Pool:
    """Every cell filled: image i is of domain (i // each) // classes and class (i // each) % classes."""
    domain, label = (a.ravel() for a in np.mgrid[0:domains, 0:classes])
    return Pool(np.repeat(domain, each), np.repeat(label, each), domains, classes)


def real_survey(
    folder: Path, classifier: Classifier, domains: int = 3, classes: int = 4, each: int = 6,
    gray: Callable[[int, int], int] = lambda domain, label: 40 * domain + 20 * label,
    gaps: Sequence[tuple[int, int]] = (), unknown: Sequence[str] | None = None,
) -> SourceSurvey:  # fmt: skip
    """A survey of real 8 x 8 images in a folder, one gray for each domain and class; `gaps` are empty cells."""
    random = np.random.default_rng(0)
    for domain in range(domains + 1):  # one more is the target
        for label in range(classes):
            place = folder / f"d{domain}" / f"c{label}"
            for number in range(0 if (domain, label) in gaps else each):
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.clip(gray(domain, label) + random.integers(0, 9, (8, 8, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
    index = scan(folder)
    protocol = make_protocol(index, [f"d{domains}"], unknown=unknown)
    split = protocol.apply(index)
    store = Store.open(index, np.concatenate([split.train, split.val]))
    pool = Pool(index.domain[split.train].astype(np.int64), split.labels[split.train], domains, len(protocol.known))
    return SourceSurvey(classifier, store, index, split, pool, torch.device("cpu"))
