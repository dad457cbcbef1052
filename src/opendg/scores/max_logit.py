"""max-logit: the largest logit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class MaxLogit(Score):
    """max_k z_k (Hendrycks et al., ICML 2022). Where the logits are ARPL's distances to reciprocal points, this is
    ARPL's own score (Chen et al., TPAMI 2022)."""

    name = "max-logit"
    title = "Maximum logit"
    paper = "Hendrycks et al., ICML 2022, https://arxiv.org/abs/1911.11132"
    idea = "largest closed-set logit; ARPL's own score on its distances"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        return np.asarray(doubles(predictions.logits).max(axis=1))
