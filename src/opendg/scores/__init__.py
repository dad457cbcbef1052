"""Scores: from a classifier's outputs to "how known is this image". One file a score; larger means more known."""

from opendg.scores.base import Head, Score
from opendg.scores.registry import SCORES, list_scores, make_score, select_scores, usable_scores

__all__ = ["SCORES", "Head", "Score", "list_scores", "make_score", "select_scores", "usable_scores"]
