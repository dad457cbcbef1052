"""ERM: pool the source domains and minimise the mean loss.

    min_theta  sum_i [ CE(z_i, y_i) + L_ova(b_i, y_i) ] / B

over the 6 B images of an iteration, shared evenly by the source domains. The sum is divided by B and not by the number
of images, so that the gradient has the scale of MEDIC's six tasks and both train with the same learning rate.

Methods that add a penalty to the mean loss of their paper bring it to the same scale with `scaled`. A learning rate of
plain SGD from a paper whose loss is a mean is divided by 6 to mean the same here, and its weight decay multiplied by 6;
Adam does not feel the scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.losses import cross_entropy, one_vs_all
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.models.classifier import Classifier, Outputs

# DomainBed's recipe: 32 images of each of three source domains, Adam, no schedule. Its augmentation is a bit milder.
DOMAINBED: dict[str, Any] = {
    "iterations": 5001, "batch": 16, "optimizer": "adam", "lr": 5e-5, "weight_decay": 0.0, "schedule": "constant",
}  # fmt: skip


def classification_losses(outputs: Outputs, episode: Episode, ova_scale: float = 0.5) -> dict[str, Tensor]:
    """CE and, where there is a one-vs-all head, L_ova, each summed over the images and divided by B."""
    losses = {"ce": cross_entropy(outputs.logits, episode.labels).sum() / episode.batch}
    if outputs.ova is not None:
        losses["ova"] = one_vs_all(outputs.ova, episode.labels, ova_scale).sum() / episode.batch
    return losses


def image_losses(outputs: Outputs, labels: Tensor, ova_scale: float = 0.5) -> Tensor:
    """CE + L_ova, where there is a one-vs-all head, of each image: for methods that weigh or sort them."""
    losses = cross_entropy(outputs.logits, labels)
    return losses if outputs.ova is None else losses + one_vs_all(outputs.ova, labels, ova_scale)


def scaled(penalty: Tensor, episode: Episode) -> Tensor:
    """A penalty that its paper adds to the mean loss over images, beside our sum / B: times n / B, n the images here.

    So its ratio to the cross-entropy, and with it the paper's weight, stays what it was.
    """
    return penalty * (len(episode.labels) / episode.batch)


def total(losses: dict[str, Tensor]) -> Tensor:
    return torch.stack(list(losses.values())).sum()


class ERM(Method):
    name = "erm"
    title = "ERM"
    paper = "Vapnik, Statistical Learning Theory, Wiley 1998; as a DG baseline: Gulrajani & Lopez-Paz, ICLR 2021, https://arxiv.org/abs/2007.01434"
    idea = "Pool the source domains and minimise the mean loss."
    authors: ClassVar[Authors | None] = Authors(recipe=DOMAINBED)

    @dataclass(frozen=True)
    class Config:
        ova: bool = False  # add the one-vs-all head and its loss
        ova_scale: float = 0.5  # 0.5 as coded by MEDIC's authors, 1 as in their Eq. 7

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        losses = classification_losses(classifier.at(weights, episode.images), episode, self.config.ova_scale)
        yield Update(losses, gradients(total(losses), weights))
