from __future__ import annotations

import numpy as np
import pytest

from opendg.evaluation.plane import DIMENSIONS, components, plane


@pytest.mark.parametrize("value", [1.0, 0.1])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_features_that_are_all_alike_are_in_one_place(value: float, kind: type) -> None:
    """Scikit-learn ends the process on them. (The rounded mean of many 0.1 is another number than 0.1.)"""
    assert not plane(np.full((2000, 8), value, kind)).any()


@pytest.mark.parametrize(("count", "width", "kind"), [(8, 3, np.float32), (60, 8, np.float32), (80, 64, np.float16)])
def test_groups_that_lie_apart_stay_apart(count: int, width: int, kind: type) -> None:
    """Few images and many, narrow features, and more dimensions than it starts from."""
    group = np.arange(count) % 2
    features = np.random.default_rng(0).normal(size=(count, width)) + 20 * group[:, None]
    spread = plane(features.astype(kind))
    assert spread.shape == (count, 2)
    apart = np.linalg.norm(spread[:, None] - spread[None], axis=-1)
    np.fill_diagonal(apart, np.inf)
    assert np.array_equal(group[apart.argmin(axis=1)], group)


def test_it_is_the_same_every_time() -> None:
    features = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    assert np.array_equal(plane(features), plane(features))


def test_components_keep_distances_and_are_their_own_components() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(120, DIMENSIONS)) @ rng.normal(size=(DIMENSIONS, 300))  # as many directions as are kept
    few = components(features)
    assert few.shape == (120, DIMENSIONS)
    assert np.allclose(np.linalg.norm(few - few[0], axis=1), np.linalg.norm(features - features[0], axis=1))
    assert components(few) is few


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_features_without_components_stay(value: float) -> None:
    features = np.full((80, 64), value, np.float32)
    assert components(features) is features
