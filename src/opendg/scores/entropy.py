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

    log p_k = z_k - z_top - log(1 + r), r the odds of the other classes against the top one: near p_top = 1 a plain
    log-softmax would round to 0 and sure images would tie.
    """

    name = "entropy"
    title = "Negative entropy"
    paper = "Chan et al., ICCV 2021, https://arxiv.org/abs/2012.06575"
    idea = "negative entropy of the closed-set softmax"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        logits, top = doubles(predictions.logits), predictions.predicted
        below = logits - logits[np.arange(len(logits)), top][:, None]
        odds = np.exp(log_sum_exp(without(below, top)))  # of all other classes together against the top one
        log_p = below - np.log1p(odds)[:, None]
        return np.asarray((np.exp(log_p) * log_p).sum(axis=1))
