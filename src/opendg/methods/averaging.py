"""Means of weights over iterations, and the BatchNorm statistics that fit them: what SWAD and SelfReg share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from opendg.episodes import Task
from opendg.methods.base import Survey
from opendg.models.classifier import Classifier, Weights


def blank(classifier: Classifier, part: str) -> Weights:
    """Zeros in the shape of the weights, under the name `part`, for the state of a method."""
    return {f"{part}.{name}": torch.zeros_like(weight) for name, weight in classifier.weights().items()}


def named(own: Weights, part: str) -> Weights:
    """What `blank` made under the name `part`, by the names of the weights."""
    return {name.removeprefix(f"{part}."): tensor for name, tensor in own.items() if name.startswith(f"{part}.")}


@torch.no_grad()
def fold(mean: Weights, weights: Weights, share: Tensor) -> None:
    """mean <- (1 - share) mean + share weights, in place. `share` is a scalar on the device."""
    kept, new = list(mean.values()), [weights[name] for name in mean]
    share = share.to(new[0].dtype)
    torch._foreach_mul_(kept, 1 - share)
    torch._foreach_add_(kept, torch._foreach_mul(new, share))


@torch.no_grad()
def adopt(classifier: Classifier, mean: Weights) -> None:
    """Put a mean in the place of the weights."""
    for name, weight in classifier.weights().items():
        weight.copy_(mean[name])


def renew_batchnorm(classifier: Classifier, survey: Survey, batches: int = 16, size: int = 96) -> None:
    """New running statistics of BatchNorm: the mean over batches of training images, not augmented, drawn as for ERM.

    Domains and classes are even in each batch, as in those that the weights were trained with: in the order and numbers
    of the files a batch would be of one kind, and the largest domain (with target photo half of PACS is sketch) would
    decide. The few passes are not compiled: their batches have other sizes, and a mean of statistics breaks a compiled
    network at every BatchNorm.
    """
    if not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in classifier.modules()):
        return
    pool, random = survey.pool, np.random.default_rng(0)
    everything = Task(tuple(range(pool.domains)), tuple(range(pool.classes)), size)
    fused, classifier.fused = classifier.fused, None
    update_bn((survey.draw(everything, random)[0] for _ in range(batches)), classifier)
    classifier.fused = fused
