"""energy: log-sum-exp of the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles, log_sum_exp

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class Energy(Score):
    """log sum_k exp(z_k): the negative energy at temperature 1 (Liu et al., NeurIPS 2020)."""

    name = "energy"
    title = "Energy"
    paper = "Liu et al., NeurIPS 2020, https://arxiv.org/abs/2010.03759"
    idea = "log-sum-exp of the closed-set logits"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        return log_sum_exp(doubles(predictions.logits))
