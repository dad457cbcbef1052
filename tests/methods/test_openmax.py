"""OpenMax is ERM with another score."""

from __future__ import annotations

from opendg.methods.erm import ERM
from opendg.methods.openmax import OpenMax
from opendg.scores.registry import make_score
from tests.methods.beside_erm import equals_erm


def test_training_is_erms() -> None:
    assert equals_erm(OpenMax())
    assert equals_erm(OpenMax(OpenMax.Config(ova=True)))
    assert OpenMax.tasks is ERM.tasks


def test_it_is_read_with_the_score_of_its_name() -> None:
    assert OpenMax.score == "openmax"
    assert make_score(OpenMax.score).fitted
