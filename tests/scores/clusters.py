"""Predictions of a made-up linear classifier: clusters of known classes, and one of unknown images elsewhere."""

from __future__ import annotations

import numpy as np

from opendg.predictions import UNKNOWN, Predictions
from opendg.scores import Head

CLASSES, WIDTH = 4, 24


def make_head() -> Head:
    """Class k looks at feature k."""
    weight = np.zeros((CLASSES, WIDTH), np.float32)
    weight[np.arange(CLASSES), np.arange(CLASSES)] = 2.0
    return Head(weight + 0.05, np.linspace(-0.2, 0.2, CLASSES).astype(np.float32))


def make_predictions(n: int, seed: int = 0, unknown: bool = False) -> Predictions:
    """Known: feature k is large, the others small. Unknown: features that no class looks at are large."""
    random = np.random.default_rng(seed)
    label = random.permutation(np.arange(n) % CLASSES)
    features = random.normal(0, 0.3, (n, WIDTH)) * np.linspace(1, 0.2, WIDTH)
    features[np.arange(n), label] += 4.0
    if unknown:
        features = random.normal(0, 0.3, (n, WIDTH))
        features[:, CLASSES + 1] += 4.0
    return outputs(features.astype(np.float32), np.full(n, UNKNOWN) if unknown else label)


def outputs(features: np.ndarray, label: np.ndarray) -> Predictions:
    head = make_head()
    logits = features @ head.weight.T + head.bias
    return Predictions(
        keys=np.array([f"image-{i}" for i in range(len(label))]),
        domain=np.full(len(label), "here"),
        label=label.astype(np.int64),
        features=features,
        logits=logits,
        ova=np.stack([1 - logits, logits - 1], axis=1).astype(np.float32),
    )


def from_logits(logits: object, ova: object = None) -> Predictions:
    """Predictions of given logits; the labels are the predicted classes."""
    values = np.asarray(logits, np.float32)
    n = len(values)
    return Predictions(
        keys=np.array([str(i) for i in range(n)]),
        domain=np.full(n, "here"),
        label=values.argmax(axis=1),
        features=np.zeros((n, 2), np.float32),
        logits=values,
        ova=None if ova is None else np.asarray(ova, np.float32),
    )
