"""Means of weights over iterations, and the BatchNorm statistics that fit them: what SWAD and SelfReg share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from opendg.methods.base import Survey
from opendg.models.classifier import Classifier, Weights

ENOUGH = 1024  # images for new statistics


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


def renew_batchnorm(classifier: Classifier, survey: Survey, batch: int = 128) -> None:
    """New running statistics of BatchNorm, from a thousand or two of the training images in mixed batches.

    The survey gives the images domain by domain and class by class; a batch of one kind would tell BatchNorm nothing of
    the differences between kinds, so they are thinned out evenly, shuffled, and only then shown. The few passes are not
    compiled: their batches have other sizes, and a mean of statistics breaks a compiled network at every BatchNorm.
    """
    if not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in classifier.modules()):
        return
    chosen = spread(survey)
    order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0)).to(chosen.device)
    fused, classifier.fused = classifier.fused, None
    update_bn(chosen[order].split(batch), classifier)
    classifier.fused = fused


def spread(survey: Survey) -> Tensor:
    """Between ENOUGH and twice as many training images, evenly spread over their order; all where there are fewer."""
    kept: list[Tensor] = []
    stride = 1
    for images in survey.images():
        kept.append(images[::stride].clone())
        if sum(map(len, kept)) > 2 * ENOUGH:
            kept, stride = [part[::2].clone() for part in kept], 2 * stride
    return torch.cat(kept)
