"""Metrics against slow, obvious loops, against scikit-learn, and against the identities that tie them together."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, roc_auc_score

from opendg.errors import OpenDGError
from opendg.evaluation import metrics

# A few values only, so that ties are common; infinities are allowed in rankings.
SCORE = st.sampled_from([-np.inf, -2.0, -0.5, 0.0, 0.1, 0.5, 1.0, 3.0, np.inf]) | st.floats(-3, 3)
FINITE = SCORE.filter(np.isfinite)


def images(score: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[list[float], list[bool], list[float]]]:
    known = st.lists(st.tuples(score, st.booleans()), min_size=1, max_size=12)
    unknown = st.lists(score, min_size=1, max_size=12)
    return st.tuples(known, unknown).map(lambda both: ([k for k, _ in both[0]], [c for _, c in both[0]], both[1]))


def pair_loop(known: list[float], correct: list[bool], unknown: list[float]) -> float:
    won = 0.0
    for k, right in zip(known, correct, strict=True):
        for u in unknown:
            won += right * (1.0 if k > u else 0.5 if k == u else 0.0)
    return won / (len(known) * len(unknown))


def h_loop(known: list[float], correct: list[bool], unknown: list[float], threshold: float) -> float:
    acc_k = sum(right and k >= threshold for k, right in zip(known, correct, strict=True)) / len(known)
    acc_u = sum(u < threshold for u in unknown) / len(unknown)
    return 0.0 if acc_k + acc_u == 0 else 2 * acc_k * acc_u / (acc_k + acc_u)


@given(images(SCORE))
def test_oscr_counts_pairs(data: tuple[list[float], list[bool], list[float]]) -> None:
    assert metrics.oscr(*data) == pytest.approx(pair_loop(*data), abs=1e-12)


@given(images(SCORE))
def test_what_oscr_loses_is_told_by_image(data: tuple[list[float], list[bool], list[float]]) -> None:
    known, correct, unknown = data
    mistaken, outranked = metrics.oscr_losses(*data)
    assert mistaken.tolist() == [0.0 if right else 1.0 for right in correct]
    alone = [1 - pair_loop([k], [True], unknown) if right else 0 for k, right in zip(known, correct, strict=True)]
    assert outranked.tolist() == pytest.approx(alone, abs=1e-12)
    assert mistaken.mean() + outranked.mean() == pytest.approx(1 - metrics.oscr(*data), abs=1e-12)


@given(images(SCORE))
def test_area_under_the_curve_is_oscr(data: tuple[list[float], list[bool], list[float]]) -> None:
    fpr, ccr = metrics.oscr_curve(*data)
    assert auc(fpr, ccr) == pytest.approx(metrics.oscr(*data), abs=1e-12)
    assert (fpr[0], ccr[0], fpr[-1]) == (0, 0, 1)
    assert ccr[-1] == pytest.approx(np.mean(data[1]))
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(ccr) >= 0).all()


@given(images(SCORE))
def test_curve_passes_through_every_threshold(data: tuple[list[float], list[bool], list[float]]) -> None:
    known, correct, unknown = (np.asarray(part) for part in data)
    fpr, ccr = metrics.oscr_curve(known, correct, unknown)
    for threshold in np.concatenate([known, unknown]):
        x, y = (unknown >= threshold).mean(), (correct & (known >= threshold)).mean()
        # Vertical segments give one fpr several ccr: the point lies on the curve if it is between the ends there.
        low = np.interp(x, fpr, ccr) if x not in fpr else ccr[fpr == x].min()
        high = np.interp(x, fpr, ccr) if x not in fpr else ccr[fpr == x].max()
        assert low - 1e-12 <= y <= high + 1e-12


@given(images(SCORE))
def test_identities(data: tuple[list[float], list[bool], list[float]]) -> None:
    known, correct, unknown = data
    oscr, accuracy = metrics.oscr(*data), float(np.mean(correct))
    assert oscr <= accuracy + 1e-12
    assert metrics.oscr(known, [True] * len(known), unknown) == metrics.auroc(known, unknown)
    right = [k for k, c in zip(known, correct, strict=True) if c]
    if right:
        assert oscr == pytest.approx(accuracy * metrics.auroc(right, unknown), abs=1e-12)
    assert metrics.auroc(known, unknown) + metrics.auroc(unknown, known) == pytest.approx(1)


@given(images(FINITE))
def test_scikit_learn_agrees(data: tuple[list[float], list[bool], list[float]]) -> None:
    known, _, unknown = data
    truth, scores = [1] * len(known) + [0] * len(unknown), known + unknown
    assert metrics.auroc(known, unknown) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert metrics.aupr(known, unknown) == pytest.approx(average_precision_score(truth, scores), abs=1e-12)


@given(images(SCORE), st.lists(SCORE, min_size=1, max_size=6))
def test_h_at_many_thresholds(data: tuple[list[float], list[bool], list[float]], thresholds: list[float]) -> None:
    curve = metrics.h_curve(*data, thresholds)
    assert curve.thresholds.tolist() == thresholds
    for at, h in zip(thresholds, curve.h, strict=True):
        assert h == pytest.approx(h_loop(*data, at), abs=1e-12)
        assert metrics.h_score(*data, at) == h


@given(images(FINITE), st.integers(2, 15))
def test_oracle_is_the_best_of_its_grid(data: tuple[list[float], list[bool], list[float]], grid: int) -> None:
    scores = np.array(data[0] + data[2])
    best = max(h_loop(*data, float(at)) for at in np.linspace(scores.min(), scores.max(), grid))
    assert metrics.oracle_h_score(*data, grid=grid) == pytest.approx(best, abs=1e-12)
    assert metrics.h_score(*data, metrics.oracle_threshold(*data, grid=grid)) == pytest.approx(best, abs=1e-12)
    assert metrics.oracle_h_score(*data, grid=None) >= best - 1e-12


def test_of_equally_good_thresholds_the_oracle_takes_the_lowest() -> None:
    """From 0 to 9 in ten steps: all from 2 to 8 part the known image from the unknown one."""
    assert metrics.oracle_threshold([0.0, 8.0, 9.0], [False, True, True], [0.0, 1.0], grid=10) == 2


def test_the_numbers_of_the_papers_are_the_defaults() -> None:
    known, right, unknown = np.arange(20.0), np.arange(20) % 3 > 0, np.array([1.5, 4.2, 7.7, 8.1])
    assert metrics.oracle_h_score(known, right, unknown) == metrics.oracle_h_score(known, right, unknown, grid=10)
    assert metrics.fpr_at_tpr(known, unknown) == metrics.fpr_at_tpr(known, unknown, 0.95) == 1
    assert metrics.fpr_at_tpr(known, unknown, 0.9) < 1


@given(images(SCORE), st.floats(0.01, 1))
def test_fpr_at_tpr(data: tuple[list[float], list[bool], list[float]], tpr: float) -> None:
    known, _, unknown = (np.asarray(part) for part in data)
    enough = [at for at in known if (known >= at).mean() >= tpr - 1e-12]
    assert metrics.accepting_threshold(known, tpr) == max(enough)
    assert metrics.fpr_at_tpr(known, unknown, tpr) == (unknown >= max(enough)).mean()


@pytest.mark.parametrize(("share", "n"), [(0.07, 100), (0.95, 20), (0.29, 100), (0.57, 100), (1.0, 7)])
def test_a_whole_number_of_images_costs_none(share: float, n: int) -> None:
    scores = np.arange(n, dtype=float)
    assert (scores >= metrics.accepting_threshold(scores, share)).sum() == round(share * n)


@given(images(FINITE))
def test_the_scale_of_scores_does_not_matter(data: tuple[list[float], list[bool], list[float]]) -> None:
    known, correct, unknown = (np.asarray(part) for part in data)
    assert metrics.oscr(4 * known, correct, 4 * unknown) == metrics.oscr(known, correct, unknown)
    assert metrics.fpr_at_tpr(4 * known, 4 * unknown) == metrics.fpr_at_tpr(known, unknown)


def test_order_of_images_does_not_matter() -> None:
    random = np.random.default_rng(0)
    known, correct, unknown = random.integers(0, 9, 200), random.random(200) < 0.7, random.integers(0, 7, 90)
    mixed = random.permutation(200)
    same = (known[mixed], correct[mixed], random.permutation(unknown))
    assert metrics.oscr(*same) == metrics.oscr(known, correct, unknown)
    assert metrics.aupr(same[0], same[2]) == metrics.aupr(known, unknown)


def test_no_known_image_right() -> None:
    assert metrics.oscr([1.0, 2.0], [False, False], [0.0]) == 0
    fpr, ccr = metrics.oscr_curve([1.0, 2.0], [False, False], [0.0, 3.0])
    assert (fpr.tolist(), ccr.tolist()) == ([0, 1], [0, 0])
    assert metrics.oracle_h_score([1.0, 2.0], [False, False], [0.0]) == 0


def test_the_curve_has_corners_only() -> None:
    fpr, ccr = metrics.oscr_curve([6.0, 5.0, 4.0, 1.0], [True, True, False, True], [3.0, 2.0, 1.0])
    assert fpr.tolist() == [0, 0, 2 / 3, 1]
    assert ccr.tolist() == [0, 0.5, 0.5, 0.75]


def test_a_million_scores() -> None:
    random = np.random.default_rng(0)
    known, unknown = random.normal(1, 1, 500_000), random.normal(0, 1, 500_000)
    start = time.perf_counter()
    found = metrics.oscr(known, np.ones(500_000, bool), unknown)
    assert time.perf_counter() - start < 3  # far above what it takes, far below what a loop would
    assert found == pytest.approx(0.760, abs=0.002)  # P(N(1, 2) > 0)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64])
def test_other_number_types(kind: type) -> None:
    known, unknown = np.array([3, 2, 2], kind), np.array([2, 0], kind)
    assert metrics.oscr(known, np.array([1, 1, 0]), unknown) == pytest.approx(3.5 / 6)


def test_confusion_with_unknown_as_a_class() -> None:
    found = metrics.confusion([0, 0, 1, 1, -1, -1], [0, 1, 1, 0, 1, 0], [True, True, True, False, True, False], 2)
    assert found.tolist() == [[1, 1, 0], [0, 1, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: metrics.oscr([], [], [1.0]), "known_scores is empty"),
        (lambda: metrics.oscr([1.0], [True], []), "unknown_scores is empty"),
        (lambda: metrics.oscr([np.nan, 1.0], [True, True], [1.0]), "NaN in 1 of 2"),
        (lambda: metrics.auroc([1.0], [np.nan]), "unknown_scores has NaN"),
        (lambda: metrics.oscr([1.0, 2.0], [True], [1.0]), r"known_correct has shape \(1,\)"),
        (lambda: metrics.oscr([1.0, 2.0], [0.2, 1.0], [1.0]), "other values than true and false"),
        (lambda: metrics.oscr([[1.0]], [[True]], [1.0]), "flat array"),
        (lambda: metrics.h_score([1.0], [True], [1.0], np.nan), "thresholds has NaN"),
        (lambda: metrics.oracle_h_score([np.inf], [True], [1.0]), "infinite scores"),
        (lambda: metrics.oracle_h_score([1.0], [True], [1.0], grid=1), "no two ends"),
        (lambda: metrics.fpr_at_tpr([1.0], [1.0], tpr=95), "above 0 and at most 1"),
        (lambda: metrics.fpr_at_tpr([1.0], [1.0], tpr=1.01), "above 0 and at most 1"),
        (lambda: metrics.fpr_at_tpr([1.0], [1.0], tpr=0), "above 0 and at most 1"),
        (lambda: metrics.confusion([0], [3], [True], 2), "outside 0 .. 1"),
        (lambda: metrics.confusion([0, 1], [0], [True], 2), "2 labels, 1 classes"),
    ],
)
def test_bad_input_is_refused(call: object, says: str) -> None:
    with pytest.raises(OpenDGError, match=says):
        call()  # type: ignore[operator]
