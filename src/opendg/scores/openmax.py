"""openmax: logits revised by how far an image lies from its class, with an added "unknown" output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from opendg.errors import OpenDGError
from opendg.scores.base import Arrays, Floats, Head, Score
from opendg.scores.numeric import doubles, log_sum_exp, sigmoid, without

if TYPE_CHECKING:
    from opendg.predictions import Predictions

SHIFT = 10_000.0  # libMR moves the smallest distance of a tail here before it fits a Weibull


@dataclass
class OpenMax(Score):
    """max_{k >= 1} P_k, the largest probability of a known class beside an "unknown" one (Bendale & Boult, CVPR 2016).

    For each class: mu_k, the mean logits of its rightly classified source images, and a Weibull F_k fitted to the
    `tail` largest of their distances to mu_k. With r_k the rank of class k by logit (1 = top) and a = min(`top`, K):

        w_k = 1 - max(0, (a + 1 - r_k) / a) F_k(||z - mu_k||),    z'_k = z_k w_k,    z'_0 = sum_k z_k (1 - w_k),
        P = softmax(z'_0, z'_1 .. z'_K).

    The paper rejects where P_0 is the largest or the largest is below a threshold; above 1 / 2 both are a threshold on
    max_{k >= 1} P_k. pytorch-ood takes 1 - P_0 instead, which is K / (K + 1) and more for images of which the network
    says nothing (z = 0), so that they count as known.

    Ranked by the log-odds of that probability; `value` is the probability. The predicted class stays argmax z.
    The distance is Euclid's: the authors' mixture with the cosine is scaled to AlexNet. A class without a rightly
    classified image uses all of its images. As in all public codes a negative logit grows when it is scaled down.
    What to expect in a new domain: images of known classes lie outside the tails of the source too, and there the
    larger the logit, the larger P_0.
    """

    tail: int = 20
    top: int = 10

    name = "openmax"
    title = "OpenMax"
    paper = "Bendale and Boult, CVPR 2016, https://arxiv.org/abs/1511.06233"
    idea = "largest probability of a known class beside an unknown one made from Weibull tails of source distances"
    needs = ("logits",)
    fitted = ("means", "weibull", "top")

    def _fit(self, source: Predictions, head: Head | None) -> Arrays:
        logits = doubles(source.logits)
        means, weibull = np.zeros((logits.shape[1],) * 2), np.zeros((logits.shape[1], 3))
        for k in range(logits.shape[1]):
            own = source.label == k
            if not own.any():
                raise OpenDGError(f"'openmax' needs source images of every known class, and class number {k} has none.")
            right = own & source.correct
            inside = logits[right if right.any() else own]
            means[k] = inside.mean(axis=0)
            weibull[k] = fit_tail(np.linalg.norm(inside - means[k], axis=1), self.tail)
        return {"means": means, "weibull": weibull, "top": np.asarray(self.top)}

    def _score(self, predictions: Predictions) -> Floats:
        from scipy.spatial.distance import cdist

        state, logits = self._fitted(), doubles(predictions.logits)
        taken = (
            logits
            * _rank_weights(logits, int(state["top"]))
            * tail_cdf(cdist(logits, state["means"]), state["weibull"])
        )
        revised = np.column_stack([logits - taken, taken.sum(axis=1)])  # the unknown output last
        known = revised[:, :-1].argmax(axis=1)
        return np.asarray(revised[np.arange(len(revised)), known] - log_sum_exp(without(revised, known)))

    def value(self, scores: Floats) -> Floats:
        return sigmoid(scores)


def fit_tail(distances: Floats, tail: int) -> Floats:
    """(start, centre, spread) of the Weibull of the `tail` largest distances, the smallest of them moved to SHIFT.

    The logarithm of a Weibull variable is a Gumbel one (of minima): its centre is the log of the Weibull's scale, its
    spread one over the shape. SciPy finds the likeliest Gumbel exactly, where its search for shapes this large fails.
    """
    from scipy.stats import gumbel_l

    largest = np.sort(distances)[-tail:]
    logs = np.log1p((largest - largest[0]) / SHIFT)
    mean, unit = logs.mean(), logs.std()
    if unit < 1e-13:  # one distance only: a step there
        return np.array([largest[0], 0.0, 1e-13])
    centre, spread = gumbel_l.fit((logs - mean) / unit)
    return np.array([largest[0], mean + unit * centre, unit * spread])


def tail_cdf(distances: Floats, weibull: NDArray[np.float64]) -> Floats:
    """F_k of the distances to each class: 1 - exp(-exp((log((d - start + SHIFT) / SHIFT) - centre) / spread))."""
    start, centre, spread = weibull.T
    logs = np.log1p(np.maximum((distances - start) / SHIFT, 1e-12 - 1))
    with np.errstate(over="ignore"):  # far outside the inner power is infinite and F is 1
        return np.asarray(-np.expm1(-np.exp((logs - centre) / spread)))


def _rank_weights(logits: Floats, top: int) -> Floats:
    """max(0, (a + 1 - r_k) / a): 1 for the class with the largest logit, falling to 0 beyond the a-th."""
    a = min(top, logits.shape[1])
    rank = np.argsort(np.argsort(-logits, axis=1, kind="stable"), axis=1)  # 0 = top
    return np.asarray(np.maximum(0.0, (a - rank) / a))
