"""bcls: the one-vs-all classifier of the predicted class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles, sigmoid

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class Bcls(Score):
    """q_c with c = argmax z and q_k = softmax over the two channels of class k, positive channel (MEDIC Eq. 10).

    Ranked by the log-odds b[1, c] - b[0, c]; `value` is q_c. The one-vs-all head is trained so that q_c = 0.5 parts a
    class from the rest, which is OVANet's rule (Saito & Saenko, ICCV 2021).
    """

    name = "bcls"
    title = "One-vs-all probability of the predicted class"
    paper = "Wang et al. (MEDIC), ICCV 2023, https://arxiv.org/abs/2308.09391"
    idea = "one-vs-all probability of the class that the closed-set head picks"
    needs = ("logits", "ova")
    own_threshold = 0.5

    def _score(self, predictions: Predictions) -> Floats:
        assert predictions.ova is not None  # `needs` says so
        ova = doubles(predictions.ova)[np.arange(len(predictions)), :, predictions.predicted]
        return np.asarray(ova[:, 1] - ova[:, 0])

    def value(self, scores: Floats) -> Floats:
        return sigmoid(scores)
