"""The ladder of a score: the thresholds that the page's slider stops at, and each image's place between them.

Rungs are quantiles of the scores of all runs on the page, so that every step of the slider moves some image, and beside
them the thresholds that the rules chose for each run. An image is kept as the number of rungs at or below its score, in
two bytes: `score >= rungs[k]` is then `place > k`, and what the page counts at a rung is exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from opendg.scores.base import Floats, Score

STEPS = 1000


def make_ladder(scores: Iterable[Floats], chosen: Iterable[float]) -> Floats:
    """Thresholds from the smallest score to just above the largest, with the chosen ones among them."""
    pooled = np.concatenate(list(scores))
    quantiles = np.quantile(pooled, np.linspace(0, 1, STEPS + 1), method="inverted_cdf")
    above = np.nextafter(pooled.max(), np.inf)
    return np.unique(np.concatenate([quantiles, [above], np.fromiter(chosen, np.float64)]))


def places(rungs: Floats, scores: Floats) -> NDArray[np.uint16]:
    """For each score the number of rungs at or below it."""
    return np.searchsorted(rungs, scores, side="right").astype(np.uint16)


def ranked_thresholds(score: Score, scores: Floats, rules: Mapping[str, dict[str, float | None]]) -> dict[str, float]:
    """The rules' thresholds of a record on the scale on which the score ranks.

    A rule that looked at the score's value, a probability say, accepts the same images as the lowest score with that
    value.
    """
    found = {}
    for key, said in rules.items():
        threshold, ranked = said["threshold"], said["ranked_threshold"]
        if ranked is not None:
            found[key] = ranked
        elif threshold is not None:
            accepted = scores[score.value(scores) >= threshold]
            found[key] = float(accepted.min()) if len(accepted) else float(np.nextafter(scores.max(), np.inf))
    return found
