"""Training from top to bottom: what is opened, what is logged, what is left behind."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import opendg
from opendg.data.catalog import DATASETS
from opendg.data.tree import scan
from opendg.errors import OpenDGError
from opendg.methods.erm import ERM
from opendg.models.backbones import build_backbone
from opendg.predictions import Predictions
from opendg.protocol import make_protocol
from opendg.runs.directory import Run
from opendg.training.devices import fits
from opendg.training.survey import SourceSurvey
from opendg.training.train import _or_nothing, start, take_up
from tests.data.trees import grid, write
from tests.runs.test_directory import MANIFEST
from tests.tiny import quick, write_tree
from tests.training.parts import advance, make_parts, stop

LISTENING: list[list[str]] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if LISTENING and event == "open" and isinstance(arguments[0], (str, Path)):
        LISTENING[-1].append(str(arguments[0]))


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The files that this process opens meanwhile. (A hook cannot be taken back, so there is one for all.)"""
    if not hasattr(sys, "_opendg_listens"):
        sys.addaudithook(listen)
        sys._opendg_listens = True  # type: ignore[attr-defined]
    LISTENING.append([])
    try:
        yield LISTENING[-1]
    finally:
        LISTENING.pop()


@pytest.mark.parametrize("method", ["medic", "erm"])
def test_the_target_is_never_loaded(tmp_path: Path, method: str) -> None:
    """Its images are all broken, none of its files is opened, and training succeeds; evaluation then fails."""
    tree = write_tree(tmp_path / "signs", each=6)
    target = sorted((tree / "wood").rglob("*.png"))
    for path in target:
        path.write_bytes(b"no image")
    asked = quick(select="source-accuracy", select_after=0.0, average_over=0.5, checkpoint_every=2)
    with opened_files() as opened:
        run = opendg.train(method, data=str(tree), out=tmp_path / "run", **asked)
    assert run.finished
    assert not {str(path) for path in target} & set(opened)
    assert {str(path) for path in (tree / "ink").rglob("*.png")} <= set(opened)
    keys = Predictions.load(run.val_file("selected")).keys
    assert {key.split("/")[0] for key in keys} == {"chalk", "ink", "neon"}
    assert {key.split("/")[1] for key in keys} == {"bar", "cross", "dot"}
    with pytest.raises(OpenDGError, match="wood/bar/000.png is broken"):
        opendg.evaluate(run.path, device="cpu")


def test_unknown_classes_of_the_sources_are_not_trained_on(tmp_path: Path) -> None:
    """The run is the same to the last bit whatever the unknown images of the source domains show."""
    trees = [write_tree(tmp_path / name / "signs", each=6) for name in "ab"]
    for path in (trees[1] / "ink" / "ring").iterdir():
        path.write_bytes((trees[1] / "neon" / "dot" / path.name).read_bytes())
    runs = [opendg.train("medic", data=str(tree), out=tree.parent / "run", **quick()) for tree in trees]
    first, second = (run.load_weights("selected") for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_log_holds_means_and_the_last_step(tree: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int, dict[str, float]]] = []
    asked = quick(iterations=52, batch=1, schedule="cosine")
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", report=lambda *told: seen.append(told), **asked)
    loop = make_parts(tree, "erm", **asked)
    expected = [
        {"step": 50, "losses": advance(loop, 50).losses(50), "lr": loop.rate(49)},
        {"step": 52, "losses": advance(loop, 2).losses(2), "lr": loop.rate(51)},
    ]
    assert run.read_log() == expected
    assert seen == [(entry["step"], 52, entry["losses"]) for entry in expected]


@pytest.mark.parametrize(
    ("asked", "meant"), [({"iteratons": 10}, "iterations"), ({"devise": "cpu"}, "device"), ({"unkown": []}, "unknown")]
)
def test_a_misspelt_argument_is_refused(tmp_path: Path, asked: dict[str, Any], meant: str) -> None:
    """Before the data are looked for."""
    sentence = f"There is no argument '{next(iter(asked))}': did you mean '{meant}'"
    with pytest.raises(OpenDGError, match=sentence):
        opendg.train("medic", str(tmp_path / "nowhere"), "wood", **asked)


def test_a_diverging_run_says_so_and_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="The loss 'ce' is no longer finite at step 6: try a smaller --lr"):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(lr=1e20))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_late_can_be_resumed(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stopped:
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(checkpoint_every=2, report=stop))
    assert stopped.value.__notes__ == [f"go on with `opendg train --resume {tmp_path / 'run'}`"]
    assert (tmp_path / "run" / "checkpoints").is_dir()
    seen: list[tuple[int, int]] = []
    assert opendg.resume(tmp_path / "run", device="cpu", report=lambda *values: seen.append(values[:2])).finished
    assert seen == [(6, 6)]


def test_the_last_checkpoint_is_the_finished_run(tree: Path, tmp_path: Path) -> None:
    with opened_files() as opened:
        run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(checkpoint_every=3))
    assert {int(found[1]) for path in opened if (found := re.search(r"step-(\d+)", path))} == {3}
    assert not run.checkpoints.exists()


def test_a_methods_own_work_is_done_before_the_first_iteration_and_after_each_interval(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on recalls what was found, and does not do it again; a network is looked at when it is done."""
    done: list[tuple[str, int]] = []
    look = SourceSurvey.val

    def val(survey: SourceSurvey) -> Predictions:
        done.append(("look", 0))
        return look(survey)

    monkeypatch.setattr(ERM, "interval", 2)
    monkeypatch.setattr(ERM, "every", lambda method, survey, classifier, state: done.append(("every", int(state.step))))
    monkeypatch.setattr(ERM, "recall", lambda method, state: done.append(("recall", int(state.step))))
    monkeypatch.setattr(SourceSurvey, "val", val)
    asked = quick(checkpoint_every=4, select="source-accuracy", select_after=0.6, report=stop)
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **asked)
    assert done == [
        ("every", 0), ("recall", 0), ("every", 2), ("recall", 2), ("every", 4), ("recall", 4), ("look", 0),
        ("look", 0),
    ]  # fmt: skip
    done.clear()
    opendg.resume(tmp_path / "run", device="cpu")
    assert done == [("recall", 4), ("look", 0), ("every", 6), ("recall", 6), ("look", 0), ("look", 0)]


def test_another_process_of_a_run_that_fails_leaves_the_run_alone(tree: Path, tmp_path: Path) -> None:
    """A rank of a data-parallel training has no say over the folder that the first one writes."""
    run = Run.create(tmp_path / "run", {}, MANIFEST)
    shadow = Run.shadow(run.path, run.config, run.manifest)

    def fail() -> Iterator[int]:
        yield 1
        raise RuntimeError("out of memory")

    for one, left in ((shadow, True), (run, False)):
        with pytest.raises(RuntimeError, match="out of memory"):
            list(_or_nothing(one, fail()))
        assert run.path.exists() is left


def test_a_run_goes_on_with_as_many_devices_as_it_was_started_on(tree: Path, tmp_path: Path) -> None:
    """BatchNorm sees a device's share of the images: with another number the run would not be the same."""

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", data=str(tree), out=out, **quick(checkpoint_every=2, report=stop))
    config = json.loads((out / "run.json").read_text())
    assert config["devices"] == 1
    with pytest.raises(OpenDGError, match="was started on 1 device and would go on with 3: resume it with --devices 1"):
        opendg.resume(out, device="cpu", devices=3)
    with pytest.raises(OpenDGError, match="There is no device 'gpu'"):
        opendg.resume(out, device="gpu")
    (out / "run.json").write_text(json.dumps(config | {"devices": 2}))
    with pytest.raises(OpenDGError, match="was started on 2 devices and would go on with 1: .* --devices 2"):
        opendg.resume(out, device="cpu")
    for name in ("devices", "starting_weights", "track"):  # as in runs from before they were kept
        del config[name]
    (out / "run.json").write_text(json.dumps(config))
    assert opendg.resume(out, device="cpu").finished
    assert not (out / "tensorboard").exists()


def test_a_run_goes_on_where_its_data_have_moved(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(checkpoint_every=2, report=stop))
    moved = tree.rename(tmp_path / "moved")
    with pytest.raises(OpenDGError, match="signs"):
        opendg.resume(tmp_path / "run", device="cpu")
    assert opendg.resume(tmp_path / "run", root=moved, device="cpu").finished


def test_a_finished_run_and_changed_images_are_not_resumed(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=6)
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(checkpoint_every=2, report=stop))
    extra = tree / "ink" / "bar" / "extra.png"
    extra.write_bytes((tree / "ink" / "bar" / "000.png").read_bytes())
    with pytest.raises(OpenDGError, match="are not those that .* was started with: put them back"):
        opendg.resume(tmp_path / "run", device="cpu")
    extra.unlink()
    _, late = take_up(tmp_path / "run", device="cpu")
    opendg.resume(tmp_path / "run", device="cpu")
    with pytest.raises(OpenDGError, match="is finished: evaluate it with `opendg evaluate"):
        opendg.resume(tmp_path / "run", device="cpu", devices=3)
    with pytest.raises(OpenDGError, match="is finished"):  # by another one, since it was looked at
        next(late)


def test_a_run_knows_the_weights_that_it_started_from(tree: Path, tmp_path: Path) -> None:
    starts = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_file(build_backbone("convnet").net.state_dict(), tmp_path / "weights.safetensors")
        asked = quick(weights=str(tmp_path / "weights.safetensors"), checkpoint_every=2, report=stop)
        with pytest.raises(KeyboardInterrupt):
            opendg.train("erm", data=str(tree), out=tmp_path / str(seed), **asked)
        starts.append(Run.open(tmp_path / str(seed)).config["starting_weights"])
    assert len(set(starts)) == 2
    with pytest.raises(OpenDGError, match="The weights .* are not those that .*0' was started with: put them back"):
        opendg.resume(tmp_path / "0", device="cpu")
    opendg.resume(tmp_path / "1", device="cpu")
    assert opendg.evaluate(tmp_path / "1", device="cpu")["starting_weights"] == starts[1]


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("medic", {"batch": 1}),
        ("medic", {"sources": ["ink", "neon"]}),
        ("medic", {"target": "wood,neon"}),
        ("medic", {"unknown": [], "known": ["bar", "dot"]}),
        ("medic", {"chosen": {"order": 2}}),
        ("medic", {"chosen": {"shared": True}}),
        ("medic", {"chosen": {"ova": False, "domain_split": False}}),
        ("mldg", {"chosen": {"ova": True}}),
        ("erm", {"sources": ["ink"], "batch": 1}),
        ("erm", {"optimizer": "adamw", "schedule": "cosine", "precision": "bf16"}),
        ("erm", {"iterations": 1}),
    ],
    ids=str,
)
def test_variants_train(tree: Path, tmp_path: Path, method: str, asked: dict[str, Any]) -> None:
    run = opendg.train(method, data=str(tree), out=tmp_path / "run", **quick(**{"iterations": 3} | asked))
    weights = load_file(run.weight_file("selected"))
    assert all(torch.isfinite(tensor).all() for tensor in weights.values())


def test_empty_and_small_cells_train(tmp_path: Path) -> None:
    """A domain without a class, a class with one image, a domain with less than a batch."""
    tree = write_tree(tmp_path / "signs", each=4)
    for path in [*(tree / "ink" / "bar").iterdir(), *sorted((tree / "neon" / "dot").iterdir())[1:]]:
        path.unlink()
    run = opendg.train("medic", data=str(tree), out=tmp_path / "run", **quick(batch=8, iterations=4))
    assert run.manifest["images"]["train"] == 9 + 6 + 7
    assert run.finished


def test_no_device_at_all_is_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match=r"--devices 0 is out of range: give 1 or more\."):
        opendg.train("erm", str(tree), out=tmp_path / "run", devices=0, **quick())
    assert not (tmp_path / "run").exists()


def test_broken_images_stop_or_are_skipped(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs", each=6)
    (tree / "ink" / "bar" / "002.png").write_bytes((tree / "ink" / "bar" / "001.png").read_bytes()[:60])
    with pytest.raises(OpenDGError, match="The image ink/bar/002.png is broken .*--on-bad-image skip"):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick())
    assert not (tmp_path / "run").exists()
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(on_bad_image="skip"))
    assert run.manifest["skipped"] == ["ink/bar/002.png"]


@pytest.mark.parametrize("broken", ["ink", "validation"])
def test_too_many_broken_images_are_an_error_too(tmp_path: Path, broken: str) -> None:
    tree = write_tree(tmp_path / "signs", each=6)
    if broken == "ink":
        paths = list((tree / "ink").rglob("*.png"))
    else:
        index = scan(tree)
        split = make_protocol(index, ["wood"], unknown=["ring"]).apply(index)
        paths = [tree / index.keys[row] for row in split.val]
    for path in paths:
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(OpenDGError, match="has no training image|has a validation image"):
        opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(on_bad_image="skip"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "compiled"),
    [
        ({"iterations": 12_000}, True),
        ({"iterations": 11_999}, False),
        ({"iterations": 4_000, "runs": 3}, True),
        ({"iterations": 12_000, "compile": False}, False),
        ({"iterations": 4, "compile": True}, True),
    ],
    ids=str,
)
def test_a_step_is_compiled_where_that_is_asked_for_or_pays(
    tree: Path, tmp_path: Path, asked: dict[str, Any], compiled: bool
) -> None:
    run, _ = start("erm", str(tree), out=tmp_path / "run", capture=False, **quick(**asked))
    assert (run.config["compile"], run.config["capture"]) == (compiled, False)


def test_two_runs_with_one_seed_are_one(tree: Path, tmp_path: Path) -> None:
    runs = [opendg.train("medic", data=str(tree), out=tmp_path / name, **quick()) for name in "ab"]
    assert runs[0].weight_file("selected").read_bytes() == runs[1].weight_file("selected").read_bytes()
    assert runs[0].val_file("selected").read_bytes() == runs[1].val_file("selected").read_bytes()


def test_images_go_on_the_device_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    for _ in range(2):
        assert fits(10_000, cpu)
        assert not fits(10**15, cpu)
        monkeypatch.delitem(os.sysconf_names, "SC_AVPHYS_PAGES", raising=False)  # as on macOS


def test_damls_protocol_trains(tmp_path: Path) -> None:
    """Every source has classes of its own, so most cells are empty."""
    pacs = DATASETS["pacs"]
    tree = write(tmp_path / "tree", grid(pacs.domains, pacs.classes, each=4, height=32, width=32))
    asked = quick(target="sketch", unknown=None, protocol="daml", iterations=4)
    run = opendg.train("medic", data=str(tree), out=tmp_path / "run", **asked)
    assert run.manifest["images"] == {"train": 27, "val": 9, "test-known": 24, "test-unknown": 4}
    record = opendg.evaluate(run.path, device="cpu")
    assert record["protocol"].startswith("pacs:daml:6+1:")


def test_the_input_travels_with_the_weights(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(backbone="test_resnet", weights="none"))
    assert run.manifest["backbone"] == "test_resnet"
    assert run.manifest["input"]["size"] == (160, 160)
    assert run.manifest["image_size"] == (32, 32)
    made = opendg.load(run.path, device="cpu")
    assert made.classifier.backbone.input.to_json() == run.manifest["input"]
    before = made.scores(tree / "ink" / "bar" / "000.png")
    run.amend_manifest(input=run.manifest["input"] | {"mean": [0.0, 0.0, 0.0]})
    assert opendg.load(run.path, device="cpu").scores(tree / "ink" / "bar" / "000.png") != before


def test_a_network_comes_back_as_it_was_trained(tree: Path, tmp_path: Path) -> None:
    """Of three classes and two domains, which DANN's network tells apart.

    What its score looks at needs no fitting, so nothing is kept of that.
    """
    asked = quick(sources=["chalk", "ink"], precision="bf16")
    run = opendg.train("dann", data=str(tree), out=tmp_path / "run", **asked)
    made = opendg.load(run.path, device="cpu").classifier
    assert (made.classes, made.low) == (3, torch.bfloat16)
    assert not list(run.path.glob("score-*"))


def test_large_images_are_kept_no_larger_than_the_network_needs(tmp_path: Path) -> None:
    """With a margin of a seventh: 37 x 37 for a ConvNet, which sees 32 x 32."""
    tree = write(tmp_path / "tree", grid("abc", "xyz", each=4, height=80, width=80))
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(target="c", unknown=["z"], iterations=1))
    assert run.manifest["image_size"] == (37, 37)


@pytest.mark.parametrize("target", ["wood, ink", ["wood", "ink"]], ids=str)
def test_the_default_place_names_the_run(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str | list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = opendg.train("erm", data=str(tree), **quick(target=target, iterations=2, seed=3))
    assert run.path == Path("runs/signs-wood+ink-erm-3")
    assert run.config["protocol"]["targets"] == ("wood", "ink")
    assert np.isin(["commit", "command", "created", "machine", "versions"], list(run.config)).all()


@pytest.mark.parametrize("inside", ["runs/one", "wood/run"])
def test_a_run_among_the_data_is_refused(tree: Path, inside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be taken for a domain, by its own evaluation too; also where it is named from within."""
    monkeypatch.chdir(tree)
    for out in (tree / inside, Path(inside)):
        with pytest.raises(OpenDGError, match="would lie in the folder of the data: give another place with --out"):
            opendg.train("erm", data=str(tree), out=out, **quick())
    assert not (tree / inside).exists()


def test_a_run_among_the_domains_of_a_named_dataset_is_refused(tmp_path: Path) -> None:
    pacs = DATASETS["pacs"]
    write(tmp_path / "pacs" / "kfold", grid(pacs.domains, pacs.classes, each=4))
    asked = quick(target="sketch", unknown=None, root=tmp_path, out=tmp_path / "pacs" / "kfold" / "run")
    with pytest.raises(OpenDGError, match="would lie in the folder of the data"):
        opendg.train("erm", "pacs", **asked)


def test_a_run_that_fails_leaves_no_thread_behind(tree: Path, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(OpenDGError, match="no longer finite") as failed:
        opendg.train("erm", str(tree), out=tmp_path / "run", **quick(lr=1e30))
    assert set(threading.enumerate()) <= before, f"while {failed} is at hand"
