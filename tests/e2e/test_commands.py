"""The commands as a user has them: train, evaluate, predict, the lists, data check; for people and for machines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image

from opendg.cli import app
from opendg.deploy.recognizer import load
from opendg.predictions import Predictions
from tests.e2e.conftest import Command
from tests.tiny import flags, picture, write_tree


def test_from_images_to_a_table(opendg: Command, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    said = opendg("train", "medic", "--data", tree, *flags(average_over=0.5), "--out", out)
    assert said.code == 0
    assert said.out == f"Run: {out}\nNext: opendg evaluate {out}\n"
    assert "medic -> wood: 6/6" in said.err
    assert sorted(path.name for path in out.iterdir()) == [
        "averaged.safetensors", "log.jsonl", "manifest.json", "run.json", "source-val-averaged.npz",
        "source-val-selected.npz", "weights.safetensors",
    ]  # fmt: skip
    said = opendg("evaluate", out, "--figure", tmp_path / "oscr.png")
    assert said.code == 0
    for word in ("bcls", "energy", "OSCR", "H@oracle10", "H@source95", "36 known and 12 unknown", "averaged weights"):
        assert word in said.out
    assert said.out.endswith(f"Figure: {tmp_path / 'oscr.png'}, {tmp_path / 'oscr.svg'}\n")
    assert {"evaluation-averaged.json", "target-averaged.npz"} <= {path.name for path in out.iterdir()}
    with Image.open(tmp_path / "oscr.png") as figure:
        assert figure.width > 300
    said = opendg("predict", out, tree / "wood" / "ring")
    assert said.code == 0
    assert said.out.count(".png") == 12


def test_train_answers_machines(opendg: Command, tree: Path, tmp_path: Path) -> None:
    said = opendg("train", "erm", "--data", tree, *flags(iterations=2), "--out", tmp_path / "run", "--json")
    assert json.loads(said.out) == {"run": str(tmp_path / "run")}
    said = opendg("train", "erm", "--data", tree, *flags(), "--out", tmp_path / "second", "--json", "--evaluate")
    written = json.loads((tmp_path / "second" / "evaluation-selected.json").read_text())
    assert json.loads(said.out) == {"run": str(tmp_path / "second"), "record": written}
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["command"].startswith("opendg train erm --data")
    assert config["protocol"]["unknown"] == ["ring"]


def test_many_runs_of_one_command_are_shown_together(opendg: Command, tree: Path, tmp_path: Path) -> None:
    asked = [word for word in flags(iterations=2) if word not in ("--target", "wood")]
    words = ["--each-target", "ink,wood", "--seeds", "0,1", "--evaluate", "--out", tmp_path / "runs"]
    said = opendg("train", "erm", "--data", tree, *asked, *words)
    assert said.code == 0
    assert "erm: 4 runs: 8/8" in said.err
    runs = [tmp_path / "runs" / f"{target}-{seed}" for seed in (0, 1) for target in ("ink", "wood")]
    told = "".join(f"Run: {run}\n" for run in runs)
    assert said.out.endswith(f"{told}Next: opendg report {tmp_path / 'runs'} --out report.html\n")
    accuracies = [json.loads((run / "evaluation-selected.json").read_text())["acc"] for run in runs]
    row = next(line.split() for line in said.out.splitlines() if line.strip().startswith("mean"))
    assert float(row[1]) == pytest.approx(100 * sum(accuracies) / 4, abs=0.01)


def test_the_same_command_goes_on_with_many_runs(opendg: Command, tree: Path, tmp_path: Path) -> None:
    asked = [word for word in flags(iterations=2) if word not in ("--target", "wood")]
    words = ["train", "erm", "--data", tree, *asked, "--each-target", "ink,wood", "--seeds", "0,1"]
    words += ["--out", tmp_path / "runs"]
    assert opendg(*words).code == 0
    runs = [tmp_path / "runs" / f"{target}-{seed}" for seed in (0, 1) for target in ("ink", "wood")]
    shutil.rmtree(runs[1])
    (runs[2] / "weights.safetensors").unlink()
    before = (runs[0] / "weights.safetensors").stat().st_mtime_ns
    said = opendg(*words, "--evaluate")
    assert said.code == 0
    assert "Kept, as they are finished: ink-0, wood-1.\nTaken up again: ink-1.\n" in said.err
    assert "erm: 4 runs: 8/8" in said.err
    assert all((run / "evaluation-selected.json").exists() for run in runs)
    assert (runs[0] / "weights.safetensors").stat().st_mtime_ns == before
    record(opendg, runs[0], "--score", "cls,energy,knn")
    said = opendg(*words, "--evaluate")
    assert "Kept, as they are finished: ink-0, wood-0, ink-1, wood-1." in said.err
    assert said.out.count("Run: ") == 4
    assert "OSCR energy" in said.out
    assert "OSCR knn" not in said.out, "one record alone has it"


def test_many_runs_answer_machines_with_a_list(opendg: Command, tree: Path, tmp_path: Path) -> None:
    asked = [*flags(iterations=2), "--seeds", "3", "--out", tmp_path / "runs", "--json"]
    run = str(tmp_path / "runs" / "wood-3")
    assert json.loads(opendg("train", "erm", "--data", tree, *asked).out) == [{"run": run}]
    said = opendg("train", "erm", "--data", tree, *asked, "--evaluate")
    written = json.loads((tmp_path / "runs" / "wood-3" / "evaluation-selected.json").read_text())
    assert json.loads(said.out) == [{"run": run, "record": written}]
    assert all("images" in line for line in said.err.splitlines()), "bars of images that are read for the first time"


def test_seeds_that_are_no_numbers(opendg: Command, tree: Path, tmp_path: Path) -> None:
    said = opendg("train", "erm", "--data", tree, *flags(), "--seeds", "0,one", "--out", tmp_path / "runs")
    assert said.code == 2
    assert said.err == "Error: --seeds 0,one is not a list of whole numbers: try --seeds 0,1,2.\n"


def test_one_run_is_evaluated_at_once(opendg: Command, tree: Path, tmp_path: Path) -> None:
    said = opendg("train", "erm", "--data", tree, *flags(iterations=2), "--evaluate", "--out", tmp_path / "run")
    assert said.code == 0
    assert "H@oracle10" in said.out
    assert (tmp_path / "run" / "evaluation-selected.json").exists()
    every = record(opendg, tmp_path / "run", "--score", "*")["scores"]
    assert {"cls", "energy", "knn", "openmax"} <= set(every)
    assert "bcls" not in every, "it needs the one-vs-all head"


def record(opendg: Command, run: Path, *words: str) -> dict[str, Any]:
    said = opendg("evaluate", run, "--json", *words)
    assert said.code == 0
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_a_record_says_what_it_saw(opendg: Command, trained: Path) -> None:
    found = record(opendg, trained)
    assert (found["dataset"], found["target"], found["method"], found["seed"]) == ("signs", "wood", "medic", 0)
    assert found["protocol"].startswith("signs:shared:3+1:")
    assert found["selection"] == "averaged weights (over 0.5 of the run)"
    assert (found["n_known"], found["n_unknown"]) == (36, 12)
    assert found["acc"] > 0.6
    assert list(found["scores"]) == ["cls", "bcls", "energy", "max-logit"]
    for name, values in found["scores"].items():
        assert values["acc"] == found["acc"]
        assert 0 <= values["oscr"] <= values["auroc"] <= 1
        assert "target scores" in values["h@oracle10"]["saw"]
        assert "source validation" in values["h@source95"]["saw"]
        assert (values["h@0.5"] is not None) == (name == "bcls")
    assert json.loads((trained / "evaluation-averaged.json").read_text()) == found


def test_the_weights_can_be_chosen(opendg: Command, trained: Path) -> None:
    found = [record(opendg, trained, "--weights", which) for which in ("selected", "averaged")]
    assert [one["selection"] for one in found] == ["the last iterate", "averaged weights (over 0.5 of the run)"]
    assert found[0]["scores"] != found[1]["scores"]


def test_evaluating_twice_gives_the_same(opendg: Command, trained: Path) -> None:
    first = record(opendg, trained), (trained / "target-averaged.npz").read_bytes()
    assert (record(opendg, trained), (trained / "target-averaged.npz").read_bytes()) == first


def test_per_image_predictions_are_those_of_the_target(opendg: Command, trained: Path, tree: Path) -> None:
    found = record(opendg, trained)
    target = Predictions.load(trained / "target-averaged.npz")
    assert set(target.keys) == {str(path.relative_to(tree)) for path in (tree / "wood").rglob("*.png")}
    assert set(target.domain) == {"wood"}
    names = np.array(["bar", "cross", "dot", "-"])  # -1, unknown, is the last
    assert [key.split("/")[1].replace("ring", "-") for key in target.keys] == list(names[target.label])
    assert found["acc"] == target.correct[target.known].mean()


def test_chosen_scores_and_fitted_ones(opendg: Command, trained: Path, tmp_path: Path) -> None:
    """In a copy without a record: what an earlier evaluation has stays."""
    run = shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation-*"))
    assert list(record(opendg, run, "--score", "energy,m*")["scores"]) == ["energy", "max-logit", "mahalanobis"]


def test_a_closed_set_has_no_open_set_metrics(opendg: Command, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert opendg("train", "erm", "--data", tree, *flags(unknown=None, iterations=2), "--out", out).code == 0
    found = record(opendg, out)
    assert (found["n_known"], found["n_unknown"]) == (48, 0)
    assert found["scores"]["cls"]["oscr"] is None
    assert found["acc"] == found["scores"]["cls"]["acc"]
    said = opendg("evaluate", out)
    assert said.code == 0
    assert f"{100 * found['acc']:.2f}" in said.out
    assert "Without unknown images there is Acc alone" in said.out
    assert "H@oracle10 chose" not in said.out
    said = opendg("evaluate", out, "--figure", tmp_path / "oscr.png")
    assert said.code == 2
    assert "unknown" in said.err


def test_a_figure_leaves_json_alone(opendg: Command, trained: Path, tmp_path: Path) -> None:
    said = opendg("evaluate", trained, "--figure", tmp_path / "oscr", "--json")
    assert "scores" in json.loads(said.out)
    assert said.err.endswith(f"Figure: {tmp_path / 'oscr.png'}, {tmp_path / 'oscr.svg'}\n")


def test_a_target_of_two_domains(opendg: Command, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert opendg("train", "erm", "--data", tree, *flags(target="ink,wood", iterations=2), "--out", out).code == 0
    found = record(opendg, out)
    assert (found["target"], found["sources"], found["n_known"]) == ("ink,wood", ["chalk", "neon"], 72)


def test_data_that_have_moved(opendg: Command, tmp_path: Path) -> None:
    tree, out = write_tree(tmp_path / "here" / "signs", each=4), tmp_path / "run"
    opendg("train", "erm", "--data", tree, *flags(iterations=2), "--out", out)
    first = record(opendg, out)
    (tmp_path / "here").rename(tmp_path / "there")
    assert record(opendg, out, "--root", str(tmp_path / "there" / "signs"))["scores"] == first["scores"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder with good images of several kinds, a broken one and a text."""
    folder = tmp_path / "photos"
    (folder / "deep" / "er").mkdir(parents=True)
    for number, name in enumerate(("bar", "cross", "dot")):
        Image.fromarray(picture("wood", name, 100 + number)).save(folder / f"{name}.png")
    large = Image.fromarray(picture("ink", "dot", 1)).resize((200, 300)).convert("L")
    large.save(folder / "deep" / "er" / "LARGE.JPG")
    (folder / "torn.png").write_bytes((folder / "bar.png").read_bytes()[:100])
    (folder / "notes.txt").write_text("no image")
    return folder


def test_predict_as_lines_of_json(opendg: Command, trained: Path, images: Path) -> None:
    for words in (["--json"], ["--format", "jsonl"]):
        said = opendg("predict", trained, images, *words)
        assert said.code == 1  # an image was broken
        rows = [json.loads(line) for line in said.out.splitlines()]
        names = [str(Path(row["image"]).relative_to(images)) for row in rows]
        assert names == ["bar.png", "cross.png", "deep/er/LARGE.JPG", "dot.png", "torn.png"]
        assert all(set(row) == {"image", "label", "closest", "confidence", "error"} for row in rows)
        assert "torn.png" in rows[-1]["error"]
        assert (rows[-1]["label"], rows[-1]["closest"], rows[-1]["confidence"]) == ("error", "", None)
        assert said.err.count("Broken: ") == 1
        for row in rows[:-1]:
            assert row["error"] is None
            assert row["closest"] in ("bar", "cross", "dot")
            assert row["label"] in (row["closest"], "unknown")
            assert 0 <= row["confidence"] <= 1


def test_predict_as_csv_and_as_a_table(opendg: Command, trained: Path, images: Path) -> None:
    lines = [json.loads(line) for line in opendg("predict", trained, images, "--json").out.splitlines()]
    said = opendg("predict", trained, images, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [(row["image"], row["label"], row["confidence"]) for row in rows] == [
        (line["image"], line["label"], str(line["confidence"] or "")) for line in lines
    ]
    assert [row["confidence"] == "" for row in rows] == [False, False, False, False, True]
    said = opendg("predict", trained, images)
    assert said.code == 1
    assert "confidence: bcls" in said.out
    assert "95%" in said.out.replace(" %", "%")
    assert f"below {load(trained, device='cpu').threshold:.3f}" in " ".join(said.out.split())
    assert "Broken: " in said.err
    assert all(line["label"] in said.out for line in lines)
    assert "0.000" not in next(line for line in said.out.splitlines() if "torn.png" in line)


def test_predict_writes_one_format(opendg: Command, trained: Path, images: Path) -> None:
    said = opendg("predict", trained, images, "--format", "csv", "--json")
    assert said.code == 2
    assert "--json is --format jsonl, and --format csv was given too" in said.err
    assert said.out == ""


def test_predict_decides_by_the_score_that_its_help_names(opendg: Command, tree: Path, tmp_path: Path) -> None:
    help_ = " ".join(opendg("predict", "--help").out.replace("│", " ").split())
    assert "default: the method's own, and bcls in place of cls where there is a one-vs-all head" in help_
    for ova, score in (("true", "bcls"), ("false", "cls")):
        out = tmp_path / ova
        assert (
            opendg("train", "erm", "--data", tree, *flags(iterations=2), "--set", f"ova={ova}", "--out", out).code == 0
        )
        assert f"confidence: {score};" in opendg("predict", out, tree / "wood" / "ring").out


def test_predict_of_sound_images_ends_well(opendg: Command, trained: Path, tree: Path) -> None:
    assert opendg("predict", trained, tree / "ink" / "bar", "--accept", "1", "--score", "energy").code == 0


@pytest.mark.parametrize(
    ("command", "name", "keys"),
    [
        ("methods", "medic", {"title", "idea", "paper", "settings", "score", "cost"}),
        ("datasets", "pacs", {"domains", "classes", "known", "licence", "paper"}),
        ("scores", "bcls", {"title", "idea", "paper", "needs", "fitted"}),
    ],
)
def test_lists(opendg: Command, command: str, name: str, keys: set[str]) -> None:
    rows = json.loads(opendg(command, "--json").out)
    (row,) = [row for row in rows if row["name"] == name]
    assert keys <= set(row)
    assert [found["name"] for found in json.loads(opendg(command, name[:3] + "*", "--json").out)]
    said = opendg(command)
    assert said.code == 0
    assert all(row["name"] in said.out for row in rows)


def test_data_check(opendg: Command, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=2)
    said = opendg("data", "check", tree)
    assert said.code == 0
    assert "All is well." in said.out
    assert json.loads(opendg("data", "check", tree, "--json").out)["ok"]
    assert "expected" not in said.out  # no catalogue knows these data
    (tree / "ink/bar/000.png").write_bytes(b"broken")
    shutil.copy(tree / "neon/dot/001.png", tree / "wood/ring/001.png")
    said = opendg("data", "check", tree, "--json")
    assert said.code == 1
    found = json.loads(said.out)
    assert list(found["unreadable"]) == ["ink/bar/000.png"]
    assert found["duplicates"] == [["neon/dot/001.png", "wood/ring/001.png"]]
    said = opendg("data", "check", tree, "--as", "pacs")
    assert said.code == 1
    assert "The domain photo of PACS is missing." in said.out


def commands() -> list[list[str]]:
    def below(group: Any, words: list[str]) -> list[list[str]]:
        found = []
        for name, command in group.commands.items():
            inner = [*words, name]
            found += below(command, inner) if hasattr(command, "commands") else [inner]
        return found

    return below(typer.main.get_command(app), [])


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_explains_itself_with_an_example(opendg: Command, words: list[str]) -> None:
    said = opendg(*words, "--help")
    assert said.code == 0
    assert "Example: opendg " + words[0] in " ".join(said.out.split())


def start(*words: object, **more: Any) -> subprocess.Popen[str]:
    """The installed command in a process of its own, without a terminal. It hears Ctrl-C.

    Tests that run in the background of a shell are deaf to it, and what they start would be too.
    """
    command = [sys.executable, "-m", "opendg", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, preexec_fn=_hear, **more)


def _hear() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_real_thing_in_a_process_of_its_own(tree: Path, tmp_path: Path) -> None:
    """A wrong word on the way, then a run; stdout has the result alone."""
    wrong = start("train", "medik", "--data", tree, *flags(), "--out", tmp_path / "run")
    out, err = wrong.communicate(timeout=120)
    assert (wrong.returncode, out) == (2, "")
    assert err.startswith("Error: There is no method 'medik': did you mean 'medic'")
    assert err.count("\n") == 1
    right = start("train", "medic", "--data", tree, *flags(iterations=2), "--out", tmp_path / "run", "--json")
    out, err = right.communicate(timeout=120)
    assert right.returncode == 0, err
    assert json.loads(out) == {"run": str(tmp_path / "run")}
    assert "Warning" not in err


def test_predict_shows_how_far_it_is_while_rows_go_to_a_file(trained: Path, tree: Path, tmp_path: Path) -> None:
    screen, terminal = os.openpty()
    with (tmp_path / "labels.csv").open("w") as file:
        words = [sys.executable, "-m", "opendg", "predict", str(trained), str(tree / "wood"), "--format", "csv"]
        process = subprocess.Popen(words, stdout=file, stderr=terminal)
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(screen, 4096):
            shown += part
    os.close(screen)
    assert process.wait(timeout=120) == 0
    images = len(list((tree / "wood").rglob("*.png")))
    assert f"{images}/{images}" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 1 + images


def interrupted(run: Path, *words: object) -> str:
    """The last line of a training that Ctrl-C has ended after some steps."""
    process = start("train", *words)
    while not (run / "log.jsonl").exists() or not (run / "log.jsonl").stat().st_size:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_control_c_leaves_a_word_and_no_run(tree: Path, tmp_path: Path) -> None:
    words = ["medic", "--data", tree, *flags(iterations=100_000), "--out", tmp_path / "run"]
    said = interrupted(tmp_path / "run", *words)
    assert said == "Interrupted: there was no checkpoint yet, and nothing is left of the run."
    assert list(tmp_path.iterdir()) == []


def test_control_c_names_the_run_that_can_be_resumed(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["erm", "--data", tree, *flags(iterations=100_000, checkpoint_every=20), "--out", out]
    assert interrupted(out, *words) == f"Interrupted: go on with `opendg train --resume {out}`."
    assert (out / "checkpoints").is_dir()


def test_control_c_of_several_runs(tree: Path, tmp_path: Path) -> None:
    words = ["erm", "--data", tree, *flags(iterations=100_000, checkpoint_every=20), "--seeds", "0,1"]
    said = interrupted(tmp_path / "wood-0", *words, "--out", tmp_path)
    assert said == "Interrupted: the same command goes on."


def test_several_runs_without_an_unknown_class_are_shown_too(opendg: Command, tree: Path, tmp_path: Path) -> None:
    words = ["train", "erm", "--data", tree, *flags(iterations=2, unknown=None, known=4), "--seeds", "0,1"]
    said = opendg(*words, "--evaluate", "--out", tmp_path / "runs")
    assert said.code == 0, said.err
    (mean,) = [line.split() for line in said.out.splitlines() if line.split()[:1] == ["mean"]]
    assert (mean[1] != "-", mean[2:]) == (True, ["-"] * 3), "an accuracy, and no OSCR"


def test_broken_images_that_were_left_out_are_counted(opendg: Command, tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=4)
    asked = [word for word in flags(iterations=2, on_bad_image="skip") if word not in ("--target", "wood")]
    words = ["train", "erm", "--data", tree, *asked, "--each-target"]
    assert "left out" not in opendg(*words, "wood", "--out", tmp_path / "whole").err
    (tree / "ink/bar/001.png").write_bytes(b"nothing")
    said = opendg(*words, "neon,wood", "--out", tmp_path / "one")
    assert said.err.endswith("1 broken image was left out of training: ink/bar/001.png.\n")
    (tree / "ink/dot/000.png").write_bytes(b"nothing")
    said = opendg(*words, "neon,wood", "--out", tmp_path / "two", "--json")
    assert said.err.endswith("2 broken images were left out of training, the first of them ink/bar/001.png.\n")
    assert said.err.count("left out") == 1
    assert len(json.loads(said.out)) == 2
    (tree / "wood/ring/001.png").write_bytes(b"nothing")
    assert opendg(*words, "wood", "--out", tmp_path / "three").code == 0
    told = "1 broken image was left out of the evaluation: wood/ring/001.png.\n"
    assert opendg("evaluate", tmp_path / "three/wood-0", "--device", "cpu").err.endswith(told)
    assert opendg(*words, "wood", "--out", tmp_path / "three", "--evaluate").err.endswith(told)


def test_a_search_counts_the_broken_images_that_it_left_out(opendg: Command, tmp_path: Path) -> None:
    """Those of all folds, also when the search is taken up; the target is not opened, and its own are not seen."""
    tree = write_tree(tmp_path / "signs", each=6)
    for name in ("ink/bar/001.png", "neon/dot/002.png", "wood/bar/000.png"):
        (tree / name).write_bytes(b"nothing")
    words = ["tune", "erm", "--data", tree, "--target", "wood", "--unknown", "ring", "--backbone", "convnet"]
    words += ["--augment", "digits", "--batch", "2", "--iterations", "2", "--trials", "1", "--device", "cpu"]
    words += ["--on-bad-image", "skip", "--out", tmp_path / "search"]
    told = "2 broken images were left out of the search, the first of them ink/bar/001.png.\n"
    assert opendg(*words).err.endswith(told)
    assert opendg(*words, "--json").err.endswith(told)


def test_the_help_says_where_several_runs_lie(opendg: Command) -> None:
    help_ = " ".join(opendg("train", "--help").out.replace("│", " ").split())
    assert "With --each-target or --seeds, the folder of the runs TARGET-SEED; default: runs/DATA-METHOD." in help_


def test_a_reader_that_leaves_early(trained: Path, tree: Path) -> None:
    """opendg predict ... | head -1"""
    process = start("predict", trained, tree, "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["error"] is None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(timeout=60)
    process.stderr.close()
    assert "Traceback" not in err
