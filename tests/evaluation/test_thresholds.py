"""Threshold rules: what each saw, and the record of one score."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendg.errors import OpenDGError
from opendg.evaluation import metrics
from opendg.evaluation.thresholds import RULES, evaluate_score
from opendg.scores import make_score

KNOWN = np.array([True, True, True, True, False, False, False, False])
CORRECT = np.array([True, True, True, False, False, False, False, False])
SCORES = np.array([4.0, 2.0, -1.0, 3.0, 1.0, -2.0, -3.0, 2.0])


def test_record_of_bcls_by_hand() -> None:
    found = evaluate_score("bcls", SCORES, CORRECT, KNOWN, source_scores=[5.0, 1.5, 3.0])
    assert found["acc"] == 0.75
    assert found["oscr"] == pytest.approx((4 + 3.5 + 2) / 16)
    assert found["auroc"] == pytest.approx((4 + 3.5 + 2 + 4) / 16)
    assert found["aupr"] == pytest.approx((1 + 1 + 3 / 4 + 4 / 6) / 4)
    assert found["fpr95"] == 0.5  # all four known images are needed, the least of them has -1
    at = found["h@source95"]
    assert (at["ranked_threshold"], at["acc_k"], at["acc_u"]) == (1.5, 0.5, 0.75)
    assert at["threshold"] == pytest.approx(1 / (1 + np.exp(-1.5)))
    half = found["h@0.5"]
    assert (half["threshold"], half["acc_k"], half["acc_u"], half["h"]) == (0.5, 0.5, 0.5, 0.5)


def test_the_oracle_grid_lies_on_probabilities_of_cls_and_on_plain_energies() -> None:
    for name in ("cls", "energy"):
        score = make_score(name)
        values = score.value(SCORES)
        best = metrics.oracle_h_score(values[KNOWN], CORRECT[KNOWN], values[~KNOWN])
        at = evaluate_score(name, SCORES, CORRECT, KNOWN)["h@oracle10"]
        assert at["h"] == best
        assert at["threshold"] in np.linspace(values.min(), values.max(), 10)


def test_every_rule_is_labelled_with_what_it_saw_and_the_record_is_json() -> None:
    found = json.loads(json.dumps(evaluate_score("bcls", SCORES, CORRECT, KNOWN, SCORES)))
    for rule in RULES:
        assert found[rule.key]["rule"] == rule.name
        assert found[rule.key]["saw"] == rule.saw
    assert [rule.name for rule in RULES] == ["H@oracle10", "H@source95", "H@0.5"]
    assert "target" in RULES[0].saw
    assert not any("target" in rule.saw for rule in RULES[1:])


def test_half_is_for_bcls_only_and_source95_needs_source_images() -> None:
    found = evaluate_score("energy", SCORES, CORRECT, KNOWN)
    assert found["h@0.5"] is None
    assert found["h@source95"] is None


def test_closed_set_target_has_accuracy_only() -> None:
    found = evaluate_score("cls", SCORES[KNOWN], CORRECT[KNOWN], KNOWN[KNOWN], SCORES)
    assert found.pop("acc") == 0.75
    assert found.pop("score") == "cls"
    assert set(found.values()) == {None}


def test_source95_does_not_tie_where_probabilities_are_one() -> None:
    """Log-odds above 37 all give the probability 1: the rule decides on the log-odds and still parts them."""
    scores, known = np.array([60.0, 70.0, 45.0, 40.0]), np.array([True, True, False, False])
    at = evaluate_score("cls", scores, known, known, source_scores=np.linspace(50, 80, 100))["h@source95"]
    assert at["threshold"] == 1.0
    assert at["h"] == 1.0


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=60))
def test_source95_is_the_largest_that_accepts_95_percent(source: list[float]) -> None:
    at = evaluate_score("energy", SCORES, CORRECT, KNOWN, source)["h@source95"]["threshold"]
    assert np.mean(np.array(source) >= at) >= 0.95
    assert all(np.mean(np.array(source) >= higher) < 0.95 for higher in source if higher > at)


def test_rules_other_than_the_oracle_do_not_look_at_the_target() -> None:
    one = evaluate_score("bcls", SCORES, CORRECT, KNOWN, SCORES)
    other = evaluate_score("bcls", SCORES[::-1] * 3 - 1, CORRECT, KNOWN, SCORES)
    assert one["h@source95"]["threshold"] == other["h@source95"]["threshold"]
    assert one["h@oracle10"]["threshold"] != other["h@oracle10"]["threshold"]


def test_arrays_of_different_length_are_refused() -> None:
    with pytest.raises(OpenDGError, match="8 numbers, with 7 entries"):
        evaluate_score("cls", SCORES, CORRECT[:7], KNOWN)
