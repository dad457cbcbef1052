"""What is counted on a ladder equals the metrics at its thresholds, to the last image."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opendg.evaluation import metrics
from opendg.evaluation.thresholds import evaluate_score
from opendg.report.ladder import STEPS, make_ladder, places, ranked_thresholds
from opendg.scores.registry import make_score

# Whole and half numbers, so that ties are common, and some that float32 could not tell apart.
NUMBERS = st.one_of(st.integers(-6, 6).map(lambda n: n / 2), st.floats(-50, 50), st.just(1 + 1e-12), st.just(1.0))
SCORES = st.lists(NUMBERS, min_size=1, max_size=40).map(lambda values: np.array(values, np.float64))


@given(SCORES, SCORES, st.randoms(use_true_random=False), st.lists(NUMBERS, max_size=4))
def test_counts_at_every_rung_are_exact(known: np.ndarray, unknown: np.ndarray, random, chosen: list[float]) -> None:  # type: ignore[type-arg,no-untyped-def]
    correct = np.array([random.random() < 0.7 for _ in known])
    rungs = make_ladder([known, unknown], chosen)
    curve = metrics.h_curve(known, correct, unknown, rungs)
    own, other = places(rungs, known), places(rungs, unknown)
    for number in range(len(rungs)):
        assert ((own > number) & correct).sum() / len(known) == curve.acc_k[number]
        assert (other <= number).sum() / len(unknown) == curve.acc_u[number]
    assert set(chosen) <= set(rungs)
    accepted = (own > 0).sum() + (other > 0).sum()
    assert accepted == len(known) + len(unknown) or min(chosen) < min(known.min(), unknown.min())
    assert not (own >= len(rungs)).any(), "the last rung accepts nothing"


def test_a_ladder_stays_small() -> None:
    scores = np.random.default_rng(0).normal(size=50_000)
    rungs = make_ladder([scores], [0.0, 1.0])
    assert len(rungs) <= STEPS + 4
    assert np.all(np.diff(rungs) > 0)


@given(SCORES, SCORES, SCORES, st.sampled_from(["cls", "bcls", "energy"]))
def test_the_rules_of_a_record_accept_the_same_images(
    known: np.ndarray, unknown: np.ndarray, source: np.ndarray, name: str  # type: ignore[type-arg]
) -> None:  # fmt: skip
    scores = np.concatenate([known, unknown])
    is_known = np.arange(len(scores)) < len(known)
    correct = np.where(is_known, np.arange(len(scores)) % 3 > 0, False)
    record = evaluate_score(name, scores, correct, is_known, source)
    rules = {key: said for key, said in record.items() if key.startswith("h@") and said is not None}
    found = ranked_thresholds(make_score(name), scores, rules)
    assert set(found) == set(rules)
    for key, threshold in found.items():
        curve = metrics.h_curve(known, correct[is_known], unknown, [threshold])
        assert (curve.acc_k[0], curve.acc_u[0], curve.h[0]) == tuple(
            rules[key][part] for part in ("acc_k", "acc_u", "h")
        )
