"""Metrics of open-set recognition, in plain NumPy. docs/metrics.md defines each with a worked example.

Known is the positive class in all of them. A score says how known an image is: larger means more known. Three arrays
recur:

- `known_scores`: scores of the target's images of known classes,
- `known_correct`: for each of those, whether the closed-set class is right,
- `unknown_scores`: scores of the target's images of unknown classes.

All results are fractions from 0 to 1, and all averages run over images, not over classes. Scores may be infinite (they
are only compared), but not NaN; an empty array is refused, since a share of nothing has no value.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opendg.errors import OpenDGError

Floats = NDArray[np.float64]


class HCurve(NamedTuple):
    """What each threshold gives; four arrays of one length."""

    thresholds: Floats
    acc_k: Floats  # share of known images accepted and of the right class
    acc_u: Floats  # share of unknown images rejected
    h: Floats  # harmonic mean of the two


def oscr(known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike) -> float:
    """Open-set classification rate: P(a known image is classified right and scores above an unknown one).

    The area under `oscr_curve`. A tie between a known and an unknown image counts one half. Dhamija et al., NeurIPS
    2018.
    """
    known, correct, unknown = _checked(known_scores, known_correct, unknown_scores)
    return _pairs_won(known[correct], unknown) / (len(known) * len(unknown))


def oscr_curve(known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike) -> tuple[Floats, Floats]:
    """The curve of OSCR as (fpr, ccr), from (0, 0) to (1, accuracy), as the threshold falls.

    fpr is the share of unknown images accepted, ccr the share of known images accepted and classified right. Images of
    one score enter together, so a tie is a diagonal segment and the trapezoid area is `oscr`. Only the corners are
    given.
    """
    known, correct, unknown = _checked(known_scores, known_correct, unknown_scores)
    up, right = _counts_by_score(known[correct], unknown)
    x, y = _corners(np.append(0, np.cumsum(right)), np.append(0, np.cumsum(up)))
    return x / len(unknown), y / len(known)


def oscr_losses(known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike) -> tuple[Floats, Floats]:
    """What each known image takes from OSCR, as (mistaken, outranked): 1 - OSCR = mean(mistaken) + mean(outranked).

    mistaken is 1 where the class is wrong; outranked, where it is right, the share of unknown images that score above,
    a tie one half. Their sums over the images of a class say what that class costs.
    """
    known, correct, unknown = _checked(known_scores, known_correct, unknown_scores)
    beaten = _beaten_twice(known, unknown) / (2 * len(unknown))
    return (~correct).astype(np.float64), np.where(correct, 1 - beaten, 0.0)


def h_score(known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike, threshold: float) -> float:
    """H = 2 acc_k acc_u / (acc_k + acc_u) when an image is taken as known if its score >= threshold.

    acc_k counts known images that are accepted and of the right class, acc_u unknown images that are rejected.
    0 when both are 0. Fu et al., ECCV 2020, with averages over images.
    """
    return float(h_curve(known_scores, known_correct, unknown_scores, [threshold]).h[0])


def h_curve(
    known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike, thresholds: ArrayLike
) -> HCurve:
    """acc_k, acc_u and H for many thresholds at once, in the order given."""
    known, correct, unknown = _checked(known_scores, known_correct, unknown_scores)
    at = _scores(thresholds, "thresholds")
    accepted = np.sort(known[correct])
    acc_k = (len(accepted) - np.searchsorted(accepted, at, side="left")) / len(known)
    acc_u = np.searchsorted(np.sort(unknown), at, side="left") / len(unknown)
    total = acc_k + acc_u
    h = np.divide(2 * acc_k * acc_u, total, out=np.zeros_like(total), where=total > 0)
    return HCurve(at, acc_k, acc_u, h)


def oracle_threshold(
    known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike, grid: int | None = 10
) -> float:
    """The threshold of `oracle_h_score`; the lowest one where several are equally good."""
    known, correct, unknown = _checked(known_scores, known_correct, unknown_scores)
    scores = np.concatenate([known, unknown])
    if grid is None:
        at = np.unique(scores)
    elif grid < 2:
        raise OpenDGError(f"A grid of {grid} thresholds has no two ends: give 2 or more, or None for every score.")
    elif not np.isfinite(scores).all():
        raise OpenDGError("No even grid can be laid over infinite scores: give finite scores, or grid=None.")
    else:
        at = np.linspace(scores.min(), scores.max(), grid)
    curve = h_curve(known, correct, unknown, at)
    return float(at[curve.h.argmax()])


def oracle_h_score(
    known_scores: ArrayLike, known_correct: ArrayLike, unknown_scores: ArrayLike, grid: int | None = 10
) -> float:
    """The best H of `grid` thresholds laid evenly from the smallest to the largest of all the scores, ends included.

    An oracle: it looks at the target's own scores and at which of them are unknown. The papers' H-score is this one
    with ten thresholds. `grid=None` tries every score and gives the best H there is.
    """
    threshold = oracle_threshold(known_scores, known_correct, unknown_scores, grid)
    return h_score(known_scores, known_correct, unknown_scores, threshold)


def auroc(known_scores: ArrayLike, unknown_scores: ArrayLike) -> float:
    """P(a known image scores above an unknown one), its class right or not; a tie counts one half."""
    known, unknown = _scores(known_scores, "known_scores"), _scores(unknown_scores, "unknown_scores")
    return _pairs_won(known, unknown) / (len(known) * len(unknown))


def aupr(known_scores: ArrayLike, unknown_scores: ArrayLike) -> float:
    """Area under precision against recall of the known images, as average precision: sum of (R_i - R_{i-1}) P_i.

    i runs over the distinct scores from the largest down; images of one score enter together. Chance level is the share
    of known images, so values of test sets with other shares cannot be compared.
    """
    known, unknown = _scores(known_scores, "known_scores"), _scores(unknown_scores, "unknown_scores")
    gained, false = _counts_by_score(known, unknown)
    true = np.cumsum(gained)
    precision = true / (true + np.cumsum(false))
    return float((gained * precision).sum() / len(known))


def fpr_at_tpr(known_scores: ArrayLike, unknown_scores: ArrayLike, tpr: float = 0.95) -> float:
    """Share of unknown images accepted when at least `tpr` of the known are: FPR95 with known as the positive class."""
    threshold = accepting_threshold(known_scores, tpr)
    return float((_scores(unknown_scores, "unknown_scores") >= threshold).mean())


def accepting_threshold(scores: ArrayLike, share: float) -> float:
    """The largest threshold that accepts (score >= threshold) at least `share` of the scores: one of the scores."""
    if not 0 < share <= 1:
        raise OpenDGError(f"The share of images to accept is {share}: give a number above 0 and at most 1.")
    ordered = np.sort(_scores(scores, "scores"))
    # The product may lie a rounding error above a whole number of images (0.07 * 100 > 7), which must not cost an
    # image.
    wanted = max(1, math.ceil(share * len(ordered) - 1e-9))
    return float(ordered[len(ordered) - wanted])


def confusion(labels: ArrayLike, predicted: ArrayLike, accepted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """Counts of true class (row) against answer (column), (classes + 1) square; the last row and column are "unknown".

    `labels` below 0 are unknown images; where `accepted` is false the answer is "unknown" instead of `predicted`.
    """
    true, closed, kept = np.asarray(labels, np.int64), np.asarray(predicted, np.int64), np.asarray(accepted, np.bool_)
    if not true.shape == closed.shape == kept.shape:
        raise OpenDGError(f"confusion got {true.size} labels, {closed.size} classes and {kept.size} decisions.")
    if max(true.max(initial=-1), closed.max(initial=-1)) >= classes or closed.min(initial=0) < 0:
        raise OpenDGError(f"A class number lies outside 0 .. {classes - 1}: give the number of known classes.")
    counts = np.zeros((classes + 1, classes + 1), np.int64)
    np.add.at(counts, (np.where(true < 0, classes, true), np.where(kept, closed, classes)), 1)
    return counts


def _checked(known: ArrayLike, correct: ArrayLike, unknown: ArrayLike) -> tuple[Floats, NDArray[np.bool_], Floats]:
    scores = _scores(known, "known_scores")
    right = np.asarray(correct)
    if right.shape != scores.shape:
        raise OpenDGError(
            f"known_correct has shape {right.shape} and known_scores {scores.shape}: give one entry an image."
        )
    if right.dtype != np.bool_ and not np.isin(right, (0, 1)).all():
        raise OpenDGError("known_correct holds other values than true and false: give predicted == label.")
    return scores, right.astype(np.bool_), _scores(unknown, "unknown_scores")


def _scores(values: ArrayLike, name: str) -> Floats:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1:
        raise OpenDGError(f"{name} has shape {scores.shape}: give one number for each image, a flat array.")
    if not scores.size:
        raise OpenDGError(f"{name} is empty: at least one number is needed.")
    if np.isnan(scores).any():
        raise OpenDGError(f"{name} has NaN in {int(np.isnan(scores).sum())} of {scores.size} places: NaN has no rank.")
    return scores


def _pairs_won(known: Floats, unknown: Floats) -> float:
    """Pairs in which the known score is the larger one, ties one half."""
    # The scores asked for are sorted too, so that the search walks through memory in order.
    return float(_beaten_twice(np.sort(known), unknown).sum(dtype=np.int64)) / 2


def _beaten_twice(known: Floats, unknown: Floats) -> NDArray[np.int64]:
    """For each known score the unknown ones below it, counted twice, and those equal to it, counted once."""
    ordered = np.sort(unknown)
    return np.searchsorted(ordered, known, side="left") + np.searchsorted(ordered, known, side="right")


def _counts_by_score(known: Floats, unknown: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many known and how many unknown images have each distinct score, from the largest score down."""
    scores = np.concatenate([known, unknown])
    order = np.argsort(-scores, kind="stable")
    ordered, is_known = scores[order], order < len(known)
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    seen = np.cumsum(is_known)[last]
    gained = np.diff(seen, prepend=0)
    return gained, np.diff(last + 1, prepend=0) - gained


def _corners(x: NDArray[np.int64], y: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Drop the points at which a monotone path goes straight on: the line stays the same, with far fewer points."""
    turns = np.diff(x)[:-1] * np.diff(y)[1:] != np.diff(x)[1:] * np.diff(y)[:-1]
    keep = np.concatenate([[True], turns, [True]])
    return x[keep], y[keep]
