"""Trackers, each with its real package, offline: what they get, how they go on after a kill, what they cost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opendg
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.training import track
from opendg.training.train import resume
from tests.runs.test_directory import MANIFEST
from tests.tiny import quick

Curves = dict[str, dict[int, float]]  # name -> step -> value

# Killed right after it has logged step 100; the checkpoint it goes on from is that of step 60.
KILLED = """
import json, os, signal, sys
import opendg

def report(step, total, losses):
    if step == 100:
        os.kill(os.getpid(), signal.SIGKILL)

opendg.train("erm", sys.argv[1], out=sys.argv[2], report=report, **json.loads(sys.argv[3]))
"""


def from_tensorboard(run: Run) -> Curves:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(run.path / "tensorboard"))
    events.Reload()
    curves: Curves = {}
    for name in events.Tags()["scalars"]:
        points = events.Scalars(name)
        curves[name] = {point.step: point.value for point in points}
        assert len(points) == len(curves[name]), "no step twice"
    return curves


def from_mlflow(run: Run) -> Curves:
    client = pytest.importorskip("mlflow.tracking").MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("opendg").experiment_id])
    assert found.info.run_name == run.path.name
    assert found.info.status == "FINISHED"
    assert found.data.params["recipe/iterations"] == str(run.config["recipe"]["iterations"])
    assert found.data.params["directory"] == str(run.path.resolve())
    curves: Curves = {}
    for name in found.data.metrics:
        points = client.get_metric_history(found.info.run_id, name)
        curves[name] = {point.step: point.value for point in points}
        assert len(points) == len(curves[name]), "no step twice"
    return curves


def records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format, blocks of 32 KiB, after 7 bytes of its own."""
    data, place, part = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield part
            part = b""


def wandb_records(run: Run) -> list[list[Any]]:
    """What wandb wrote, session by session."""
    proto = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    files = sorted(run.path.glob("wandb/offline-run-*/*.wandb"))
    for _ in range(100):  # wandb's own process may still be writing when `finish` is back
        written = [[proto.Record.FromString(data) for data in records(file)] for file in files]
        if any(record.HasField("exit") for record in written[-1]):
            break
        time.sleep(0.1)
    return written


def from_wandb(run: Run) -> Curves:
    """Of all sessions together, as `wandb sync` would put them."""
    curves: Curves = {}
    ids = set()
    for part in wandb_records(run):
        for record in part:
            if record.HasField("run"):
                ids.add((record.run.run_id, record.run.project, record.run.display_name))
            if record.HasField("history"):
                items = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
                for name, value in items.items():
                    if not name.startswith("_"):
                        curves.setdefault(name, {})[record.history.step.num] = value
    assert ids == {(run.identity[:16], "opendg", run.path.name)}
    return curves


READERS: dict[str, Callable[[Run], Curves]] = {
    "tensorboard": from_tensorboard,
    "wandb": from_wandb,
    "mlflow": from_mlflow,
}


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlflow").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer ones ask for it
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def log_of(run: Run) -> Curves:
    curves: Curves = {}
    for entry in run.read_log():
        for name, value in track.flat(entry).items():
            curves.setdefault(name, {})[entry["step"]] = value
    return curves


@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
@pytest.mark.parametrize("name", READERS)
def test_a_killed_run_goes_on_in_the_same_curves(name: str, tree: Path, tmp_path: Path) -> None:
    pytest.importorskip(name)
    asked = quick(iterations=120, checkpoint_every=60, lr=1e-3, track=name, select="source-accuracy")
    path = tmp_path / "killed"
    program = [sys.executable, "-c", KILLED, str(tree), str(path), json.dumps(asked)]
    assert subprocess.run(program, capture_output=True, timeout=120).returncode == -9
    run = resume(path, device="cpu")
    logged, curves = log_of(run), READERS[name](run)
    assert sorted(curves) == ["finished/accuracy", "losses/ce", "lr", "val/accuracy"]
    assert sorted(curves["losses/ce"]) == [50, 100, 120]
    for curve in ("losses/ce", "lr", "val/accuracy"):
        assert curves[curve] == pytest.approx(logged[curve], rel=1e-6)
    assert curves["lr"][50] == pytest.approx(1e-3)
    assert curves["lr"][120] == pytest.approx(1e-4)  # the step schedule has come down
    assert sorted(curves["val/accuracy"])[0] == 72  # selection starts at 60 % of the run
    accuracy = Predictions.load(run.val_file("selected")).correct.mean()
    assert curves["finished/accuracy"] == {120: pytest.approx(accuracy, rel=1e-6)}


def test_a_run_that_begins_anew_replaces_its_curves(tree: Path, tmp_path: Path) -> None:
    """A kill before the first checkpoint leaves nothing to go on from, and curves that will be drawn again."""
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=2))
    for loss in (3.0, 2.0):
        with track.Tracker(run, "tensorboard", 0) as tracker:
            tracker.log({"step": 50, "losses": {"ce": loss}})
        for file in (run.path / "tensorboard").iterdir():  # as of a process that sorts behind those to come
            file.rename(file.with_name(file.name.replace(".tfevents.", ".tfevents.9")))
    assert from_tensorboard(run) == {"losses/ce": {50: 2.0}}


def test_a_tensorboard_that_is_open_forgets_what_it_has_read(tmp_path: Path) -> None:
    """As it reads in Python, where its data server cannot run."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_accumulator")
    run = Run.create(tmp_path / "run", {}, MANIFEST)
    opened = accumulator.EventAccumulator(str(run.path / "tensorboard"), {"tensors": 10})
    for steps in ([50, 100], [50], [50, 100, 150]):
        with track.Tracker(run, "tensorboard", 0) as tracker:
            for step in steps:
                tracker.log({"step": step, "losses": {"ce": 1.0}})
        opened.Reload()
        assert [point.step for point in opened.Tensors("losses/ce")] == steps


def test_warnings_of_the_log_are_no_curves(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=2))
    run.log({"step": 2, "warning": "The checkpoint 'step-00000002' is torn."})
    log = run.read_log()
    with track.Tracker(run, "tensorboard", 2):
        pass
    assert sorted(from_tensorboard(run)) == ["losses/ce", "lr"]
    assert run.read_log() == log, "nothing has failed"


@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
def test_mlflow_tells_runs_apart_and_how_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a run that has failed before there was anything to log, and one that was asked for in many words."""
    client = pytest.importorskip("mlflow.tracking").MlflowClient()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "others")
    first, second = (Run.create(tmp_path / name, {"command": name * 9000}, MANIFEST) for name in "ab")

    def listed() -> list[Any]:
        return list(client.search_runs([client.get_experiment_by_name("others").experiment_id]))

    def states() -> dict[str, str]:
        return {found.info.run_name: found.info.status for found in listed()}

    for run in (first, second):
        with pytest.raises(RuntimeError), track.Tracker(run, "mlflow", 0):
            raise RuntimeError("out of memory")
    assert states() == {"a": "FAILED", "b": "FAILED"}
    with track.Tracker(first, "mlflow", 0) as tracker:
        assert states() == {"a": "RUNNING", "b": "FAILED"}
        tracker.log({"step": 50, "lr": 0.5})
    assert states() == {"a": "FINISHED", "b": "FAILED"}
    assert {found.data.params["command"] for found in listed()} == {"a" * 500, "b" * 500}, "as servers take it"


def test_wandb_is_told_of_a_run_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_PROJECT", "others")
    run = Run.create(tmp_path / "run", {"method": "erm"}, MANIFEST)
    with pytest.raises(RuntimeError), track.Tracker(run, "wandb", 0):
        raise RuntimeError("out of memory")
    (written,) = wandb_records(run)
    assert [record.exit.exit_code for record in written if record.HasField("exit")] == [1]
    (began,) = (record.run for record in written if record.HasField("run"))
    assert began.project == "others"
    assert {item.key: item.value_json for item in began.config.update}["method"] == '"erm"'


def test_tensorboard_is_the_default_where_it_is_installed(tree: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **unsaid())
    assert sorted(from_tensorboard(run)) == ["finished/accuracy", "losses/ce", "lr"]
    assert run.config["track"] == "auto"


def unsaid() -> dict[str, Any]:
    """A quick run without a word on trackers."""
    return {name: value for name, value in quick().items() if name != "track"}


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "find_spec", lambda name: None)


@pytest.mark.usefixtures("nothing_installed")
def test_without_tensorboard_a_run_has_its_log_alone(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **unsaid())
    assert run.read_log()
    assert not (run.path / "tensorboard").exists()


def test_either_package_writes_for_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in ("tensorboard", "tensorboardX"):
        monkeypatch.setattr(track, "find_spec", lambda name, there=there: name == there or None)
        track.check_tracker("tensorboard")


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize("name", READERS)
def test_a_tracker_that_is_not_installed_is_refused_in_a_sentence(name: str, tree: Path, tmp_path: Path) -> None:
    sentence = f"--track {name} needs the package {name}, which is not installed: try pip install {name}"
    with pytest.raises(opendg.OpenDGError, match=sentence):
        opendg.train("erm", str(tree), out=tmp_path / "run", **quick(track=name))
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_near_matches(tmp_path: Path) -> None:
    """Before the data are looked for."""
    with pytest.raises(opendg.OpenDGError, match="no tracker 'wanbd': did you mean 'wandb'"):
        opendg.train("erm", str(tmp_path / "nowhere"), out=tmp_path / "run", **quick(track="wanbd"))


def test_none_leaves_no_trace(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(track="none"))
    assert not (run.path / "tensorboard").exists()
    assert [entry["step"] for entry in run.read_log()] == [6]


@pytest.fixture
def read_anew() -> Iterator[None]:
    """wandb reads the environment once in a process."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()
    yield
    wandb.teardown()


@pytest.mark.usefixtures("read_anew")
@pytest.mark.filterwarnings("ignore:.*filesystem.*:FutureWarning")
def test_a_tracker_that_cannot_be_opened_is_an_error_in_a_sentence(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "file" / "below").as_uri())
    with pytest.raises(opendg.OpenDGError, match=r"mlflow could not be opened \(.*\): see to it, or use --track none"):
        opendg.train("erm", str(tree), out=tmp_path / "run", **quick(track="mlflow"))
    monkeypatch.setenv("WANDB_MODE", "nonsense")  # which it answers with four lines
    with pytest.raises(opendg.OpenDGError, match=r"wandb could not be opened \([^\n]*\): set WANDB_MODE=offline, or"):
        opendg.train("erm", str(tree), out=tmp_path / "run", **quick(track="wandb"))
    assert not (tmp_path / "run").exists()


class Broken(track._OwnLogger):
    """A logger whose server goes away after the first numbers."""

    calls = 0

    def send(self, metrics: dict[str, float], step: int) -> None:
        self.calls += 1
        if self.calls > 1:
            raise ConnectionError("the server is gone")


def test_a_tracker_that_fails_does_not_end_the_run(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track, "make_logger", lambda name, run: Broken(run))
    run = opendg.train("erm", str(tree), out=tmp_path / "run", **quick(iterations=150, track="tensorboard"))
    assert run.finished
    log = run.read_log()
    assert [entry["step"] for entry in log if "losses" in entry] == [50, 100, 150]
    assert [entry for entry in log if "warning" in entry] == [
        {"step": 100, "warning": "Broken failed and is left out from here on: the server is gone"}
    ]


class Hurried(track._OwnLogger):
    """A logger whose last upload is cut short by Ctrl-C."""

    def send(self, metrics: dict[str, float], step: int) -> None: ...

    def finalize(self, status: str) -> None:
        raise KeyboardInterrupt


def test_control_c_while_a_tracker_ends_costs_no_finished_run(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(track, "make_logger", lambda name, run: Hurried(run))
    with pytest.raises(KeyboardInterrupt):
        opendg.train("erm", str(tree), out=tmp_path / "run", **quick(track="tensorboard"))
    run = Run.open(tmp_path / "run")
    assert run.finished
    assert run.load_weights("selected")


def test_the_rate_that_is_logged_is_the_rate_that_was_used(tree: Path) -> None:
    import torch

    from tests.training.parts import make_parts

    loop = make_parts(tree, "erm", iterations=10, schedule="cosine")
    used: list[float] = []
    apply = loop.update

    def listen(gradients: dict[str, torch.Tensor], lr: torch.Tensor) -> None:
        used.append(float(lr))
        apply(gradients, lr)

    loop.update = listen
    for step in range(4):
        loop.feed.prepare(step)
        loop.run()
    assert used == pytest.approx([loop.rate(step) for step in range(4)], rel=1e-6)
    assert used[0] > used[3]


def test_names_are_flat() -> None:
    entry: dict[str, Any] = {"step": 5, "losses": {"ce": 1.0, "ova": 2.0}, "val": {"accuracy": 0.5}}
    assert track.flat(entry) == {"step": 5, "losses/ce": 1.0, "losses/ova": 2.0, "val/accuracy": 0.5}
