"""knn: distance to the k-th nearest source feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opendg.scores.base import Arrays, Floats, Head, Score
from opendg.scores.numeric import doubles

if TYPE_CHECKING:
    from opendg.predictions import Predictions


@dataclass
class KNN(Score):
    """-||f - f_(k)||: the distance to the k-th nearest source feature, all of unit length (Sun et al., ICML 2022).

    k = 50, the paper's choice for CIFAR-10, or the size of the smallest class if that is less: beyond it another class
    would decide. All source domains share one bank; of more than `most` images a part at even distances is kept.
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
        smallest = np.unique(source.label[rows], return_counts=True)[1].min()
        return {"bank": _unit(source.features[rows]).astype(np.float32), "k": np.asarray(min(self.k, smallest))}

    def _score(self, predictions: Predictions) -> Floats:
        from sklearn.neighbors import NearestNeighbors

        state = self._fitted()
        neighbours = NearestNeighbors(n_neighbors=int(state["k"]), algorithm="brute").fit(doubles(state["bank"]))
        distances, _ = neighbours.kneighbors(_unit(predictions.features))
        return -np.asarray(distances[:, -1])


def _unit(features: NDArray[np.float32]) -> Floats:
    wide = doubles(features)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12))
