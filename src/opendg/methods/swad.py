"""SWAD: ERM, with the mean of all weights from where the validation loss stops falling to where it has risen again.

Cha et al., SWAD: Domain Generalization by Seeking Flat Minima, NeurIPS 2021, https://arxiv.org/abs/2102.08604.
With E_t the loss on the source validation images after every `interval` iterations (Algorithm 1 of the paper):

    start  t_s = the first t with E_t = min(E_t, ..., E_{t + N_s - 1}),    l = r mean(E_t, ..., E_{t + N_s - 1})
    end    t_e = the last t before N_e losses in a row lie above l
    theta_SWAD = the mean of the weights after every iteration from t_s to t_e

E is the cross-entropy on images that are not augmented, the mean over source domains of the mean over images. The mean
of the iterations between two evaluations (a segment) stands under the loss at its end. Where no start is found, the
last segment is taken, as in the authors' code.

Needs nothing of the backbone; BatchNorm gets new statistics for the averaged weights, from training images that are, as
those of the target, not augmented.
Cost: that of ERM, an evaluation of the source validation images each `interval` iterations, and N_s + 3 more copies of
the weights, which checkpoints hold too.
What to expect: the mean lags behind the last weights. At the low rate of the common recipe the loss on source images
stops falling before the training is half over and does not rise again, so that the mean takes in all that follows; it
has the validation loss of the last weights and twice their training loss (stage 4 of a ResNet-18, two domains of PACS).
The authors train at a constant, higher rate, whose iterates scatter about a minimum: there the mean is the better one.
Deviations: the new statistics of BatchNorm come from 16 batches of 96 images (theirs: from 500 batches of training);
segments are averaged as the paper says; the authors' code loses the first segment in its first update, and
reaches back over up to N_e - N_s segments before t_s. They freeze BatchNorm (`freeze_batchnorm=true`, part of `--recipe
authors`). `--select source-accuracy` is refused: it would keep an iterate in the place of the mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from opendg.episodes import Episode, Pool
from opendg.methods.averaging import adopt, blank, fold, named, renew_batchnorm
from opendg.methods.base import Authors, State, Survey, Update
from opendg.methods.checks import at_least
from opendg.methods.erm import DOMAINBED, ERM
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights
from opendg.predictions import Predictions


class SWAD(ERM):
    name = "swad"
    title = "SWAD"
    paper = (
        "Cha et al., SWAD: Domain Generalization by Seeking Flat Minima, NeurIPS 2021, https://arxiv.org/abs/2102.08604"
    )
    idea = "Average the weights of every iteration inside the valley of the validation loss."
    kind = "weight averaging"
    averages = True
    cost = "1x, and an evaluation each 100 iterations"
    authors: ClassVar[Authors | None] = Authors(recipe=DOMAINBED, settings={"freeze_batchnorm": True})

    @dataclass(frozen=True)
    class Config(ERM.Config):
        interval: int = 100  # iterations between evaluations (VLCS 50, DomainNet 500)
        converge: int = 3  # N_s
        patience: int = 6  # N_e
        tolerance: float = 1.3  # r (VLCS 1.2)
        freeze_batchnorm: bool = False

        def __post_init__(self) -> None:
            at_least(self, interval=1, converge=1, patience=1, tolerance=1)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.interval = self.config.interval

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return Classifier(backbone, classes, self.head, self.config.freeze_batchnorm)

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        weights = classifier.weights()
        device, past = next(iter(weights.values())).device, self.config.converge
        recent = {f"recent.{name}": weight.new_zeros(past, *weight.shape) for name, weight in weights.items()}
        numbers = {
            "losses": torch.full((past,), torch.inf, dtype=torch.float64, device=device),  # of the recent segments
            "threshold": torch.zeros((), dtype=torch.float64, device=device),  # l
            "in_valley": torch.zeros((), dtype=torch.int64, device=device),  # segments; 0: no start yet
            "in_tail": torch.zeros((), dtype=torch.int64, device=device),  # segments since the last loss under l
            "ended": torch.zeros((), dtype=torch.bool, device=device),
        }
        return blank(classifier, "segment") | blank(classifier, "valley") | blank(classifier, "tail") | recent | numbers

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        yield from super().step(classifier, episode, state)
        share = 1 / (state.step % self.config.interval + 1).double()
        fold(named(state.own, "segment"), classifier.weights(), share)

    @torch.no_grad()
    def every(self, survey: Survey, classifier: Classifier, state: State) -> None:
        own = state.own
        if not int(state.step) or bool(own["ended"]):
            return
        loss, segment = validation_loss(survey.val()), named(own, "segment")
        if int(own["in_valley"]):
            self._extend(own, segment, loss)
        else:
            self._search(own, segment, loss)
        own["ended"].copy_((own["in_valley"] > 0) & (own["in_tail"] >= self.config.patience))

    def _search(self, own: Weights, segment: Weights, loss: float) -> None:
        """Is the oldest of the last N_s losses the least of them? Then the valley starts there."""
        recent, losses = named(own, "recent"), own["losses"]
        for name, tensor in segment.items():
            recent[name].copy_(torch.cat([recent[name][1:], tensor[None]]))
        losses.copy_(torch.cat([losses[1:], losses.new_tensor([loss])]))
        if losses[0].isfinite() and losses[0] <= losses.min():
            own["threshold"].copy_(self.config.tolerance * losses.mean())
            for number, past in enumerate(losses.tolist()):
                self._extend(own, {name: tensor[number] for name, tensor in recent.items()}, past)

    def _extend(self, own: Weights, segment: Weights, loss: float) -> None:
        """Segments wait in the tail until a loss under l lets them into the valley; N_e of them end it."""
        valley, tail = named(own, "valley"), named(own, "tail")
        own["in_tail"] += 1
        fold(tail, segment, 1 / own["in_tail"].double())
        if loss <= float(own["threshold"]):
            own["in_valley"] += own["in_tail"]
            fold(valley, tail, own["in_tail"] / own["in_valley"].double())
            own["in_tail"].zero_()

    def finish(self, survey: Survey, classifier: Classifier, state: State) -> None:
        own = state.own
        if int(own["in_valley"]):
            mean = named(own, "valley")
        elif own["losses"][-1].isfinite():
            mean = {name: tensor[-1] for name, tensor in named(own, "recent").items()}
        else:
            mean = named(own, "segment")
        adopt(classifier, mean)
        if not self.config.freeze_batchnorm:
            renew_batchnorm(classifier, survey)


def validation_loss(predictions: Predictions) -> float:
    """The mean over domains of the mean cross-entropy, in float64."""
    logits = predictions.logits.astype(np.float64)
    top = logits.max(axis=1)
    losses = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - logits[np.arange(len(logits)), predictions.label]
    return float(np.mean([losses[predictions.domain == domain].mean() for domain in np.unique(predictions.domain)]))
