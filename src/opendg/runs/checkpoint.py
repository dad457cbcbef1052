"""Checkpoints: a safetensors file with every tensor of a run, and a JSON file that says it is whole.

The JSON is written last and holds the SHA-256 of the tensors and the identity of the run: a checkpoint without it, with
another hash (torn) or of another run (foreign) is passed over for the one before. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.runs.files import write_atomic, write_json
from opendg.runs.names import CHECKPOINTS, checkpoint_file

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # small things that are no tensors


def pack(tensors: dict[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file, wherever and however they lie in memory."""
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], owner: str) -> None:
    """Write one checkpoint of the run `owner`; the older ones but one go, once it is safe.

    Later ones are torn or foreign, or the run would have gone on from them: they count as none that is kept.
    """
    folder.mkdir(exist_ok=True)
    data = pack(tensors)
    whole = folder / checkpoint_file(step)
    write_atomic(whole.with_suffix(".safetensors"), data)
    digest = hashlib.sha256(data).hexdigest()
    write_json(whole, {"step": step, "sha256": digest, "run": owner, "facts": facts})
    for old in sorted(path for path in folder.glob(CHECKPOINTS) if path <= whole)[:-KEEP]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(path: Path, owner: str | None = None) -> Checkpoint:
    """One checkpoint by its JSON file, of the run `owner` where that is said; an error tells what is wrong with it."""
    try:
        said = json.loads(path.read_text())
        data = path.with_suffix(".safetensors").read_bytes()
        if owner not in (None, said["run"]):
            raise _refusal(path, "is of another run")
        if hashlib.sha256(data).hexdigest() != said["sha256"]:
            raise _refusal(path, "is torn (its hash differs)")
        return Checkpoint(int(said["step"]), load(data), dict(said["facts"]))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise _refusal(path, f"cannot be read ({error})") from error


def _refusal(path: Path, what: str) -> OpenDGError:
    return OpenDGError(f"The checkpoint {path.stem!r} {what}: the one before it will be used.")


def latest_checkpoint(folder: Path, owner: str | None = None) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint of the run, if any, and a sentence for each one passed over."""
    refused: list[str] = []
    for path in sorted(folder.glob(CHECKPOINTS), reverse=True):
        try:
            return load_checkpoint(path, owner), refused
        except OpenDGError as error:
            refused.append(str(error))
    return None, refused
