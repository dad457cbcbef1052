"""IRM: features on which one and the same classifier is the best in every source domain.

Arjovsky, Bottou, Gulrajani, Lopez-Paz, Invariant Risk Minimization, 2019, https://arxiv.org/abs/1907.02893.
Their practical form, IRMv1:

    min_theta  mean_e R_e + lambda mean_e P_e,    P_e = g(images of e)^2,
    g(images) = d/dw mean CE(w z, y) at w = 1 = mean ( sum_k p_k z_k - z_y ),    p = softmax(z)

R_e is the mean cross-entropy of domain e, P_e the squared slope of R_e along a scale w of its logits, zero where that
scale is already the best. lambda and its course are DomainBed's: for the first tenth of the run (500 of 5001 steps) it
is 1, or less where less is asked for, then 100.

Needs logits only. Cost: that of ERM; the slope is written out, so nothing is differentiated twice.
Deviations: the penalty's gradient at the logits z is at most half as long as that of the cross-entropy (`restrain`):

    CE + c lambda P,    c = min(1, |d CE / dz| / (2 |d lambda P / dz|)),    c a number, no path for the gradient

so that no step goes up in cross-entropy at the logits. Bare, the objective has a trap at z = 0: there dP / dz =
2 g dCE / dz, which undoes the cross-entropy at g = -1 / (2 lambda), before any class is learned; and g of the 16 images
of a domain is mostly noise, which throws a trained network there too. On the digit set (ConvNet, target svhn, seed 0)
bare SGD met infinity within 25 iterations at lambda = 100; the whole loss cut to the length of the cross-entropy's
gradient ended at chance, also when lambda rose later, and with P_e from halves the cross-entropy went from 0.4 to 1.1
an image; DomainBed's own form (Adam, 1e-3, halves, new moments) took it from 0.5 to 1.2. With c, source validation
after 1,000 iterations is 91.3 % (ERM 92.2 %; mean of four targets) and the mean g^2 of its domains 0.011 (ERM 0.019).
DomainBed's P_e is g(even images) g(odd images) (`halves=true`, part of `--recipe authors`, as is no restraint). The
optimiser's moments live on when lambda jumps (DomainBed makes a new Adam then). With the one-vs-all head the penalty
stays on the closed-set logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from opendg.episodes import Episode
from opendg.errors import OpenDGError
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
        restrain: bool = True  # the penalty's gradient at the logits is at most half as long as the cross-entropy's

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        weight = torch.where(state.fraction < self.config.anneal, min(1.0, self.config.weight), self.config.weight)
        losses["irm"] = weight * scaled(invariance_penalty(outputs.logits, episode, self.config.halves), episode)
        share = restraint(losses["ce"], losses["irm"], outputs.logits) if self.config.restrain else 1.0
        yield Update(losses, gradients(total(losses | {"irm": share * losses["irm"]}), weights))


def restraint(ce: Tensor, penalty: Tensor, logits: Tensor) -> Tensor:
    """c = min(1, |d ce / dz| / (2 |d penalty / dz|)), a number and no path for the gradient."""
    pull, push = (vector_norm(torch.autograd.grad(loss, logits, retain_graph=True)[0]) for loss in (ce, penalty))
    ratio: Tensor = 0.5 * pull / push.clamp_min(torch.finfo(push.dtype).tiny)
    return ratio.clamp_max(1)


def invariance_penalty(logits: Tensor, episode: Episode, halves: bool = False) -> Tensor:
    """mean_e P_e; a task of the episode holds the images of one domain."""
    slope = (logits.softmax(1) * logits).sum(1) - logits.gather(1, episode.labels[:, None]).squeeze(1)
    parts = slope.split(episode.sizes)
    if not halves:
        return torch.stack([part.mean() for part in parts]).square().mean()
    if min(episode.sizes) < 2:
        raise OpenDGError(
            "IRM with halves=true needs two images of each domain: give a larger --batch, or halves=false."
        )
    return torch.stack([part[::2].mean() * part[1::2].mean() for part in parts]).mean()
