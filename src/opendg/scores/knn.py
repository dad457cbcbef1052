"""knn: distance to the k-th nearest source feature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opendg.predictions import Predictions
from opendg.scores.base import Arrays, Floats, Head, Score
from opendg.scores.numeric import doubles


@dataclass
class KNN(Score):
    """-||f - f_(k)||, the distance to the k-th nearest of the source features, all of unit length (Sun et al., ICML
    2022).

    k = 50, the paper's choice for CIFAR-10; fewer when there are fewer source images. All source domains share one bank; of
    more than `most` images every so-manieth is kept.
    """

    k: int = 50
    most: int = 50_000

    name = "knn"
    title = "k nearest neighbours"
    paper = "Sun et al., ICML 2022, https://arxiv.org/abs/2204.06507"
    idea = "closeness to the k-th nearest source feature"
    needs = ("features",)
    fitted = ("bank", "k")

    def _fit(self, source: Predictions, head: Head | None) -> Arrays:
        rows = np.linspace(0, len(source) - 1, min(len(source), self.most)).astype(np.int64)
        return {"bank": _unit(source.features[rows]).astype(np.float32), "k": np.asarray(min(self.k, len(rows)))}

    def _score(self, predictions: Predictions) -> Floats:
        from sklearn.neighbors import NearestNeighbors

        state = self._fitted()
        neighbours = NearestNeighbors(n_neighbors=int(state["k"]), algorithm="brute").fit(doubles(state["bank"]))
        distances, _ = neighbours.kneighbors(_unit(predictions.features))
        return -np.asarray(distances[:, -1])


def _unit(features: NDArray[np.float32]) -> Floats:
    wide = doubles(features)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))
