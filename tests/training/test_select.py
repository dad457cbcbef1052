from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import opendg
from opendg.errors import OpenDGError
from opendg.methods.base import State, Survey
from opendg.methods.erm import ERM
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions
from opendg.training.recipe import Recipe
from opendg.training.select import Selection
from tests.tiny import quick
from tests.training.parts import advance, make_parts, stop


def selection(iterations: int = 100, **options: object) -> Selection:
    return Selection(Recipe(iterations=iterations, select="source-accuracy", **options))  # type: ignore[arg-type]


def offer(chosen: Selection, accuracies: dict[int, float]) -> Selection:
    for step, accuracy in accuracies.items():
        chosen.offer(accuracy, {"w": torch.tensor(float(step))})
    return chosen


@pytest.mark.parametrize(
    ("accuracies", "kept"),
    [({60: 0.5, 80: 0.7, 100: 0.6}, 80), ({60: 0.7, 80: 0.7, 100: 0.6}, 80), ({60: 0.0, 80: 0.0}, 80)],
)
def test_the_best_is_kept_and_of_equals_the_latest(accuracies: dict[int, float], kept: int) -> None:
    assert offer(selection(), accuracies).kept["w"] == kept


def test_what_is_kept_does_not_move_with_the_weights() -> None:
    weights, chosen = {"w": torch.zeros(2)}, selection()
    chosen.offer(0.5, weights)
    weights["w"] += 1
    assert chosen.kept["w"].tolist() == [0, 0]


@given(iterations=st.integers(1, 5000), after=st.floats(0, 1))
def test_looks_come_late_and_the_last_iterate_is_always_looked_at(iterations: int, after: float) -> None:
    chosen = selection(iterations, select_after=after)
    due = [step for step in range(1, iterations + 1) if chosen.due(step)]
    assert due[-1] == iterations
    assert due[0] / iterations >= after
    assert len(due) <= 81


def test_the_share_of_the_run_is_exact() -> None:
    """0.55 * 200 is a rounding error above 110."""
    assert selection(200, select_after=0.55).due(110)


def test_last_never_looks() -> None:
    assert not any(Selection(Recipe(iterations=50)).due(step) for step in range(1, 51))


@pytest.mark.parametrize("after", [-0.1, 1.5, float("nan")])
def test_a_fraction_is_a_fraction(after: float) -> None:
    with pytest.raises(OpenDGError, match="--select-after .* between 0 and 1"):
        Recipe(select_after=after)


def test_a_resumed_selection_remembers() -> None:
    tensors, facts = offer(selection(), {60: 0.5, 80: 0.7}).save()
    again = selection()
    again.load(tensors, facts)
    assert offer(again, {90: 0.6}).kept["w"] == 80
    assert offer(again, {100: 0.7}).kept["w"] == 100


@pytest.mark.parametrize(("method", "chosen"), [("swad", {}), ("selfreg", {}), ("selfreg", {"average_from": "0.99"})])
def test_a_method_that_averages_by_itself_has_no_iterate_to_select(
    tree: Path, tmp_path: Path, method: str, chosen: dict[str, str]
) -> None:
    asked = quick(select="source-accuracy", chosen=chosen)
    with pytest.raises(OpenDGError, match="ends with a mean .* --select source-acc.* of one .* leave --select out"):
        opendg.train(method, data=str(tree), out=tmp_path / "run", **asked)
    with pytest.raises(
        OpenDGError, match="ends with .* --average-over 0.5 .* another mean .* leave --average-over out"
    ):
        opendg.train(method, data=str(tree), out=tmp_path / "run", **quick(average_over=0.5, chosen=chosen))
    assert not (tmp_path / "run").exists()


def test_a_method_that_starts_anew_within_the_run_is_not_averaged(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="MetaReg begins anew .* would mix both trainings: leave --average-over out"):
        opendg.train("metareg", data=str(tree), out=tmp_path / "run", **quick(average_over=0.5))
    assert not (tmp_path / "run").exists()
    asked = quick(average_over=0.5, chosen={"meta": "0"})
    assert opendg.train("metareg", str(tree), out=tmp_path / "run", **asked).finished


def test_selfreg_that_does_not_average_may_select(tree: Path, tmp_path: Path) -> None:
    asked = quick(select="source-accuracy", chosen={"average_from": "1"})
    assert opendg.train("selfreg", data=str(tree), out=tmp_path / "run", **asked).finished


def test_the_finished_weights_are_those_selected(tree: Path, tmp_path: Path) -> None:
    """And the averaged ones are of all iterations, with their share of the start."""
    late = {"select": "source-accuracy", "select_after": 0.5, "average_over": 0.5, "average_start": 0.2}
    asked = quick(iterations=20, lr=0.02, **late)
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **asked)
    looks = {entry["step"]: entry["val"]["accuracy"] for entry in run.read_log() if "val" in entry}
    assert list(looks) == list(range(10, 21))
    best = max(step for step, accuracy in looks.items() if accuracy == max(looks.values()))
    loop = advance(make_parts(tree, "erm", **asked), best)
    selected = run.load_weights("selected")
    assert all(torch.equal(selected[name], tensor) for name, tensor in loop.finished_weights().items())
    averaged = run.load_weights("averaged")
    expected = advance(loop, 20 - best).finished_weights(averaged=True)
    assert all(torch.equal(averaged[name], tensor) for name, tensor in expected.items())
    assert np.mean(Predictions.load(run.val_file("selected")).correct) == looks[best]


def test_a_run_that_goes_on_keeps_the_best_from_before(tree: Path, tmp_path: Path) -> None:
    asked = quick(iterations=20, lr=0.02, select="source-accuracy", select_after=0.5, checkpoint_every=4)
    whole = opendg.train("erm", data=str(tree), out=tmp_path / "whole", **asked)
    looks = {entry["step"]: entry["val"]["accuracy"] for entry in whole.read_log() if "val" in entry}
    assert max(looks[step] for step in range(10, 17)) > max(looks[step] for step in range(17, 21)), "another seed?"
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **asked, report=stop)
    run = opendg.resume(tmp_path / "run", device="cpu")
    assert run.weight_file("selected").read_bytes() == whole.weight_file("selected").read_bytes()


def test_a_methods_last_work_is_done_on_the_selected_weights(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blank(method: ERM, survey: Survey, classifier: Classifier, state: State) -> None:
        classifier.weights()["head.linear.bias"].data.zero_()

    asked = quick(iterations=20, lr=0.02, select="source-accuracy", select_after=0.5)
    plain = opendg.train("erm", data=str(tree), out=tmp_path / "plain", **asked).load_weights("selected")
    monkeypatch.setattr(ERM, "finish", blank)
    found = opendg.train("erm", data=str(tree), out=tmp_path / "run", **asked).load_weights("selected")
    assert plain["head.linear.bias"].any()
    assert not found["head.linear.bias"].any()
    assert all(torch.equal(found[name], plain[name]) for name in plain if name != "head.linear.bias")
