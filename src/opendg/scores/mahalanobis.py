"""mahalanobis: distance to the nearest class centre in the metric of the source features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opendg.errors import OpenDGError
from opendg.scores.base import Arrays, Floats, Head, Score
from opendg.scores.numeric import doubles

if TYPE_CHECKING:
    from opendg.predictions import Predictions


class Mahalanobis(Score):
    """-min_k (f - mu_k)' P (f - mu_k): mu_k class means, P the inverse of the covariance that all classes share.

    Lee et al., NeurIPS 2018, on pooled features, without their input perturbation and their sum over layers. The
    covariance is shrunk as Ledoit and Wolf do: with thousands of features and thousands of images the plain one is
    close to singular. What is kept is W with W W' = P and the centres mu_k W, so that a score is a Euclidean distance.
    """

    name = "mahalanobis"
    title = "Mahalanobis distance"
    paper = "Lee et al., NeurIPS 2018, https://arxiv.org/abs/1807.03888"
    idea = "closeness to the nearest class mean under one shared covariance"
    needs = ("features",)
    fitted = ("whiten", "centres")

    def _fit(self, source: Predictions, head: Head | None) -> Arrays:
        from sklearn.covariance import ledoit_wolf

        features = doubles(source.features)
        classes, number = np.unique(source.label, return_inverse=True)
        means = np.stack([features[number == k].mean(axis=0) for k in range(len(classes))])
        covariance, _ = ledoit_wolf(features - means[number], assume_centered=True)
        spread, axes = np.linalg.eigh(covariance)
        if spread[-1] <= 0:
            raise OpenDGError(
                "All source features of a class are alike: 'mahalanobis' cannot be fitted to this classifier."
            )
        whiten = axes / np.sqrt(np.maximum(spread, spread[-1] * 1e-12))
        return {"whiten": whiten, "centres": means @ whiten}

    def _score(self, predictions: Predictions) -> Floats:
        from scipy.spatial.distance import cdist

        state = self._fitted()
        distances = cdist(doubles(predictions.features) @ state["whiten"], state["centres"], "sqeuclidean")
        return -np.asarray(distances.min(axis=1))
