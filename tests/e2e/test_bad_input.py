"""What users get wrong: one sentence on standard error, exit code 2, no traceback, nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from opendg.runs.directory import Run
from tests.e2e.conftest import Command, Said
from tests.tiny import flags, write_tree


def refused(said: Said, *parts: str) -> None:
    """One sentence with these parts, and what it asks the user to do."""
    assert said.code == 2, said
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line and not line.startswith(("Decoding", "Looking"))]
    assert len(lines) == 1, said.err
    assert lines[0].startswith("Error: ")
    assert lines[0].endswith((".", "?"))
    assert "Traceback" not in said.err
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["medik"], ["no method 'medik'", "did you mean 'medic'"]),
        (["medic", "--target", "wod"], ["no domain 'wod'", "did you mean 'wood'"]),
        (["medic", "--target", "wood,wood"], ["named twice"]),
        (["medic", "--unknown", "rinq"], ["no class 'rinq'", "did you mean 'ring'"]),
        (["medic", "--known", "bar,crss"], ["no class 'crss'", "did you mean 'cross'"]),
        (["medic", "--known", "²"], ["no class '²'"]),
        (["medic", "--known", "9"], ["--known 9 is out of range", "2 to 4"]),
        (["medic", "--backbone", "resnet19"], ["no backbone 'resnet19'", "did you mean", "'resnet18'"]),
        (["medic", "--backbone", "resnet18.tv_in2k"], ["no backbone", "'resnet18.tv_in1k'"]),
        (["medic", "--set", "alhpa=1"], ["no setting 'alhpa' of medic", "did you mean 'alpha'"]),
        (["medic", "--set", "alpha"], ["--set alpha is not of the form key=value"]),
        (["medic", "--set", "order=7"], ["order is 7 and must be one of 1, 2"]),
        (["medic", "--set", "alpha=quick"], ["--set alpha=quick does not fit: a number was expected"]),
        (["medic", "--set", "order=x"], ["--set order=x does not fit: a whole number was expected"]),
        (["medic", "--known", "bar"], ["two or more known classes, and 1 is left", "more in --known or fewer in"]),
        (["medic", "--known", "bar,ring"], ["'ring' is both known and unknown, by --known and --unknown"]),
        (["medic", "--known", "4"], ["'ring' is both known", "by --known 4 (the first by name) and --unknown"]),
        (["medic", "--target", "wood,ink,neon"], ["MEDIC needs 2 or more source domains, and 1 is left"]),
        (["medic", "--sources", "ink"], ["MEDIC needs 2 or more source domains"]),
        (["medic", "--target", "wood,ink,neon,chalk"], ["none is left to train on"]),
        (["medic", "--protocol", "daml"], ["DAML"]),
        (["medic", "--iterations", "0"], ["Error: --iterations 0 must be 1 or more."]),
        (["medic", "--batch", "0"], ["Error: --batch 0 must be 1 or more."]),
        (["medic", "--lr", "0"], ["Error: --lr 0.0 must be above 0 and finite."]),
        (["medic", "--weight-decay", "-1"], ["Error: --weight-decay -1.0 must be 0 or more and finite."]),
        (["medic", "--seed", "1", "--seeds", "0,1"], ["Give --seed or --seeds, not both"]),
        (["medic", "--checkpoint-every", "0"], ["--checkpoint-every 0 is out of range: give 1 or more"]),
        (["medic", "--optimizer", "sdg"], ["no optimiser 'sdg'", "did you mean 'sgd'"]),
        (["medic", "--schedule", "cos"], ["no schedule 'cos'", "did you mean 'cosine'"]),
        (["medic", "--augment", "photos"], ["no augmentation 'photos'", "did you mean 'photo'"]),
        (["medic", "--select", "best"], ["no selection rule 'best'"]),
        (["medic", "--device", "tpu"], ["no device 'tpu'", "auto, cpu or cuda"]),
        (["medic", "--weights", "imagenet"], ["no ImageNet weights", "--weights none"]),
        (["medic", "--weights", "there-is-none.safetensors"], ["There is no weight file"]),
        (["medic", "--on-bad-image", "ignore"], ["--on-bad-image 'ignore'", "error or skip"]),
        (["medic", "--lr", "1e20"], ["is no longer finite", "try a smaller --lr"]),
    ],
    ids=lambda value: " ".join(value[1:]) if value[0] == "medic" else value[0],
)
def test_train_with_wrong_words(opendg: Command, tree: Path, out: Path, words: list[str], parts: list[str]) -> None:
    said = opendg("train", words[0], "--data", tree, *flags(), "--out", out, *words[1:])
    refused(said, *parts)
    assert not out.exists()
    assert not out.parent.exists() or list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ("pasc", ["'pasc' is neither a folder nor a dataset", "did you mean 'pacs'"]),
        ("no/such/folder", ["neither a folder nor a dataset", "pacs"]),
        ("pacs", ["Where PACS lies is not known", "--root", "opendg data fetch pacs"]),
        ("vlcs", ["Where VLCS lies is not known", "get it from"]),
    ],
)
def test_train_on_unknown_data(opendg: Command, out: Path, data: str, parts: list[str]) -> None:
    refused(opendg("train", "medic", "--data", data, "--target", "sketch", "--out", out), *parts)
    assert not out.parent.exists()


def test_train_with_a_root_that_does_not_hold_it(opendg: Command, tmp_path: Path, out: Path) -> None:
    said = opendg("train", "medic", "--data", "pacs", "--root", tmp_path, "--target", "sketch", "--out", out)
    refused(said, "PACS is not under", "art_painting")
    said = opendg("train", "medic", "--data", "pacs", "--root", tmp_path / "none", "--target", "sketch", "--out", out)
    refused(said, "There is no folder")


@pytest.mark.parametrize("command", ["train", "tune"])
def test_without_what_it_needs(opendg: Command, tree: Path, command: str) -> None:
    """What is missing is named, and no more."""
    hint = f"nothing to {command}: try `opendg {command}"
    refused(opendg(command), f"Without a method, --data and --target there is {hint} medic")
    refused(opendg(command, "erm"), f"Without --data and --target there is {hint} erm")
    refused(opendg(command, "medic", "--target", "wood"), f"Without --data there is {hint} medic")
    said = opendg(command, "medic", "--data", tree)
    refused(said, "--target is missing: give a domain of signs (chalk, ink, neon, wood), or --each-target all.")


def test_all_targets_are_checked_before_the_first_is_trained(opendg: Command, tmp_path: Path, out: Path) -> None:
    """A class that one domain alone has is known to none of the runs that it is the target of."""
    tree = write_tree(tmp_path / "signs", classes=("bar", "cross", "dot"), each=3)
    write_tree(tree, domains=["wood"], classes=["ring"], each=3)
    asked = [word for word in flags(unknown="dot") if word not in ("--target", "wood")]
    said = opendg("train", "erm", "--data", tree, *asked, "--each-target", "all", "--evaluate", "--out", out)
    refused(said, "With target wood no source domain", "known class 'ring'", "with --unknown dot,ring.")
    assert not out.exists()


def test_a_run_in_the_place_of_a_file(opendg: Command, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("mine")
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", tmp_path / "labels.csv")
    refused(said, "labels.csv' is a file, and a run is a directory: choose another --out.")
    assert (tmp_path / "labels.csv").read_text() == "mine"


def test_tune_of_no_trials(opendg: Command, tree: Path, tmp_path: Path) -> None:
    """Said before the search that lies in the folder is looked at."""
    (tmp_path / "tune.json").write_text("{}")
    (tmp_path / "trials.json").write_text("[{}]")
    words = ["--target", "wood", "--backbone", "convnet", "--out", tmp_path, "--trials", "0"]
    refused(opendg("tune", "erm", "--data", tree, *words), "--trials 0 is out of range: give 1 or more.")
    refused(opendg("tune", "erm", "medic", "--data", tree, *words), "of one method, and erm and medic were given")


def test_targets_that_are_named_in_two_ways(opendg: Command, tree: Path, out: Path) -> None:
    said = opendg("train", "erm", "--data", tree, *flags(), "--each-target", "ink", "--out", out)
    refused(said, "Give --target or --each-target, not both")
    assert not out.exists()


def test_an_empty_folder(opendg: Command, tmp_path: Path, out: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = opendg("train", "medic", "--data", tmp_path / "empty", *flags(), "--out", out)
    refused(said, "holds no images", "DOMAIN/CLASS/IMAGE")
    refused(opendg("data", "check", tmp_path / "empty"), "holds no images")


def test_a_domain_without_images(opendg: Command, tmp_path: Path, out: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=2)
    for path in (tree / "neon").rglob("*.png"):
        path.unlink()
    refused(opendg("train", "medic", "--data", tree, *flags(), "--out", out), "The domain neon", "has no images")


def test_a_broken_image(opendg: Command, tmp_path: Path, out: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=3)
    (tree / "ink/bar/001.png").write_bytes(b"nothing")
    said = opendg("train", "medic", "--data", tree, *flags(), "--out", out)
    refused(said, "The image ink/bar/001.png is broken", "--on-bad-image skip")
    assert not out.exists()


@pytest.mark.parametrize(
    ("tensors", "parts"),
    [
        ({"0.0.weight": torch.zeros(64, 1, 3, 3)}, ["do not fit 'convnet': 0.0.weight is (64, 1, 3, 3)"]),
        ({"conv1.weight": torch.zeros(64, 3, 7, 7)}, ["do not fit 'convnet': 8 of 8 tensors are missing"]),
        (None, ["is not a readable safetensors file"]),
    ],
)
def test_weights_of_the_wrong_shape(
    opendg: Command, tree: Path, tmp_path: Path, out: Path, tensors: dict[str, torch.Tensor] | None, parts: list[str]
) -> None:
    file = tmp_path / "weights.safetensors"
    if tensors is None:
        file.write_bytes(b"pickled?")
    else:
        save_file(tensors, file)
    refused(opendg("train", "erm", "--data", tree, *flags(weights=file), "--out", out), *parts)
    assert not out.exists()


def test_a_run_directory_that_exists(opendg: Command, tree: Path, out: Path) -> None:
    out.mkdir(parents=True)
    (out / "precious").write_text("mine")
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", out)
    refused(said, "exists already: choose another --out")
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_resume_of_a_finished_run(opendg: Command, trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    refused(opendg("train", "--resume", trained), "is finished", "opendg evaluate")
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_lanes_of_a_single_run(opendg: Command, tree: Path, out: Path) -> None:
    said = opendg("train", "erm", "--data", tree, *flags(), "--lanes", "3", "--out", out)
    refused(said, "--lanes would be without effect", "there is one run", "--each-target or --seeds", "leave it out")
    assert not out.exists()


def test_resume_with_words_that_it_would_not_heed(opendg: Command, trained: Path, tmp_path: Path) -> None:
    half = shutil.copytree(trained, tmp_path / "half")
    (half / "weights.safetensors").unlink()
    words = ["--iterations", "9000", "--lr", "5", "--track", "wandb", "--no-compile", "--out", tmp_path / "x"]
    named = "Error: medic, --iterations, --lr, --compile, --track and --out would be without effect"
    refused(opendg("train", "medic", "--resume", half, *words), named, "leave them out")
    refused(opendg("train", "--resume", half, "--seed", "0"), "--seed would be without effect", "leave it out")
    refused(opendg("train", "--resume", half, "--devices", "3"), "was started on 1 device", "--devices 1")
    allowed = ["--device", "cpu", "--devices", "1", "--evaluate", "--json", "--root", Run.open(half).config["data"]]
    assert opendg("train", "--resume", half, *allowed).code == 0


def test_resume_of_what_is_no_run(opendg: Command, tree: Path, tmp_path: Path) -> None:
    for path in (tree, tmp_path, tmp_path / "nothing", tree / "ink/bar/000.png"):
        refused(opendg("train", "--resume", path), "is not a run directory")


def test_resume_of_a_run_made_elsewhere(opendg: Command, trained: Path, tmp_path: Path) -> None:
    """Another format, or other data behind the same names."""
    foreign = shutil.copytree(trained, tmp_path / "foreign")
    (foreign / "weights.safetensors").unlink()
    text = (foreign / "run.json").read_text()
    (foreign / "run.json").write_text(text.replace("opendg-run-1", "opendg-run-0"))
    refused(opendg("train", "--resume", foreign), "is not a run of this version")
    other = write_tree(tmp_path / "signs", each=5)
    (foreign / "run.json").write_text(
        text.replace(str(trained), "").replace('"data": "', f'"data": "{other}", "was": "')
    )
    refused(opendg("train", "--resume", foreign), "are not those that", "put them back")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_run_that_is_not_finished(opendg: Command, trained: Path, tree: Path, tmp_path: Path, command: str) -> None:
    half = shutil.copytree(trained, tmp_path / "half")
    (half / "weights.safetensors").unlink()
    said = opendg(command, half, *([tree / "ink"] if command == "predict" else []))
    refused(said, "is not finished", "opendg train --resume")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--score", "blcs"], ["no score 'blcs'", "did you mean 'bcls'"]),
        (["--weights", "best"], ["no weights 'best'", "selected or averaged"]),
        (["--device", "cuda"], ["No CUDA device", "--device cpu"]),
        (["--root", "nowhere"], ["are not in 'nowhere': give their folder with --root"]),
    ],
)
def test_evaluate_with_wrong_words(opendg: Command, trained: Path, words: list[str], parts: list[str]) -> None:
    if words[1] == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    refused(opendg("evaluate", trained, *words), *parts)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("oscr.jpg", ["'oscr.jpg' ends in .jpg", ".png, .svg or nothing"]),
        ("oscr.PNG", ["'oscr.PNG' ends in .PNG"]),
        ("none/oscr.png", ["There is no folder", "none'"]),
    ],
)
def test_a_figure_that_could_not_be_drawn_is_refused_at_once(
    opendg: Command, trained: Path, tmp_path: Path, name: str, parts: list[str]
) -> None:
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*", "target-*"))
    refused(opendg("evaluate", run, "--figure", tmp_path / name), *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not list(run.glob("evaluation-*"))


def test_evaluate_of_what_is_no_run(opendg: Command, tmp_path: Path) -> None:
    refused(opendg("evaluate", tmp_path), "is not a run directory")
    gone = tmp_path / "gone"
    refused(opendg("evaluate", gone, "--figure", gone / "oscr.png"), "gone' is not a run directory")


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_a_folder_of_runs(opendg: Command, trained: Path, tree: Path, tmp_path: Path, command: str) -> None:
    words = [tree / "ink"] if command == "predict" else []
    for name, count in (("wood-0", "1 run,"), ("ink-0", "2 runs,")):
        shutil.copytree(trained, tmp_path / name)
        hint = f"it holds {count} give one of them, such as {tmp_path / name}."
        refused(opendg(command, tmp_path, *words), "is not a run directory: ", hint)


def test_report_of_a_run_that_is_not_finished(opendg: Command, trained: Path, tmp_path: Path) -> None:
    half = shutil.copytree(trained, tmp_path / "half", ignore=shutil.ignore_patterns("evaluation-*", "target-*"))
    said = opendg("report", tmp_path, "--out", tmp_path / "page.html")
    refused(said, f"No record was found, as half is not evaluated yet: try `opendg evaluate {half}`.")
    (half / "weights.safetensors").unlink()
    said = opendg("report", tmp_path, "--out", tmp_path / "page.html")
    refused(said, f"No record was found, as half is not finished: go on with `opendg train --resume {half}`.")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["methods", "zz*"], "There is no method 'zz*': expected one of: medic"),
        (["methods", "medik", "--json"], "There is no method 'medik': did you mean 'medic'"),
        (["datasets", "zz*"], "There is no dataset 'zz*': expected one of: "),
        (["scores", "zz*"], "There is no score 'zz*': expected one of: "),
        (["reproduce", "pacs"], "There is no plan 'pacs': did you mean 'pacs-resnet18' or 'pacs-resnet50' or "),
    ],
)
def test_names_that_there_are_not(opendg: Command, words: list[str], sentence: str) -> None:
    refused(opendg(*words), sentence)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--score", "blcs"], ["no score 'blcs'"]),
        (["--accept", "0"], ["--accept 0.0 is out of range"]),
        (["--accept", "nan"], ["--accept nan"]),
        (["--format", "xml"], ["no format 'xml'", "table, csv or jsonl"]),
    ],
)
def test_predict_with_wrong_words(
    opendg: Command, trained: Path, tree: Path, words: list[str], parts: list[str]
) -> None:
    refused(opendg("predict", trained, tree / "ink", *words), *parts)


def test_predict_without_images(opendg: Command, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").touch()
    refused(opendg("predict", trained, tmp_path), "No image was found in", "folders that hold .jpg, .jpeg")


def test_predict_the_wrong_way_round(opendg: Command, trained: Path, tree: Path) -> None:
    refused(opendg("predict", tree, trained), f"{str(tree)!r} is not a run")


def test_predict_of_what_is_not_there(opendg: Command, tree: Path, tmp_path: Path) -> None:
    """Said before the run is opened, which would be refused too."""
    said = opendg("predict", tmp_path, tree / "ink", "nofile.jpg")
    refused(said, "There is no 'nofile.jpg': give image files or folders.")


def test_evaluate_after_the_data_have_changed(opendg: Command, tmp_path: Path) -> None:
    tree, out = write_tree(tmp_path / "signs", each=4), tmp_path / "run"
    assert opendg("train", "erm", "--data", tree, *flags(iterations=2), "--out", out).code == 0
    image = tree / "wood/bar/000.png"
    kept = image.read_bytes()
    image.write_bytes(kept + b"\0")
    refused(opendg("evaluate", out), "The test-known images differ from those of the run", "12 found, 12 expected")
    image.unlink()
    refused(opendg("evaluate", out), "The test-known images differ from those of the run", "11 found, 12 expected")
    shutil.rmtree(tree / "wood" / "ring")
    image.write_bytes(kept)
    refused(opendg("evaluate", out), "The test-unknown images", "0 found, 4 expected")
    for domain in ("chalk", "ink", "neon"):
        shutil.rmtree(tree / domain / "ring")
    refused(opendg("evaluate", out), "no class 'ring' in signs")
    shutil.rmtree(tree)
    refused(opendg("evaluate", out), "are no longer in")
    assert not list(out.glob("target-*")) + list(out.glob("evaluation-*"))


def test_debug_shows_the_traceback(opendg: Command, tmp_path: Path) -> None:
    from opendg.errors import OpenDGError

    with pytest.raises(OpenDGError):
        opendg("--debug", "evaluate", tmp_path)
