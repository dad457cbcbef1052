"""IRM: features on which one and the same classifier is the best in every source domain.

Arjovsky, Bottou, Gulrajani, Lopez-Paz, Invariant Risk Minimization, 2019, https://arxiv.org/abs/1907.02893.
Their practical form, IRMv1:

    min_theta  mean_e R_e + lambda mean_e P_e,    P_e = g(images of e)^2,
    g(images) = d/dw mean CE(w z, y) at w = 1 = mean ( sum_k p_k z_k - z_y ),    p = softmax(z)

R_e is the mean cross-entropy of domain e, P_e the squared slope of R_e along a scale w of its logits, zero where that
scale is already the best. lambda and its course are DomainBed's: for the first tenth of the run (500 of 5001 steps) it
is 1, or less where less is asked for, then 100.

Needs logits only. Cost: that of ERM; the slope is written out, so nothing is differentiated twice.
Deviations: the whole loss is multiplied by min(1, |d CE / dz| / |d (CE + lambda P) / dz|), z the logits of the batch
(`restrain`). Authors and DomainBed train with Adam, which does not feel the length of a gradient; SGD does, and at
lambda = 100 it soon meets infinity, while with the loss divided by lambda, as in the authors' example, it would stand
still. DomainBed's P_e is g(even images) g(odd images) (`halves=true`, part of `--recipe authors`): free of the bias of
a square, but with the 8 images that a half has here mostly noise. The optimiser's moments live on when lambda jumps
(DomainBed makes a new Adam then). With the one-vs-all head the penalty stays on the closed-set logits.
Before the network has learned anything the penalty is least where all logits are 0: a run so short that its first tenth
teaches nothing ends there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from opendg.episodes import Episode
from opendg.methods.base import Authors, Method, State, Update, gradients
from opendg.methods.erm import DOMAINBED, ERM, classification_losses, scaled, total
from opendg.models.classifier import Classifier


class IRM(Method):
    name = "irm"
    title = "IRM"
    paper = "Arjovsky et al., Invariant Risk Minimization, 2019, https://arxiv.org/abs/1907.02893"
    idea = "Penalise the slope of each domain's loss along the scale of the logits."
    kind = "invariance"
    min_sources = 2
    authors = Authors(recipe=DOMAINBED, settings={"halves": True, "restrain": False})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 100.0  # lambda
        anneal: float = 0.1  # this share of the run goes by with lambda 1
        halves: bool = False  # P_e as the product of the slopes of two halves
        restrain: bool = True  # the gradient of the logits gets no longer than that of the cross-entropy

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        weight = torch.where(state.fraction < self.config.anneal, min(1.0, self.config.weight), self.config.weight)
        losses["irm"] = weight * scaled(invariance_penalty(outputs.logits, episode, self.config.halves), episode)
        factor = restraint(losses["ce"], losses["irm"], outputs.logits) if self.config.restrain else 1.0
        yield Update(losses, gradients(factor * total(losses), weights))


def restraint(ce: Tensor, penalty: Tensor, logits: Tensor) -> Tensor:
    """min(1, |d ce / dz| / |d (ce + penalty) / dz|), exactly 1 where the penalty is 0."""
    alone, added = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (ce, penalty))
    ratio: Tensor = vector_norm(alone) / vector_norm(alone + added)
    return ratio.clamp_max(1)


def invariance_penalty(logits: Tensor, episode: Episode, halves: bool = False) -> Tensor:
    """mean_e P_e; a task of the episode holds the images of one domain."""
    slope = (logits.softmax(1) * logits).sum(1) - logits.gather(1, episode.labels[:, None]).squeeze(1)
    parts = slope.split(episode.sizes)
    if halves:
        return torch.stack([part[::2].mean() * part[1::2].mean() for part in parts]).mean()
    return torch.stack([part.mean() for part in parts]).square().mean()
