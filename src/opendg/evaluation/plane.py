"""t-SNE (van der Maaten and Hinton, JMLR 2008): places in the plane that keep neighbours of feature space together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 50  # of the principal components that it starts from
PERPLEXITY = 30.0  # neighbours that count, where there are as many


def components(features: NDArray[Any]) -> NDArray[Any]:
    """(N, D) -> (N, DIMENSIONS), the principal components. Features that have none or need none stay as they are."""
    if min(features.shape) <= DIMENSIONS or alike(features) or not np.isfinite(features).all():
        return features
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        return np.asarray(PCA(DIMENSIONS, svd_solver="full").fit_transform(features.astype(np.float64)))


def plane(features: NDArray[Any]) -> NDArray[np.float64]:
    """(N, D) -> (N, 2). Features that are all alike, as of a run that has collapsed, are all in one place."""
    if alike(features):  # scikit-learn divides by their spread, and dies of it
        return np.zeros((len(features), 2))
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    # So few points gain nothing from threads, which on a busy machine only wait for one another.
    with threadpool_limits(1):
        points = components(features).astype(np.float64)
        near = min(PERPLEXITY, (len(points) - 1) / 3)
        return np.asarray(TSNE(init="pca", perplexity=near, random_state=0).fit_transform(points), np.float64)


def alike(features: NDArray[Any]) -> bool:
    return bool((features == features[:1]).all())
