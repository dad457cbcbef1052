from __future__ import annotations

import errno
import json
import os
import pickle
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from opendg.errors import OpenDGError
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.runs.files import disk_error, write_atomic, write_json

MANIFEST: dict[str, Any] = {
    "protocol": {"sources": ["a", "b"]}, "images": {}, "files": {}, "classes": ["x", "y"], "backbone": "convnet",
    "input": {}, "image_size": [32, 32],
}  # fmt: skip


def make(path: Path, **config: Any) -> Run:
    return Run.create(path, {"method": "erm"} | config, MANIFEST)


def some_predictions(n: int = 4, ova: bool = True) -> Predictions:
    random = np.random.default_rng(0)
    return Predictions(
        keys=np.array([f"d/é{i}.png" for i in range(n)]), domain=np.array(["d"] * n), label=np.arange(n) - 1,
        features=random.normal(size=(n, 5)).astype(np.float32), logits=random.normal(size=(n, 3)).astype(np.float32),
        ova=random.normal(size=(n, 2, 3)).astype(np.float32) if ova else None,
    )  # fmt: skip


def test_a_run_appears_whole(tmp_path: Path) -> None:
    run = make(tmp_path / "deep" / "er" / "run")
    assert sorted(path.name for path in run.path.iterdir()) == ["manifest.json", "run.json"]
    assert [path.name for path in run.path.parent.iterdir()] == ["run"]
    again = Run.open(run.path)
    assert (again.config, again.manifest) == (run.config, run.manifest)
    assert again.identity == run.identity
    assert not again.finished


@pytest.mark.parametrize("there", ["folder", "empty folder", "file", "run", "finished run"])
def test_what_exists_is_never_overwritten(tmp_path: Path, there: str) -> None:
    path = tmp_path / "run"
    if there == "file":
        path.write_text("precious")
    elif "run" in there:
        run = make(path)
        if there == "finished run":
            run.weight_file("selected").touch()
    else:
        path.mkdir()
        if there == "folder":
            (path / "precious").touch()
    before = sorted(tmp_path.rglob("*"))
    sentence = {
        "file": "is a file, and a run is a directory: choose another --out.",
        "run": f"exists already: go on with `opendg train --resume {path}`, or choose another --out.",
    }.get(there, "exists already: choose another --out.")
    with pytest.raises(OpenDGError, match=re.escape(sentence)):
        make(path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_cannot_lie_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpenDGError, match="could not be written .File exists.: choose another place"):
        make(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "is not a run directory: one that `opendg train` has made was expected"),
        ({"run.json": "{}"}, "is not a run directory"),
        ({"run.json": "{", "manifest.json": "{}"}, "is not a run directory"),
        ({"run.json": "\udcff", "manifest.json": "{}"}, "is not a run directory"),
        ({"run.json": "[]", "manifest.json": "{}"}, "not a run of this version"),
        ({"run.json": '{"format": "opendg-run-99"}', "manifest.json": "{}"}, "not a run of this version"),
        ({"run.json": '{"format": "opendg-run-1"}', "manifest.json": "[]"}, "not a run of this version"),
        (
            {"run.json": '{"format": "opendg-run-1"}', "manifest.json": "{}"},
            "damaged .protocol is amiss",
        ),
    ],
)
def test_what_is_no_run_is_refused(tmp_path: Path, files: dict[str, str], sentence: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(OpenDGError, match=sentence):
        Run.open(tmp_path)


def test_a_path_that_is_not_there_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="is not a run directory"):
        Run.open(tmp_path / "nothing")


def test_a_run_is_held_by_one_at_a_time_and_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    with run.hold():
        for other in (run, Run.open(run.path)):
            with pytest.raises(OpenDGError, match="Another process is training .*: let it finish"), other.hold():
                pytest.fail("two hold it")
        with Run.shadow(run.path, run.config, run.manifest).hold():  # of the same training
            pass
    hold = "import sys; from pathlib import Path; from opendg.runs.lock import held\n"
    hold += "with held(Path(sys.argv[1]), 'busy'): print('held', flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", hold, str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other_process:
        assert other_process.stdout is not None
        assert other_process.stdout.readline() == "held\n"
        with pytest.raises(OpenDGError, match="Another process"), run.hold():
            pytest.fail("two hold it")
        other_process.kill()
        other_process.wait()
    with run.hold():
        run.finish()
    assert sorted(path.name for path in run.path.iterdir()) == ["manifest.json", "run.json"]


def test_only_a_run_with_nothing_to_keep_is_discarded(tmp_path: Path) -> None:
    empty, begun, finished, shared = (make(tmp_path / name) for name in ("empty", "begun", "finished", "shared"))
    begun.checkpoint(3, {"w": torch.zeros(2)}, {})
    finished.save_weights("selected", {"w": torch.zeros(2)}, some_predictions())
    for run in (empty, begun, finished, Run.shadow(shared.path, shared.config, shared.manifest)):
        run.discard()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "finished", "shared"]
    assert Run.open(shared.path).config == shared.config


def test_the_other_processes_of_a_run_write_nothing(tmp_path: Path) -> None:
    run, tensors = make(tmp_path / "run"), {"w": torch.zeros(2)}
    run.log({"step": 1})
    run.checkpoint(3, tensors, {})
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    shadow = Run.shadow(run.path, run.config, run.manifest)
    shadow.log({"step": 2})
    shadow.rewind_log(0)
    shadow.checkpoint(4, tensors, {})
    shadow.amend_manifest(skipped=["a"])
    shadow.save_score("selected", "openmax", {"mean": np.zeros(2)})
    shadow.save_weights("selected", tensors, some_predictions())
    shadow.finish()
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_torn_weights_and_scores_are_a_sentence(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    assert run.load_score("selected", "openmax") is None
    run.save_weights("selected", {"w": torch.zeros(2)}, some_predictions())
    run.save_score("selected", "openmax", {"mean": np.arange(6.0).reshape(2, 3).T})
    assert run.load_score("selected", "openmax")["mean"].tolist() == [[0, 3], [1, 4], [2, 5]]  # type: ignore[index]
    os.truncate(run.weight_file("selected"), 20)
    with pytest.raises(OpenDGError, match="The selected weights of .* cannot be read .*: train it again"):
        run.load_weights("selected")
    os.truncate(run.score_file("selected", "openmax"), 20)
    with pytest.raises(OpenDGError, match="'openmax' was fitted to cannot be read .*: delete that file"):
        run.load_score("selected", "openmax")


def test_a_run_that_cannot_be_locked_is_a_sentence(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    (run.path / ".lock").mkdir()
    with pytest.raises(OpenDGError, match=r"lock' could not be written .Is a directory.: choose"), run.hold():
        pytest.fail("held")


def test_identity_is_of_what_was_asked_for(tmp_path: Path) -> None:
    one, other, same = make(tmp_path / "a", seed=0), make(tmp_path / "b", seed=1), make(tmp_path / "c", seed=0)
    assert one.identity == same.identity != other.identity
    one.amend_manifest(image_size=(3, 4))
    assert Run.open(one.path).identity == same.identity
    assert Run(one.path, dict(reversed(one.config.items())), {}).identity == same.identity
    assert Run.open(one.path).image_size == (3, 4)


@pytest.mark.parametrize("size", [None, [], [1], "ab", [1, "x"], {"a": 1}])
def test_a_damaged_image_size_is_a_sentence(tmp_path: Path, size: Any) -> None:
    run = make(tmp_path / "run")
    run.amend_manifest(image_size=size)
    with pytest.raises(OpenDGError, match="image_size is amiss"):
        _ = Run.open(run.path).image_size


def test_the_log_forgets_what_will_be_logged_again(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    for step in (5, 10, 15):
        run.log({"step": step})
    with (run.path / "log.jsonl").open("a") as file:
        file.write('{"step": 20, "los')  # torn by a kill
    assert [entry["step"] for entry in run.read_log()] == [5, 10, 15]
    run.rewind_log(10)
    run.log({"step": 15})
    assert [entry["step"] for entry in run.read_log()] == [5, 10, 15]
    assert len((run.path / "log.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("line", [b"7", b"[]", b"null", b'{"loss": 1}', b'{"step": "x"}', b"\xff\x00", b""])
def test_lines_that_are_none_of_ours_are_left_out(tmp_path: Path, line: bytes) -> None:
    run = make(tmp_path / "run")
    (run.path / "log.jsonl").write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 2}\n')
    assert [entry["step"] for entry in run.read_log()] == [1, 2]
    run.rewind_log(1)
    assert run.read_log() == [{"step": 1}]


def test_picking_up_without_a_checkpoint_starts_the_log_anew(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run.log({"step": 50})
    assert run.latest_checkpoint() is None
    assert run.read_log() == []


def test_picking_up_says_what_was_passed_over(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    for step in (10, 20):
        run.checkpoint(step, {"w": torch.zeros(3)}, {})
        run.log({"step": step})
    (run.checkpoints / "step-00000020.safetensors").write_bytes(b"torn")
    found = Run.open(run.path).latest_checkpoint()
    assert found is not None
    assert found.step == 10
    first, second = run.read_log()
    assert first == {"step": 10}
    assert second["step"] == 10
    assert "'step-00000020' is torn" in second["warning"]


def test_a_checkpoint_of_another_run_is_passed_over(tmp_path: Path) -> None:
    mine, other = make(tmp_path / "mine", seed=0), make(tmp_path / "other", seed=1)
    mine.checkpoint(10, {"w": torch.zeros(3)}, {})
    other.checkpoint(20, {"w": torch.ones(3)}, {})
    for path in other.checkpoints.iterdir():
        path.rename(mine.checkpoints / path.name)
    found = mine.latest_checkpoint()
    assert found is not None
    assert found.step == 10
    assert "is of another run" in mine.read_log()[0]["warning"]


def test_finishing_leaves_no_scraps(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run.checkpoint(10, {"w": torch.zeros(3)}, {})
    (run.path / ".weights.safetensors.123.tmp").write_bytes(b"half")  # of a process that was killed
    with pytest.raises(OpenDGError, match="is not finished: go on with `opendg train --resume"):
        run.load_weights("selected")
    run.save_weights("selected", {"w": torch.ones(2)}, some_predictions())
    run.finish()
    assert run.finished
    assert sorted(path.name for path in run.path.iterdir()) == [
        "manifest.json", "run.json", "source-val-selected.npz", "weights.safetensors",
    ]  # fmt: skip
    assert run.load_weights("selected")["w"].tolist() == [1, 1]


def test_a_run_without_its_predictions_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, data: bytes) -> None:
        if path.suffix == ".npz":
            raise OpenDGError("The disk is full.")
        write_atomic(path, data)

    run = make(tmp_path / "run")
    monkeypatch.setattr("opendg.runs.directory.write_atomic", write)
    with pytest.raises(OpenDGError, match="full"):
        run.save_weights("selected", {"w": torch.ones(2)}, some_predictions())
    assert not run.finished


@pytest.mark.parametrize("ova", [True, False])
def test_predictions_survive_a_file(tmp_path: Path, ova: bool) -> None:
    before = some_predictions(ova=ova)
    (tmp_path / "p.npz").write_bytes(before.pack())
    after = Predictions.load(tmp_path / "p.npz")
    for name in ("keys", "domain", "label", "features", "logits"):
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert (after.ova is None) == (not ova)
    if ova:
        assert np.array_equal(after.ova, before.ova)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (os.environ["BOMB"],)


@pytest.mark.parametrize("kind", ["object array", "pickle", "nothing", "cut", "other arrays", "not there"])
def test_predictions_of_a_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path, hit = tmp_path / "p.npz", tmp_path / "hit"
    monkeypatch.setenv("BOMB", str(hit))
    if kind == "object array":
        np.savez(path, **{name: np.array([Bomb()], dtype=object) for name in ("keys", "label")})
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb()))
    elif kind == "nothing":
        path.touch()
    elif kind == "cut":
        path.write_bytes(some_predictions().pack()[:-40])
    elif kind == "other arrays":
        np.savez(path, weights=np.zeros(3))
    with pytest.raises(OpenDGError, match="predictions in .* cannot be read .*: train or evaluate the run again"):
        Predictions.load(path)
    assert not hit.exists()


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path, soft = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    write_atomic(path, b"old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OpenDGError, match="could not be written .File too large"):
            write_atomic(path, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    """A run of a stranger may hold links to files of the user's."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    write_json(tmp_path / "link", {"a": 1})
    assert (tmp_path / "precious").read_text() == "mine"
    assert json.loads((tmp_path / "link").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "The disk is full, so .* was not written: free some space"),
        (errno.EDQUOT, "The disk is full"),
        (errno.EACCES, "may not be written to: choose another place"),
        (errno.EROFS, "may not be written to"),
        (errno.EFBIG, "could not be written .File too large.: choose another place"),
    ],
)
def test_sentences_for_disks(code: int, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        raise disk_error(OSError(code, os.strerror(code)), Path("runs/x"))
