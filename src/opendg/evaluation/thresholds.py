"""Rules that choose a threshold, each with what it saw, and the metrics of one score on one target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opendg.errors import OpenDGError
from opendg.evaluation import metrics
from opendg.scores.base import Floats, Score
from opendg.scores.registry import make_score


class Seen(NamedTuple):
    """What rules may look at. Scores as they rank; `value` of the score gives what users see."""

    score: Score
    known: Floats  # scores of the target's known images
    correct: NDArray[np.bool_]  # whether their closed-set class is right
    unknown: Floats  # scores of the target's unknown images
    source: Floats | None  # scores of the source validation images, all of known classes


class Choice(NamedTuple):
    """A threshold, on the score's values or, where sure images must not tie at a probability of 1, on its ranks."""

    threshold: float
    ranked: bool = False


@dataclass(frozen=True)
class Rule:
    """A way to choose a threshold; `choose` answers None where the score or the data do not allow it."""

    name: str
    saw: str
    idea: str
    choose: Callable[[Seen], Choice | None]

    @property
    def key(self) -> str:
        """Its name in records."""
        return self.name.lower()


@dataclass(frozen=True)
class AtThreshold:
    """What a rule's threshold gives on the target. An image is known if its score >= the threshold."""

    rule: str
    saw: str
    threshold: float  # on the score's value: a probability for cls and bcls
    ranked_threshold: float | None  # the same on the ranking scale, where the rule decides there
    acc_k: float
    acc_u: float
    h: float


def _oracle10(seen: Seen) -> Choice:
    known, unknown = seen.score.value(seen.known), seen.score.value(seen.unknown)
    return Choice(metrics.oracle_threshold(known, seen.correct, unknown, grid=10))


def _source95(seen: Seen) -> Choice | None:
    return None if seen.source is None else Choice(metrics.accepting_threshold(seen.source, 0.95), ranked=True)


def _own(seen: Seen) -> Choice | None:
    return None if seen.score.own_threshold is None else Choice(seen.score.own_threshold)


RULES: tuple[Rule, ...] = (
    Rule(
        "H@oracle10",
        saw="target scores and which target images are unknown",
        idea="best of ten thresholds laid evenly over the target's own scores (the papers' H-score)",
        choose=_oracle10,
    ),
    Rule(
        "H@source95",
        saw="source validation images of known classes",
        idea="largest threshold that accepts at least 95 % of the source validation images",
        choose=_source95,
    ),
    Rule(
        "H@0.5", saw="nothing", idea="the point at which the one-vs-all head parts yes from no (bcls only)", choose=_own
    ),
)


def evaluate_score(
    score: str | Score,
    scores: ArrayLike,
    correct: ArrayLike,
    known: ArrayLike,
    source_scores: ArrayLike | None = None,
) -> dict[str, Any]:
    """Every metric of one score on one target, ready for JSON.

    `scores`, `correct` and `known` have one entry a target image, as the score ranks (`score(predictions)`) and as
    Predictions has them; `source_scores` those of the source validation images. A metric that the data cannot give (no
    unknown images, say) is None.
    """
    kind = make_score(score) if isinstance(score, str) else score
    ranked, right, is_known = np.asarray(scores, np.float64), np.asarray(correct, np.bool_), np.asarray(known, np.bool_)
    if not ranked.shape == right.shape == is_known.shape:
        raise OpenDGError(
            f"Of the score {kind.name!r} came {ranked.size} numbers, with {right.size} entries of correct and "
            f"{is_known.size} of known: give one of each for an image."
        )
    source = None if source_scores is None or not np.size(source_scores) else np.asarray(source_scores, np.float64)
    seen = Seen(kind, ranked[is_known], right[is_known], ranked[~is_known], source)
    return {"score": kind.name, "acc": float(seen.correct.mean()) if len(seen.known) else None} | _open_set(seen)


def _open_set(seen: Seen) -> dict[str, Any]:
    """What needs both known and unknown images."""
    names = ["oscr", "auroc", "aupr", "fpr95", *(rule.key for rule in RULES)]
    if not len(seen.known) or not len(seen.unknown):
        return dict.fromkeys(names)
    found: dict[str, Any] = {
        "oscr": metrics.oscr(seen.known, seen.correct, seen.unknown),
        "auroc": metrics.auroc(seen.known, seen.unknown),
        "aupr": metrics.aupr(seen.known, seen.unknown),
        "fpr95": metrics.fpr_at_tpr(seen.known, seen.unknown, 0.95),
    }
    for rule in RULES:
        choice = rule.choose(seen)
        found[rule.key] = None if choice is None else asdict(_at(rule, choice, seen))
    return found


def _at(rule: Rule, choice: Choice, seen: Seen) -> AtThreshold:
    value = seen.score.value
    known, unknown = (seen.known, seen.unknown) if choice.ranked else (value(seen.known), value(seen.unknown))
    curve = metrics.h_curve(known, seen.correct, unknown, [choice.threshold])
    shown = float(value(curve.thresholds)[0]) if choice.ranked else choice.threshold
    ranked = choice.threshold if choice.ranked else None
    return AtThreshold(rule.name, rule.saw, shown, ranked, *(float(array[0]) for array in curve[1:]))
