"""entropy: how concentrated the softmax is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles, log_sum_exp, without

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class Entropy(Score):
    """sum_k p_k log p_k with p = softmax(z): the negative entropy, 0 for a sure image, -log K for an even softmax.

    log p of the top class is written -log(1 + r), r the odds of the other classes: near p = 1 a plain log-softmax
    rounds to 0 and sure images would tie.
    """

    name = "entropy"
    title = "Negative entropy"
    paper = "Chan et al., ICCV 2021, https://arxiv.org/abs/2012.06575"
    idea = "negative entropy of the closed-set softmax"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        logits, rows, top = doubles(predictions.logits), np.arange(len(predictions)), predictions.predicted
        below = logits - logits[rows, top][:, None]
        log_p = below - log_sum_exp(below)[:, None]
        log_p[rows, top] = -np.log1p(np.exp(log_sum_exp(without(below, top))))
        return np.asarray((np.exp(log_p) * log_p).sum(axis=1))
