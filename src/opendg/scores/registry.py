"""All scores by name: a plain dict."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch
from inspect import signature
from typing import TYPE_CHECKING, Any

from opendg.errors import OpenDGError, unknown_name
from opendg.scores.base import Head, Score
from opendg.scores.bcls import Bcls
from opendg.scores.cls import Cls
from opendg.scores.energy import Energy
from opendg.scores.entropy import Entropy
from opendg.scores.evidential import Evidential
from opendg.scores.knn import KNN
from opendg.scores.mahalanobis import Mahalanobis
from opendg.scores.max_logit import MaxLogit
from opendg.scores.openmax import OpenMax
from opendg.scores.vim import ViM

if TYPE_CHECKING:
    from opendg.predictions import Predictions

SCORES: dict[str, type[Score]] = {
    score.name: score for score in (Cls, Bcls, Energy, MaxLogit, Entropy, KNN, Mahalanobis, ViM, OpenMax, Evidential)
}


def list_scores(pattern: str = "*") -> list[str]:
    """Names of the scores, those that match a wildcard, the plain ones first."""
    return [name for name in SCORES if fnmatch(name, pattern)]


def make_score(name: str, **options: Any) -> Score:
    """A score by name, not fitted yet."""
    if name not in SCORES:
        raise unknown_name("score", name, SCORES)
    kind = SCORES[name]
    known = signature(kind).parameters
    for option in options:
        if option not in known:
            raise unknown_name("option", option, known, where=f" of the score {name!r}")
    return kind(**options)


def select_scores(patterns: str | Iterable[str], usable: Iterable[str] = SCORES) -> list[str]:
    """Names from names and wildcards, in a list or joined by commas ("energy,m*"); each once, in the order asked.

    A wildcard stands for those of the `usable` scores that it matches; a name for itself.
    """
    asked, able = patterns.split(",") if isinstance(patterns, str) else list(patterns), set(usable)
    found: dict[str, None] = {}
    for pattern in (pattern.strip() for pattern in asked):
        matches = list_scores(pattern)
        if not matches:
            raise unknown_name("score", pattern, SCORES)
        fitting = [name for name in matches if name == pattern or name in able]
        if not fitting:
            raise OpenDGError(f"None of the scores {', '.join(matches)} can be read from this run: name others.")
        found |= dict.fromkeys(fitting)
    if not found:
        raise OpenDGError("No score was named: give one or more, joined by commas.")
    return list(found)


def usable_scores(predictions: Predictions, head: Head | None = None) -> list[str]:
    """The scores whose needs these outputs meet."""
    return [name for name, score in SCORES.items() if not score.lacks(predictions, head)]
