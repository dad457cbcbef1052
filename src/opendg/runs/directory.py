"""The Run: a directory that holds all there is to know of one training.

run.json                what was asked for: method, settings, data, backbone, recipe, seed; version, commit, command
manifest.json           protocol, file hashes, how images are prepared
log.jsonl               losses and validation by step
checkpoints/            to resume from; gone when the run is finished
.lock                   held by the process that trains it; gone when the run is finished
weights.safetensors     the finished network (by the selection rule)
averaged.safetensors    the averaged weights, when they were asked for
source-val-*.npz        outputs of each on the source validation images
score-*.safetensors     what scores were fitted to, on the source training images
target-*.npz, evaluation-*.json    written by `opendg evaluate`
"""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save as pack_arrays
from safetensors.torch import load_file
from torch import Tensor

from opendg.errors import OpenDGError, counted, typed
from opendg.predictions import Predictions
from opendg.runs.checkpoint import Checkpoint, latest_checkpoint, pack, save_checkpoint
from opendg.runs.files import disk_error, write_atomic, write_json
from opendg.runs.lock import LOCK, held
from opendg.runs.names import WEIGHTS, predictions_file

FORMAT = "opendg-run-1"
MANIFEST = {"protocol": dict, "images": dict, "files": dict, "classes": list, "backbone": str, "input": dict}


class Run:
    """A run directory, opened with `Run.open` or made with `Run.create`."""

    def __init__(self, path: Path, config: dict[str, Any], manifest: dict[str, Any]) -> None:
        self.path, self.config, self.manifest = path, config, manifest

    @classmethod
    def create(cls, path: Path, config: dict[str, Any], manifest: dict[str, Any]) -> Run:
        if path.is_file():
            raise OpenDGError(f"{str(path)!r} is a file, and a run is a directory: choose another --out.")
        run = cls(path, {"format": FORMAT} | config, manifest)
        if path.exists():
            begun = (path / "run.json").exists() and not run.finished
            goes_on = f"go on with `opendg train --resume {typed(path)}`, or " * begun
            raise OpenDGError(f"{str(path)!r} exists already: {goes_on}choose another --out.")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True) as folder:
                whole = Path(folder) / "run"
                whole.mkdir()
                write_json(whole / "run.json", run.config)
                write_json(whole / "manifest.json", manifest)
                whole.rename(path)
        except OSError as error:
            raise disk_error(error, path) from error
        return run

    @classmethod
    def shadow(cls, path: Path, config: dict[str, Any], manifest: dict[str, Any]) -> Run:
        """What the other processes of a data-parallel run hold: the same facts, and nothing is ever written."""
        return _Shadow(path, {"format": FORMAT} | config, manifest)

    @classmethod
    def open(cls, path: Path) -> Run:
        try:
            config = json.loads((path / "run.json").read_text())
            manifest = json.loads((path / "manifest.json").read_text())
        except (OSError, ValueError) as error:
            raise OpenDGError(f"{str(path)!r} is not a run directory: {_instead(path)}") from error
        if not isinstance(config, dict) or config.get("format") != FORMAT or not isinstance(manifest, dict):
            raise OpenDGError(
                f"{str(path)!r} is not a run of this version of OpenDG: its run.json should say {FORMAT!r}."
            )
        if bad := [name for name, kind in MANIFEST.items() if not isinstance(manifest.get(name), kind)]:
            raise OpenDGError(f"The manifest of {str(path)!r} is damaged ({bad[0]} is amiss): train it anew.")
        return cls(path, config, manifest)

    def hold(self) -> AbstractContextManager[None]:
        """For as long as this process trains it: no other one may."""
        return held(
            self.path,
            f"Another process is training {str(self.path)!r}: let it finish, or end it before you resume the run here.",
        )

    @property
    def identity(self) -> str:
        """The hash of run.json: its checkpoints carry it."""
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of the images that the network was trained on."""
        try:
            height, width = map(int, self.manifest["image_size"])
        except (KeyError, TypeError, ValueError) as error:
            raise OpenDGError(
                f"The manifest of {str(self.path)!r} is damaged (image_size is amiss): train it anew."
            ) from error
        return height, width

    @property
    def finished(self) -> bool:
        return self.weight_file("selected").exists()

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def weight_file(self, which: str) -> Path:
        return self.path / WEIGHTS[which]

    def save_weights(self, which: str, tensors: dict[str, Tensor], val: Predictions) -> None:
        """Finished weights, and what they say of the source validation images (thresholds are set on that)."""
        write_atomic(self.val_file(which), val.pack())
        write_atomic(self.weight_file(which), pack(tensors))

    def val_file(self, which: str) -> Path:
        return self.path / predictions_file("source-val", which)

    def target_file(self, which: str) -> Path:
        return self.path / predictions_file("target", which)

    def score_file(self, which: str, name: str) -> Path:
        return self.path / f"score-{name}-{which}.safetensors"

    def save_score(self, which: str, name: str, state: dict[str, NDArray[Any]]) -> None:
        """What a score was fitted to, for these weights."""
        plain = {key: np.array(array, order="C") for key, array in state.items()}
        write_atomic(self.score_file(which, name), pack_arrays(plain))

    def load_score(self, which: str, name: str) -> dict[str, NDArray[Any]] | None:
        """What `save_score` was given, None where it never was."""
        path = self.score_file(which, name)
        try:
            return load_arrays(path) if path.exists() else None
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise OpenDGError(
                f"What the score {name!r} was fitted to cannot be read from {str(path)!r} ({error}): delete that file, "
                "and it is fitted anew."
            ) from error

    def amend_manifest(self, **facts: Any) -> None:
        self.manifest |= facts
        write_json(self.path / "manifest.json", self.manifest)

    def load_weights(self, which: str) -> dict[str, Tensor]:
        if not self.finished:
            raise OpenDGError(
                f"The run {str(self.path)!r} is not finished: go on with `opendg train --resume {typed(self.path)}`."
            )
        try:
            return load_file(self.weight_file(which))
        except (OSError, SafetensorError) as error:
            raise OpenDGError(
                f"The {which} weights of {str(self.path)!r} cannot be read ({error}): train it again."
            ) from error

    def checkpoint(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        save_checkpoint(self.checkpoints, step, tensors, facts, self.identity)

    def latest_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint, if any. The log forgets what came after, and names those passed over."""
        found, refused = latest_checkpoint(self.checkpoints, self.identity)
        step = 0 if found is None else found.step
        self.rewind_log(step)
        for sentence in refused:
            self.log({"step": step, "warning": sentence})
        return found

    def finish(self) -> None:
        """Checkpoints, the lock, and what a kill has left half written are of use until a run is finished only."""
        shutil.rmtree(self.checkpoints, ignore_errors=True)
        for left in (*self.path.glob(".*.tmp"), self.path / LOCK):
            left.unlink(missing_ok=True)

    def discard(self) -> None:
        """Leave nothing behind of a run that is not finished and has nothing to resume from."""
        if not self.finished and not any(self.checkpoints.glob("*.json")):
            shutil.rmtree(self.path, ignore_errors=True)

    def log(self, entry: dict[str, Any]) -> None:
        try:
            with (self.path / "log.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise disk_error(error, self.path / "log.jsonl") from error

    def read_log(self) -> list[dict[str, Any]]:
        """All entries; a line that a kill tore, or that is none of ours, is left out."""
        path = self.path / "log.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        entries = [_parsed(line) for line in lines]
        return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("step"), int)]

    def rewind_log(self, step: int) -> None:
        """Forget what was logged after `step`: a resumed run will log it again."""
        kept = [json.dumps(entry) + "\n" for entry in self.read_log() if entry["step"] <= step]
        write_atomic(self.path / "log.jsonl", "".join(kept).encode())


def _instead(path: Path) -> str:
    """What to give in the place of a path that is no run: one of the runs in it, where there are some."""
    inside = sorted(file.parent for file in path.glob("*/run.json"))
    if not inside:
        return "one that `opendg train` has made was expected."
    return f"it holds {counted(len(inside), 'run')}, give one of them, such as {inside[0]}."


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


class _Shadow(Run):
    def hold(self) -> AbstractContextManager[None]:
        return nullcontext()

    def save_weights(self, which: str, tensors: dict[str, Tensor], val: Predictions) -> None: ...

    def save_score(self, which: str, name: str, state: dict[str, NDArray[Any]]) -> None: ...

    def amend_manifest(self, **facts: Any) -> None: ...

    def checkpoint(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None: ...

    def finish(self) -> None: ...

    def discard(self) -> None: ...

    def log(self, entry: dict[str, Any]) -> None: ...

    def rewind_log(self, step: int) -> None: ...
