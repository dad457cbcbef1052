"""Checkpoints: a safetensors file with every tensor of a run, and a JSON file that says it is whole.

The JSON is written last and holds the SHA-256 of the tensors: a checkpoint without it, or with another hash, is torn
and is passed over for the one before. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.runs.files import write_atomic, write_json

KEEP = 2


@dataclass(frozen=True)
class Checkpoint:
    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]  # small things that are no tensors


def pack(tensors: dict[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file, wherever and however they lie in memory."""
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def save_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any] | None = None) -> None:
    """Write one checkpoint; the older ones but one go, once it is safe."""
    folder.mkdir(exist_ok=True)
    data = pack(tensors)
    name = f"step-{step:08d}"
    write_atomic(folder / f"{name}.safetensors", data)
    digest = hashlib.sha256(data).hexdigest()
    write_json(folder / f"{name}.json", {"step": step, "sha256": digest, "facts": facts or {}})
    for old in sorted(folder.glob("step-*.json"))[:-KEEP]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load_checkpoint(path: Path) -> Checkpoint:
    """One checkpoint by its JSON file; an error says what is wrong with it."""
    try:
        said = json.loads(path.read_text())
        data = path.with_suffix(".safetensors").read_bytes()
        step, digest, facts = int(said["step"]), str(said["sha256"]), dict(said["facts"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OpenDGError(
            f"The checkpoint {path.stem!r} cannot be read ({error}): an older one will be used."
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise OpenDGError(f"The checkpoint {path.stem!r} is torn (its hash differs): an older one will be used.")
    return Checkpoint(step, load(data), facts)


def latest_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, if any, and a sentence for each torn one passed over."""
    refused: list[str] = []
    for path in sorted(folder.glob("step-*.json"), reverse=True):
        try:
            return load_checkpoint(path), refused
        except OpenDGError as error:
            refused.append(str(error))
    return None, refused
