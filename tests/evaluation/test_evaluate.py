"""Evaluations of one run after each other: none takes away what another found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opendg.evaluation.evaluate import evaluate


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    for name in ("evaluation-averaged.json", "evaluation-selected.json"):
        (trained / name).unlink(missing_ok=True)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def record(run: Path) -> Any:
    return json.loads((run / "evaluation-selected.json").read_text())


def test_scores_of_earlier_evaluations_stay(run: Path) -> None:
    first = evaluate(run, scores=["entropy", "knn"], weights="selected", device="cpu")
    second = evaluate(run, scores="energy", weights="selected", device="cpu")
    assert list(second["scores"]) == ["energy", "entropy", "knn"]
    assert record(run) == second
    assert {name: second["scores"][name] for name in first["scores"]} == first["scores"]


def test_each_weights_have_a_record_of_their_own(run: Path) -> None:
    evaluate(run, scores="entropy", weights="averaged", device="cpu")
    assert list(evaluate(run, scores="energy", weights="selected", device="cpu")["scores"]) == ["energy"]


@pytest.mark.parametrize("text", ["{", "[]", '{"scores": 3}', '{"scores": {"no such score": {}}}'])
def test_what_cannot_be_read_from_an_earlier_record_is_passed_over(run: Path, text: str) -> None:
    (run / "evaluation-selected.json").write_text(text)
    assert list(evaluate(run, scores="energy", weights="selected", device="cpu")["scores"]) == ["energy"]
    assert list(record(run)["scores"]) == ["energy"]
