"""vim: energy less the part of the feature that source images do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.errors import OpenDGError
from opendg.scores.base import Arrays, Floats, Head, Score
from opendg.scores.numeric import doubles, log_sum_exp

if TYPE_CHECKING:
    from opendg.predictions import Predictions

ROUNDING = 1e-6  # of the length of features: a residual below it is what float32 leaves of none


class ViM(Score):
    """log sum_k exp(z_k) - a ||R'(f - o)||: a virtual logit set against the real ones (Wang et al., CVPR 2022).

    o = -pinv(W) c, for the head z = W f + c; R spans the eigenvectors of the source features' second moment about o
    beyond the D largest; a = mean of max_k z_k / mean of ||R'(f - o)|| over the source images, which puts both on one
    scale. D = 1000 for d >= 2048 features, 512 for d >= 768, else d / 2; never more than half the number of source
    images, beyond which they would have next to no residual.
    """

    name = "vim"
    title = "Virtual-logit matching"
    paper = "Wang et al., CVPR 2022, https://arxiv.org/abs/2203.10807"
    idea = "energy minus the scaled residual outside the source features' main subspace"
    needs = ("features", "logits", "head")
    fitted = ("origin", "residual", "scale")

    def _fit(self, source: Predictions, head: Head | None) -> Arrays:
        assert head is not None  # `needs` says so
        origin = -np.linalg.pinv(doubles(head.weight)) @ doubles(head.bias)
        centred = doubles(source.features) - origin
        _, axes = np.linalg.eigh(centred.T @ centred / len(centred))  # eigenvalues rise: the residual comes first
        main = principal(*centred.shape)
        residual = axes[:, : centred.shape[1] - main]
        norm = np.linalg.norm(centred @ residual, axis=1).mean()
        if norm <= ROUNDING * np.linalg.norm(centred, axis=1).mean():
            raise OpenDGError(
                f"The source features span no more than the {main} dimensions of their main subspace and leave no "
                "residual: 'vim' cannot be fitted to this classifier."
            )
        scale = doubles(source.logits).max(axis=1).mean() / norm
        return {"origin": origin, "residual": residual, "scale": np.asarray(scale)}

    def _score(self, predictions: Predictions) -> Floats:
        state = self._fitted()
        outside = (doubles(predictions.features) - state["origin"]) @ state["residual"]
        virtual = state["scale"] * np.linalg.norm(outside, axis=1)
        return np.asarray(log_sum_exp(doubles(predictions.logits)) - virtual)


def principal(images: int, width: int) -> int:
    """D, the dimensions of the main subspace."""
    usual = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    return min(usual, images // 2)
