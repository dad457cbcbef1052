"""Evaluations of one run after each other: none takes away what another found. And what is not evaluated at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import opendg
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import evaluate
from opendg.predictions import Predictions, predict_rows
from opendg.runs.directory import Run
from opendg.scores import SCORES
from opendg.training.recipe import SELECTIONS
from tests.tiny import quick, write_tree


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*", "target-*")))


def record(run: Path) -> Any:
    return json.loads((run / "evaluation-selected.json").read_text())


def test_scores_of_earlier_evaluations_stay(run: Path) -> None:
    first = evaluate(run, scores=["vim", "entropy"], weights="selected", device="cpu")
    second = evaluate(run, scores="energy", weights="selected", device="cpu")
    assert list(second["scores"]) == ["energy", "vim", "entropy"]
    assert record(run) == second
    assert {name: second["scores"][name] for name in first["scores"]} == first["scores"]


def test_images_are_predicted_once_for_all_scores_and_the_sources_never_again(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def counted(*given: Any) -> Predictions:
        found = predict_rows(*given)
        seen.append(len(found))
        return found

    monkeypatch.setattr("opendg.evaluation.evaluate.predict_rows", counted)
    train = json.loads((run / "manifest.json").read_text())["images"]["train"]
    for expected in ([48, train], [48, train, 48]):
        evaluate(run, scores=["knn", "mahalanobis", "energy"], device="cpu")
        assert seen == expected


def test_each_weights_have_a_record_of_their_own(run: Path) -> None:
    evaluate(run, scores="entropy", weights="averaged", device="cpu")
    assert not (run / "target-selected.npz").exists()
    assert list(evaluate(run, scores="energy", weights="selected", device="cpu")["scores"]) == ["energy"]
    assert (run / "target-selected.npz").exists()
    assert list(evaluate(run, scores="cls", weights="averaged", device="cpu")["scores"]) == ["cls", "entropy"]


def test_a_wildcard_stands_for_what_the_run_can_be_read_with(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=2)).path
    assert list(evaluate(run, scores="*", device="cpu")["scores"]) == [name for name in SCORES if name != "bcls"]


@pytest.mark.parametrize("which", ["averaged", "selected"])
def test_a_record_says_what_was_run(tree: Path, tmp_path: Path, which: str) -> None:
    asked = quick(target="neon,wood", average_over=0.5, seed=3, split_seed=1, notes=["Found."])
    path = opendg.train("erm", str(tree), out=tmp_path / "run", chosen={"ova": "true"}, **asked).path
    found, run = evaluate(path, weights=which, device="cpu"), Run.open(path)
    origin = ("starting_weights", "opendg", "commit", "command", "created", "machine", "versions")
    for name in ("method", "settings", "backbone", "recipe", "seed", "notes", *origin):
        assert found[name] == run.config[name]
    for name in ("dataset", "sources", "known", "unknown"):
        assert found[name] == run.config["protocol"][name]
    assert (found["protocol"], found["target"]) == (run.manifest["protocol_id"], "neon,wood")
    selection = {"averaged": "averaged weights (over 0.5 of the run)", "selected": SELECTIONS["last"]}[which]
    assert (found["weights"], found["selection"]) == (which, selection)
    target = Predictions.load(run.target_file(which))
    assert (found["n_known"], found["n_unknown"]) == (72, 24)
    assert found["acc"] == pytest.approx((target.predicted == target.label).sum() / 72)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"scores": 3}', '{"scores": {"no such score": {}}}'])
def test_what_cannot_be_read_from_an_earlier_record_is_passed_over(run: Path, text: str) -> None:
    (run / "evaluation-selected.json").write_text(text)
    assert list(evaluate(run, scores="energy", weights="selected", device="cpu")["scores"]) == ["energy"]
    assert list(record(run)["scores"]) == ["energy"]


@pytest.mark.parametrize("files", [{}, {"train": "other"}, {"train": "", "val": "", "test-known": "", "more": ""}])
def test_a_manifest_that_tells_too_little_lets_nothing_pass(run: Path, files: dict[str, str]) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
    with pytest.raises(OpenDGError, match="The train images differ from those of the run"):
        evaluate(run, device="cpu")


@pytest.mark.parametrize("part", ["train", "val", "test-known", "test-unknown"])
def test_other_images_are_refused_in_every_part(run: Path, part: str) -> None:
    manifest = json.loads((run / "manifest.json").read_text())
    there, manifest["images"][part], manifest["files"][part] = manifest["images"][part], 999, "0" * 64
    (run / "manifest.json").write_text(json.dumps(manifest))
    hint = "train anew" if part.startswith("test") else "check --root"
    sentence = f"The {part} images differ from those of the run .*{there} found, 999 expected.*: .*{hint}"
    with pytest.raises(OpenDGError, match=sentence):
        evaluate(run, device="cpu")


def test_a_record_names_the_images_that_could_not_be_read(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=6)
    run = opendg.train("erm", str(tree), out=tmp_path / "whole", on_bad_image="skip", **quick(iterations=2)).path
    assert evaluate(run, device="cpu")["skipped"] == {"source": [], "target": []}
    for name in ("ink/bar/002.png", "wood/dot/001.png", "wood/ring/000.png"):
        (tree / name).write_bytes(b"torn")
    run = opendg.train("erm", str(tree), out=tmp_path / "torn", on_bad_image="skip", **quick(iterations=2)).path
    evaluate(run, device="cpu")
    found = json.loads((run / "evaluation-selected.json").read_text())
    assert found["skipped"] == {"source": ["ink/bar/002.png"], "target": ["wood/dot/001.png", "wood/ring/000.png"]}
    assert found["n_known"] + found["n_unknown"] == 4 * 6 - 2


def test_a_broken_target_image_can_be_left_out_after_training(tmp_path: Path) -> None:
    """Training does not open the target, so it is only now that anybody knows."""
    tree = write_tree(tmp_path / "signs", each=6)
    (tree / "wood/dot/001.png").write_bytes(b"torn")
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=2)).path
    with pytest.raises(OpenDGError, match="--on-bad-image skip"):
        evaluate(run, device="cpu")
    found = evaluate(run, device="cpu", on_bad_image="skip")
    assert (found["n_known"], found["skipped"]["target"]) == (17, ["wood/dot/001.png"])
    with pytest.raises(OpenDGError, match="no --on-bad-image 'ignore'"):
        evaluate(run, device="cpu", on_bad_image="ignore")


def test_data_that_have_moved_are_asked_for(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=6)
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=2)).path
    tree.rename(tmp_path / "elsewhere")
    with pytest.raises(OpenDGError, match="The images of the run are no longer in .*signs.: give .* with --root"):
        evaluate(run, device="cpu")
    with pytest.raises(OpenDGError, match="no score 'enregy'"):  # told first: looking for images may take long
        evaluate(run, scores="enregy", device="cpu")
    with pytest.raises(OpenDGError, match="no device 'gpu'"):
        evaluate(run, device="gpu", root=tmp_path / "elsewhere")
    assert evaluate(run, device="cpu", root=tmp_path / "elsewhere")["n_known"] == 18


@pytest.mark.parametrize("broken", ["known", "unknown"])
def test_a_target_of_which_one_side_is_broken(tmp_path: Path, broken: str) -> None:
    """Without unknown images there is still an accuracy, without known ones there is nothing."""
    tree = write_tree(tmp_path / "signs", each=6)
    for file in (tree / "wood").rglob("*.png"):
        if (file.parent.name == "ring") is (broken == "unknown"):
            file.write_bytes(b"torn")
    run = opendg.train("erm", str(tree), out=tmp_path / "run", on_bad_image="skip", **quick(iterations=2)).path
    if broken == "unknown":
        found = evaluate(run, device="cpu")
        assert (found["n_known"], found["n_unknown"]) == (18, 0)
        assert found["skipped"]["target"] == [f"wood/ring/{number:03d}.png" for number in range(6)]
        assert found["scores"]["cls"]["acc"] == found["acc"]
        assert found["scores"]["cls"]["oscr"] is None
    else:
        with pytest.raises(OpenDGError, match="Every target image of a known class is broken"):
            evaluate(run, device="cpu")
        assert not list(run.glob("evaluation-*")) + list(run.glob("target-*"))
