"""pytorch-ood computes the same scores, with the opposite sign, where its choices are ours."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from opendg.predictions import Predictions
from opendg.scores import make_score
from tests.scores.clusters import CLASSES, make_head, make_predictions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    detector = pytest.importorskip("pytorch_ood.detector", reason="pytorch-ood is not installed")

SOURCE = make_predictions(400, seed=1)
IMAGES = make_predictions(40, seed=2)
UNKNOWN = make_predictions(40, seed=3, unknown=True)
BOTH = [IMAGES, UNKNOWN]
LABELS = torch.from_numpy(SOURCE.label)


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.float64))


@pytest.mark.parametrize(
    ("name", "theirs"), [("energy", "EnergyBased"), ("max-logit", "MaxLogit"), ("entropy", "Entropy")]
)
@pytest.mark.parametrize("images", BOTH)
def test_scores_of_logits(name: str, theirs: str, images: Predictions) -> None:
    expected = -getattr(detector, theirs)(None).predict_logits(tensor(images.logits)).numpy()
    np.testing.assert_allclose(make_score(name)(images), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("images", BOTH)
def test_knn(images: Predictions) -> None:
    theirs = detector.KNN(None, k=50).fit_features(torch.from_numpy(SOURCE.features), LABELS)
    expected = -theirs.predict_features(torch.from_numpy(images.features)).numpy()
    np.testing.assert_allclose(make_score("knn").fit(SOURCE)(images), expected, rtol=1e-5)


@pytest.mark.parametrize("images", BOTH)
def test_vim(images: Predictions) -> None:
    head = make_head()
    theirs = detector.ViM(None, d=12, w=torch.from_numpy(head.weight), b=torch.from_numpy(head.bias))
    theirs.fit_features(torch.from_numpy(SOURCE.features), LABELS)
    expected = -theirs.predict_features(torch.from_numpy(images.features)).numpy()
    np.testing.assert_allclose(
        make_score("vim").fit(SOURCE, head)(images),
        expected,
        rtol=1e-3,
        atol=1e-3,
    )


def test_openmax() -> None:
    """It takes the distance to a class that no image of the batch is predicted as for 0: the batch needs them all."""
    assert set(IMAGES.predicted) == set(range(CLASSES))
    assert SOURCE.correct.all()  # its class means are over all images, ours over the rightly classified
    theirs = detector.OpenMax(None, tailsize=20, alpha=10).fit_logits(tensor(SOURCE.logits), LABELS)
    outputs = theirs._openmax.predict(IMAGES.logits.astype(np.float64))  # all of P; its score is the unknown one, P_0
    np.testing.assert_allclose(outputs[:, 0], theirs.predict_logits(tensor(IMAGES.logits)).numpy())
    score = make_score("openmax").fit(SOURCE)
    np.testing.assert_allclose(score.value(score(IMAGES)), outputs[:, 1:].max(axis=1), rtol=1e-5)
