from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import compress, count, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file, save
from safetensors.torch import save_file

import opendg
from opendg.deploy.recognizer import Recognizer, find_images
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import predict_source
from opendg.methods.registry import METHODS
from opendg.models.backbones import build_backbone
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.scores import SCORES, make_score
from opendg.scores.base import Head
from tests.data.trees import unreadable
from tests.tiny import CLASSES, picture, quick, write_tree


@pytest.fixture(scope="module")
def recognizer(trained: Path) -> Recognizer:
    return opendg.load(trained, device="cpu")


@pytest.fixture
def moved(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run in which no score has been fitted yet."""
    run = shutil.copytree(trained, tmp_path / "run")
    for file in run.glob("score-*"):
        file.unlink()
    return run


def test_it_knows_what_it_was_trained_on(recognizer: Recognizer) -> None:
    assert recognizer.classes == ("bar", "cross", "dot")
    assert recognizer.size == (32, 32)
    assert recognizer.score.name == "bcls"
    assert not recognizer.classifier.training


def test_known_signs_are_recognised(recognizer: Recognizer, tree: Path) -> None:
    for name in recognizer.classes:
        found = recognizer.predict(sorted((tree / "ink" / name).iterdir()))
        assert [one.closest for one in found].count(name) >= 10
        assert [one.label for one in found].count(name) >= 8


def test_paths_bytes_and_arrays_are_the_same_image(recognizer: Recognizer, tree: Path) -> None:
    path = tree / "wood" / "dot" / "003.png"
    data = path.read_bytes()
    forms = [str(path), path, data, picture("wood", "dot", 3), bytearray(data), memoryview(data)]
    singles = [recognizer.predict(form) for form in forms] + [list(recognizer.stream(form)) for form in forms]
    together = recognizer.predict(forms)
    said = {(one.label, one.closest, round(one.confidence, 6)) for one in [*together, *(one for (one,) in singles)]}
    assert len(said) == 1
    assert [one.image for one in together] == [str(path), str(path), *(f"image {number}" for number in range(2, 6))]
    assert {recognizer.scores(form).shape for form in forms} == {(1,)}


def test_images_come_from_anything_that_gives_them(recognizer: Recognizer, tree: Path) -> None:
    images = sorted((tree / "ink" / "bar").iterdir())
    expected = recognizer.predict(images)
    assert len(expected) == 12
    assert recognizer.predict(tuple(images)) == recognizer.predict(dict.fromkeys(images)) == expected
    assert recognizer.predict(image for image in images) == expected
    assert list(recognizer.stream(iter(images))) == expected
    assert len(recognizer.predict((tree / "ink").glob("*/00?.png"), batch=7)) == 40
    arrays = repeat(picture("ink", "bar", 0), 5)
    assert [one.image for one in recognizer.predict(arrays, batch=2)] == [f"image {number}" for number in range(5)]
    assert recognizer.scores(iter(images)).tolist() == pytest.approx([one.confidence for one in expected], abs=1e-6)


def test_images_of_any_size_and_mode(recognizer: Recognizer, tmp_path: Path) -> None:
    image = Image.fromarray(picture("ink", "cross", 1)).resize((96, 64))
    for mode, suffix in (("RGB", "jpg"), ("L", "bmp"), ("RGBA", "png"), ("P", "tif"), ("RGB", "webp")):
        image.convert(mode).save(tmp_path / f"{mode}.{suffix}")
    found = recognizer.predict(find_images([tmp_path]))
    assert [one.error for one in found] == [None] * 5


def test_it_says_what_the_evaluation_says(recognizer: Recognizer, trained: Path, tree: Path) -> None:
    record = opendg.evaluate(trained, device="cpu")["scores"]["bcls"]
    target = Predictions.load(Run.open(trained).target_file("averaged"))
    found = recognizer.predict([tree / key for key in target.keys])
    assert [one.closest for one in found] == [recognizer.classes[number] for number in target.predicted]
    values = recognizer.score.value(recognizer.score(target))
    assert [one.confidence for one in found] == pytest.approx(values.tolist(), abs=1e-5)
    labelled = np.array([one.label != "unknown" for one in found])
    for rule, accepted in (("h@source95", labelled), ("h@0.5", values >= 0.5)):
        assert record[rule]["acc_k"] == pytest.approx((accepted & target.correct)[target.known].mean())
        assert record[rule]["acc_u"] == pytest.approx(1 - accepted[~target.known].mean())


def test_images_larger_than_those_of_training_are_read_as_in_an_evaluation(tmp_path: Path) -> None:
    """At the size of training first, of which the network sees another again."""
    tree = write_tree(tmp_path / "signs", each=6)
    for file in tree.rglob("*.png"):
        size = (320, 240) if file.is_relative_to(tree / "wood") else (40, 36)
        Image.open(file).resize(size).save(file, "JPEG")  # which is decoded at a fraction of its size
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(iterations=2))
    assert run.image_size == (36, 40)
    opendg.evaluate(run.path, device="cpu")
    target = Predictions.load(run.target_file("selected"))
    made = opendg.load(run.path, device="cpu")
    found = made.scores(tree / key for key in target.keys)
    np.testing.assert_allclose(found, made.score.value(made.score(target)), atol=1e-6)


def test_the_same_images_get_the_same_answer(recognizer: Recognizer, trained: Path, tree: Path) -> None:
    images = sorted(tree.rglob("*.png"))[:70]
    first = recognizer.predict(images)
    assert recognizer.predict(images) == first
    assert opendg.load(trained, device="cpu").predict(images) == first
    apart = np.abs(recognizer.scores(images) - recognizer.threshold) > 1e-4  # the threshold is the score of some image
    assert apart.sum() > 60
    for size in (1, 7):
        other = recognizer.predict(images, batch=size)
        assert [one.label for one in compress(other, apart)] == [one.label for one in compress(first, apart)]
        assert [one.confidence for one in other] == pytest.approx([one.confidence for one in first], abs=1e-5)


@pytest.mark.parametrize("accept", [0.3, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("score", ["bcls", "cls", "energy"])
def test_the_threshold_accepts_the_share_asked_for(trained: Path, accept: float, score: str) -> None:
    """Of the source validation images: at least so many, and with any higher threshold fewer."""
    made = opendg.load(trained, accept=accept, score=score, device="cpu")
    scores = made.score(Predictions.load(Run.open(trained).val_file("averaged")))
    assert np.mean(scores >= made._ranked_threshold) >= accept
    assert np.mean(scores > made._ranked_threshold) < accept


def test_95_percent_are_accepted_unless_said_otherwise(moved: Path) -> None:
    file, random = Run.open(moved).val_file("averaged"), np.random.default_rng(0)
    many = Predictions.load(file).take(np.zeros(100, np.int64))
    many = replace(many, ova=random.normal(size=(100, 2, 3)).astype(np.float32))
    file.write_bytes(many.pack())
    made = opendg.load(moved, device="cpu")
    assert np.mean(made.score(many) >= made._ranked_threshold) == 0.95


def test_confidences_and_threshold_are_read_alike(trained: Path, tree: Path) -> None:
    images = sorted(tree.rglob("*.png"))
    for score in ("bcls", "cls", "energy"):
        made = opendg.load(trained, accept=0.5, score=score, device="cpu")
        found = made.predict(images)
        sure = [one for one in found if abs((one.confidence or 0) - made.threshold) > 1e-9]
        assert {one.label == "unknown" for one in sure} == {True, False}
        assert all((one.label == "unknown") == ((one.confidence or 0) < made.threshold) for one in sure)


def test_images_surer_than_a_probability_can_say_are_told_apart(moved: Path, tree: Path) -> None:
    run = Run.open(moved)
    file, weights = run.val_file("averaged"), run.load_weights("averaged")
    larger = {name: tensor * 1000 for name, tensor in weights.items() if name.startswith("head.ova.")}
    save_file(weights | larger, run.weight_file("averaged"))
    val = Predictions.load(file)
    assert val.ova is not None
    file.write_bytes(replace(val, ova=1000 * val.ova).pack())
    made = opendg.load(moved, accept=0.5, device="cpu")
    assert made.threshold == 1
    found = made.predict(sorted((tree / "ink").rglob("*.png")))
    assert {one.label != "unknown" for one in found if one.confidence == 1} == {True, False}


def test_labels_follow_the_threshold(trained: Path, tree: Path) -> None:
    images = sorted((tree / "ink").rglob("*.png"))
    few, many = (opendg.load(trained, accept=accept, device="cpu") for accept in (0.05, 1.0))
    strict, lenient = few.predict(images), many.predict(images)
    assert sum(one.label == "unknown" for one in strict) > sum(one.label == "unknown" for one in lenient)
    assert [one.closest for one in strict] == [one.closest for one in lenient]
    assert all(one.label in (one.closest, "unknown") for one in strict)


def test_validation_images_themselves_are_accepted(recognizer: Recognizer, trained: Path, tree: Path) -> None:
    """From file to label: 95 % of the images that set the threshold get through it."""
    keys = Predictions.load(Run.open(trained).val_file("averaged")).keys
    known = [one.label != "unknown" for one in recognizer.predict([tree / key for key in keys])]
    assert np.mean(known) >= 0.85  # one of nine may lie on the threshold and move in the last digit


def test_scores_are_the_confidences(recognizer: Recognizer, tree: Path) -> None:
    images = sorted((tree / "wood" / "ring").iterdir())
    scores = recognizer.scores(images)
    assert scores.dtype == np.float64
    assert scores.tolist() == pytest.approx([one.confidence for one in recognizer.predict(images)], abs=1e-6)
    assert recognizer.scores(images[0]).tolist() == pytest.approx(scores[:1].tolist(), abs=1e-6)
    assert ((scores >= 0) & (scores <= 1)).all()


def test_scores_of_many_images_take_no_more_memory(
    recognizer: Recognizer, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, seen, outputs = tree / "ink" / "bar" / "000.png", list[int](), recognizer.outputs
    monkeypatch.setattr(recognizer, "outputs", lambda pixels: seen.append(len(pixels)) or outputs(pixels))
    assert recognizer.scores(repeat(image, 150)).shape == (150,)
    assert seen == [64, 64, 22]


def test_outputs_are_of_no_class_that_anybody_has_told(recognizer: Recognizer) -> None:
    assert not recognizer.outputs(picture("ink", "bar", 0)[None]).known.any()


def test_no_images_no_answers(recognizer: Recognizer) -> None:
    assert recognizer.predict([]) == []
    assert recognizer.scores([]).shape == (0,)


def test_broken_images_are_reported_and_the_rest_predicted(recognizer: Recognizer, tree: Path, tmp_path: Path) -> None:
    good = tree / "ink" / "bar" / "000.png"
    (tmp_path / "torn.png").write_bytes(good.read_bytes()[:90])
    images = [tmp_path / "torn.png", good, tmp_path / "none.png", b"", picture("ink", "bar", 0)[..., :2], tmp_path]
    found = recognizer.predict(images)
    assert [one.error is None for one in found] == [False, True, False, False, False, False]
    assert [one.label for one in found if one.error] == ["error"] * 5
    assert [one.confidence is None for one in found] == [bool(one.error) for one in found]
    assert [one.closest in recognizer.classes for one in found] == [not one.error for one in found]
    assert {one.closest for one in found if one.error} == {""}
    assert "torn.png" in str(found[0].error)
    assert found[2].error == f"{str(images[2])!r} cannot be read: No such file or directory."
    assert "must be uint8 (height, width, 3)" in str(found[4].error)
    with pytest.raises(OpenDGError, match="torn.png"):
        recognizer.scores(images)


def test_what_is_no_image_at_all_is_said_so(recognizer: Recognizer, tree: Path) -> None:
    """Nobody's mistake ends the others' predictions, or is taken for a black image."""
    good, opened = tree / "ink" / "bar" / "000.png", Image.fromarray(picture("ink", "bar", 0))
    found = recognizer.predict(["a\0b.png", None, opened, np.zeros((0, 4, 3), np.uint8), np.zeros((4, 4, 3)), good])
    expected = ["null byte", "NoneType", "Image", "(0, 4, 3)", "float64"]
    for one, words in zip(found, expected, strict=False):
        assert one.label == "error"
        assert words in str(one.error)
    assert found[-1].error is None
    with good.open("rb") as file:
        for one_thing in (opened, None, 7, file, torch.zeros(4, 4, 3)):
            (one,) = recognizer.predict(one_thing)
            assert "cannot be read" in str(one.error)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_of_no_images_is_refused(recognizer: Recognizer, tree: Path, batch: int) -> None:
    with pytest.raises(OpenDGError, match="give 1 or more"):
        recognizer.predict([tree / "ink" / "bar" / "000.png"], batch=batch)


def test_a_stream_reads_no_further_than_asked(recognizer: Recognizer, tree: Path) -> None:
    stream = recognizer.stream([tree / "ink/bar/000.png", tree / "no such file"], batch=1)
    assert next(stream).error is None
    assert "No such file" in str(next(stream).error)
    numbers = count()
    endless = recognizer.stream((tree / "ink/bar/000.png" for _ in numbers), batch=2)
    assert [next(endless).error for _ in range(5)] == [None] * 5
    assert next(numbers) == 6


def test_weights_can_be_chosen(trained: Path, tree: Path) -> None:
    images = sorted((tree / "wood").rglob("*.png"))
    found = [opendg.load(trained, weights=which, device="cpu").scores(images) for which in ("selected", "averaged")]
    assert not np.allclose(found[0], found[1])
    with pytest.raises(OpenDGError, match="choose selected or averaged"):
        opendg.load(trained, weights="best")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"accept": 0.0}, "--accept 0.0 is out of range: give a share above 0"),
        ({"accept": 1.1}, "--accept 1.1"),
        ({"score": "enregy"}, "no score 'enregy': did you mean 'energy'"),
        ({"device": "gpu"}, "no device 'gpu'"),
    ],
)
def test_what_does_not_fit_is_refused(trained: Path, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        opendg.load(trained, **options)


def test_a_run_without_the_one_vs_all_head(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(iterations=2))
    made = opendg.load(run.path, device="cpu")
    assert made.score.name == "cls"
    assert made.predict(tree / "ink" / "bar" / "000.png")[0].closest in CLASSES
    with pytest.raises(OpenDGError, match="needs a one-vs-all head .train with --set ova=true."):
        opendg.load(run.path, score="bcls", device="cpu")
    with pytest.raises(OpenDGError, match="has no averaged weights: train with --average"):
        opendg.load(run.path, weights="averaged")


def test_classes_are_named_in_the_order_of_the_manifest(moved: Path, tree: Path) -> None:
    images = sorted(tree.rglob("*.png"))
    before = opendg.load(moved, device="cpu").predict(images)
    manifest = json.loads((moved / "manifest.json").read_text())
    (moved / "manifest.json").write_text(json.dumps(manifest | {"classes": ["dot", "bar", "cross"]}))
    after = opendg.load(moved, device="cpu").predict(images)
    assert [{"bar": "dot", "cross": "bar", "dot": "cross"}[one.closest] for one in before] == [
        one.closest for one in after
    ]


def test_averaged_weights_that_were_taken_out_are_not_looked_for(moved: Path) -> None:
    (moved / "averaged.safetensors").unlink()
    plain, selected = (opendg.load(moved, weights=which, device="cpu") for which in (None, "selected"))
    assert plain.threshold == selected.threshold


def test_the_network_is_the_one_of_the_manifest(moved: Path) -> None:
    """Whatever it was asked for as, and is shown by its name's default."""
    config, manifest = (json.loads((moved / name).read_text()) for name in ("run.json", "manifest.json"))
    manifest["input"] |= {"size": [34, 38], "mean": [0.1, 0.2, 0.3]}
    (moved / "manifest.json").write_text(json.dumps(manifest))
    (moved / "run.json").write_text(json.dumps(config | {"backbone": "resnet18"}))
    backbone = opendg.load(moved, device="cpu").classifier.backbone
    assert (backbone.name, backbone.input.size, backbone.input.mean) == ("convnet", (34, 38), (0.1, 0.2, 0.3))
    assert opendg.evaluate(moved, scores="cls", device="cpu")["backbone"] == "convnet"


def test_a_score_that_looks_at_the_head_is_given_its_weights(moved: Path) -> None:
    made, run = opendg.load(moved, score="vim", device="cpu"), Run.open(moved)
    head = load_file(run.weight_file("averaged"))
    source = predict_source(run, made.classifier, made.device)
    expected = make_score("vim").fit(source, Head(head["head.linear.weight"], head["head.linear.bias"])).state()
    found = load_file(run.score_file("averaged", "vim"))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("score", [name for name, score in SCORES.items() if score.fitted])
def test_scores_that_are_fitted_are_fitted_once_and_kept(moved: Path, tree: Path, score: str) -> None:
    images = sorted((tree / "wood").rglob("*.png"))
    first = opendg.load(moved, score=score, device="cpu")
    file = moved / f"score-{score}-averaged.safetensors"
    written = file.stat().st_mtime_ns
    again = opendg.load(moved, score=score, device="cpu")
    assert file.stat().st_mtime_ns == written
    assert again.predict(images) == first.predict(images)
    record = opendg.evaluate(moved, scores=[score], device="cpu")
    assert file.stat().st_mtime_ns == written
    assert record["scores"][score]["h@source95"]["threshold"] == first.threshold


@pytest.mark.parametrize("which", ["averaged", "selected"])
def test_what_is_fitted_later_is_fitted_as_in_training(tree: Path, tmp_path: Path, which: str) -> None:
    """To what these weights say of the source training images, in the precision of training."""
    asked = quick(average_over=0.5, precision="bf16")
    run = opendg.train("openmax", data=str(tree), out=tmp_path / "run", **asked)
    file = run.score_file(which, "openmax")
    trained = load_file(file)
    for fit in (opendg.evaluate, opendg.load):
        file.unlink()
        fit(run.path, weights=which, device="cpu")
        found = load_file(file)
        assert found.keys() == trained.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, trained[name])


def test_what_the_evaluation_fitted_is_predicted_with(moved: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opendg.evaluate(moved, scores=["vim"], device="cpu")
    monkeypatch.setattr("opendg.deploy.recognizer.predict_source", None)  # nobody may ask for it
    assert opendg.load(moved, score="vim", device="cpu").predict(tree / "ink" / "bar" / "000.png")[0].error is None


def test_no_image_of_the_target_is_opened_to_fit(tmp_path: Path) -> None:
    """They are all torn: training, fitting and predicting do not notice, evaluation does."""
    tree = write_tree(tmp_path / "signs", each=6)
    for file in (tree / "wood").rglob("*.png"):
        file.write_bytes(b"torn")
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick())
    made = opendg.load(run.path, score="knn", device="cpu")
    assert made.predict(tree / "ink" / "bar" / "000.png")[0].error is None
    with pytest.raises(OpenDGError, match="wood"):
        opendg.evaluate(run.path, device="cpu")


def test_a_method_whose_own_score_is_fitted_needs_no_data(tmp_path: Path) -> None:
    """Nor the weights that it started from."""
    tree, start = write_tree(tmp_path / "signs", each=6), tmp_path / "start.safetensors"
    save_file(build_backbone("convnet").net.state_dict(), start)
    image, asked = picture("neon", "cross", 3), quick(average_over=0.5, weights=str(start))
    run = opendg.train("openmax", data=str(tree), out=tmp_path / "run", **asked)
    there = [opendg.load(run.path, weights=which, device="cpu") for which in ("averaged", "selected")]
    record = opendg.evaluate(run.path, device="cpu")
    assert record["scores"]["openmax"]["h@source95"]["threshold"] == there[0].threshold
    shutil.rmtree(tree)
    start.unlink()
    away = [opendg.load(run.path, weights=which, device="cpu") for which in ("averaged", "selected")]
    assert [one.score.name for one in away] == ["openmax", "openmax"]
    assert [one.predict(image) for one in away] == [one.predict(image) for one in there]
    with pytest.raises(OpenDGError, match="'knn' is fitted on the source training images.*evaluate .* --score knn"):
        opendg.load(run.path, score="knn", device="cpu")


@pytest.mark.parametrize("part", ["train", "val", "test-known"])
def test_a_score_is_not_fitted_on_other_images(moved: Path, part: str) -> None:
    """Those that it is not fitted on may be gone."""
    manifest = json.loads((moved / "manifest.json").read_text())
    manifest["files"][part] = "0" * 64
    (moved / "manifest.json").write_text(json.dumps(manifest))
    if part == "train":
        with pytest.raises(OpenDGError, match="could not be read .The train images differ .*--root.: `opendg evaluate"):
            opendg.load(moved, score="knn", device="cpu")
    else:
        assert opendg.load(moved, score="knn", device="cpu").score.name == "knn"


def test_a_run_that_may_not_be_written_to(moved: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OpenDGError(f"{str(path)!r} may not be written to")

    monkeypatch.setattr("opendg.runs.directory.write_atomic", refuse)
    found = opendg.load(moved, score="mahalanobis", device="cpu").predict(tree / "ink" / "bar" / "000.png")
    assert found[0].error is None
    assert not list(moved.glob("score-*"))


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (b"torn", "'knn' was fitted to cannot be read .*delete that file"),
        (save({"bank": np.ones((4, 3), np.float32), "k": np.asarray(2)}), "'knn' was fitted to does not go with these"),
        (save({"bank": np.ones((4, 256), np.float32), "k": np.asarray(9)}), "'knn' was fitted to does not go with"),
        (save({"bank": np.ones((4, 256), np.float32)}), "not the state of the score 'knn'"),
        (save({}), "not the state of the score 'knn'"),
    ],
)
def test_a_strangers_fit_is_checked(moved: Path, state: bytes, sentence: str) -> None:
    (moved / "score-knn-averaged.safetensors").write_bytes(state)
    with pytest.raises(OpenDGError, match=sentence):
        opendg.load(moved, score="knn", device="cpu")


@pytest.mark.parametrize(
    ("method", "ova", "score"),
    [("erm", "true", "bcls"), ("medic", "false", "cls")]
    + [(name, "true", METHODS[name].score) for name in ("arpl", "crossmatch", "openmax")],
)
def test_a_method_is_read_with_its_own_score(tree: Path, tmp_path: Path, method: str, ova: str, score: str) -> None:
    """Also where it has the one-vs-all head beside. Where its own is a plain one, that head is read if it is there."""
    run = opendg.train(method, data=str(tree), out=tmp_path / "run", chosen={"ova": ova}, **quick(iterations=2))
    assert opendg.load(run.path, device="cpu").score.name == score


def test_a_folder_gives_its_images_in_order(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpeg", "notes.txt", "deep/c.webp", "deep/d.tiff", ".hidden.png", ".trash/e.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.png").mkdir()
    found = find_images([tmp_path, tmp_path / "notes.txt"])
    assert [str(path.relative_to(tmp_path)) for path in found] == [
        "a.jpeg", "b.PNG", "deep/c.webp", "deep/d.tiff", "notes.txt",
    ]  # fmt: skip
    with pytest.raises(OpenDGError, match="There is no .*none.: give image files or folders"):
        find_images([tmp_path, tmp_path / "none"])


def test_pipes_are_not_waited_for_and_links_to_nothing_are_told(recognizer: Recognizer, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (one,) = recognizer.predict(find_images([tmp_path]))
    assert "No such file" in str(one.error)


@pytest.mark.parametrize("closed", [".", "deep"])
def test_a_folder_that_may_not_be_read_is_not_passed_over(closed: str) -> None:
    with TemporaryDirectory() as folder:  # which others may look into, unlike tmp_path
        root = Path(folder)
        root.chmod(0o755)
        (root / "deep").mkdir()
        for name in ("a.png", "deep/b.png"):
            (root / name).touch()
        with unreadable(root / closed), pytest.raises(OpenDGError, match="cannot be read .Permission denied."):
            find_images([root])
