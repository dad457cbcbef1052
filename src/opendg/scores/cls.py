"""cls: the largest softmax probability."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles, log_sum_exp, sigmoid, without

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class Cls(Score):
    """max_k p_k with p = softmax(z) (MEDIC Eq. 9; Hendrycks & Gimpel, ICLR 2017).

    Ranked by the log-odds log(p / (1 - p)) = z_top - log sum_{k != top} exp(z_k): the same order, but where p itself
    rounds to 1 and ties, the log-odds keep images apart. `value` is p.
    """

    name = "cls"
    title = "Maximum softmax probability"
    paper = "Hendrycks and Gimpel, ICLR 2017, https://arxiv.org/abs/1610.02136"
    idea = "largest probability of the closed-set head"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        logits, top = doubles(predictions.logits), predictions.predicted
        return logits[np.arange(len(logits)), top] - log_sum_exp(without(logits, top))

    def value(self, scores: Floats) -> Floats:
        return sigmoid(scores)
