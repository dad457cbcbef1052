"""evidential: one minus the vacuity of a Dirichlet over the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from opendg.errors import OpenDGError
from opendg.scores.base import Floats, Score
from opendg.scores.numeric import doubles, log_sum_exp, sigmoid

if TYPE_CHECKING:
    from opendg.predictions import Predictions


@dataclass
class Evidential(Score):
    """1 - u, u = K / sum_k alpha_k, alpha_k = e_k + 1, for a network trained with an evidential loss.

    The evidence e_k is exp(z_k), softplus(z_k) or relu(z_k): take the one of the loss. Ranked by the log-odds
    log((1 - u) / u) = log(sum_k e_k / K), which do not saturate; `value` is 1 - u. With exp the order is that of
    `energy`, and the clamp that losses put on z is left out, since it would only make ties. With relu images without
    any evidence tie. Sensoy et al., NeurIPS 2018.
    """

    evidence: Literal["exp", "softplus", "relu"] = "exp"

    name = "evidential"
    title = "Evidential certainty"
    paper = "Sensoy et al., NeurIPS 2018, https://arxiv.org/abs/1806.01768"
    idea = "one minus the vacuity of the Dirichlet that the logits stand for"
    needs = ("logits",)

    def _score(self, predictions: Predictions) -> Floats:
        logits = doubles(predictions.logits)
        return np.asarray(log_sum_exp(self._log_evidence(logits)) - np.log(logits.shape[1]))

    def _log_evidence(self, logits: Floats) -> Floats:
        if self.evidence == "exp":
            return logits
        if self.evidence == "softplus":  # far below 0 softplus(z) is exp(z), and its own log would lose digits
            return np.where(logits < -30, logits, np.log(np.logaddexp(0, np.maximum(logits, -30))))
        if self.evidence == "relu":  # no evidence: as little as float64 can hold, so that its log stays finite
            return np.log(np.maximum(logits, np.finfo(np.float64).tiny))
        raise OpenDGError(f"There is no evidence {self.evidence!r}: expected exp, softplus or relu.")

    def value(self, scores: Floats) -> Floats:
        return sigmoid(scores)
