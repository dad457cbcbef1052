"""What scores compute alike, in float64 and in forms that stay exact near 0 and 1. SciPy is imported when needed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from opendg.scores.base import Floats


def doubles(array: NDArray[Any]) -> Floats:
    return array.astype(np.float64)


def log_sum_exp(values: Floats) -> Floats:
    """log sum_k exp(values_k) of each row; -inf entries count nothing."""
    from scipy.special import logsumexp

    return np.asarray(logsumexp(values, axis=1), dtype=np.float64)


def sigmoid(log_odds: Floats) -> Floats:
    """The probability whose log-odds these are."""
    from scipy.special import expit

    return np.asarray(expit(log_odds), dtype=np.float64)


def without(values: Floats, columns: NDArray[np.int64]) -> Floats:
    """The rows with one entry each set to -inf, so that sums of exponentials leave it out."""
    rest = values.copy()
    rest[np.arange(len(rest)), columns] = -np.inf
    return rest
