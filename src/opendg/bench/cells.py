"""The Cell: one run of a grid, and the name that its directory gets from what defines it."""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from opendg.data.entries import find
from opendg.errors import OpenDGError
from opendg.training.job import NOT_DEFINING, Job
from opendg.training.lists import as_options


@dataclass(frozen=True)
class Cell:
    """What `opendg train` is asked for, and which scores the run is read with."""

    method: str
    data: str
    target: str  # several are joined by commas
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    base: str = "common"  # the recipe that `recipe` changes: common or authors
    known: int | list[str] | None = None
    unknown: list[str] | None = None
    protocol: str = "shared"
    split_seed: int = 0
    backbone: str | None = None
    weights: str | None = None
    scores: tuple[str, ...] = ()  # those to evaluate; none: the plain ones
    notes: tuple[str, ...] = ()  # what a config says of the settings

    def asked(self) -> dict[str, Any]:
        """The arguments of `opendg.train` beside method, data, target and places."""
        named = ("known", "unknown", "protocol", "split_seed", "backbone", "weights", "seed", "notes")
        return {name: getattr(self, name) for name in named} | {
            "chosen": dict(self.settings), "recipe": self.base, **self.recipe,
        }  # fmt: skip

    @property
    def kind(self) -> str:
        """What cells have in common whose step is the same code: all but target, classes and seed."""
        return json.dumps([self.method, self.settings, self.data, self.backbone, self.base, self.recipe])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Cell:
        return cls(**(values | {name: tuple(values.get(name, ())) for name in ("scores", "notes")}))

    def command(self) -> str:
        """The command that trains the same run, without the paths of one machine."""
        asked: dict[str, Any] = {
            "data": Path(self.data).name, "target": self.target, "known": self.known, "unknown": self.unknown,
            "protocol": None if self.protocol == "shared" else self.protocol, "split_seed": self.split_seed or None,
            "backbone": self.backbone, "weights": self.weights and Path(self.weights).name,
            "recipe": None if self.base == "common" else self.base, **self.recipe, "seed": self.seed,
        }  # fmt: skip
        settings = [word for key, value in self.settings.items() for word in ("--set", f"{key}={value}")]
        return shlex.join(["opendg", "train", self.method, *as_options(asked), *settings])


def absolute(name: str) -> str:
    """A file or folder by its whole path, as workers may start elsewhere; a name as it is."""
    is_name = name in ("imagenet", "none") or find(name) is not None
    return name if is_name else str(Path(name).expanduser().resolve())


def identity(job: Job) -> str:
    """The hash of all that defines a run: method, settings, protocol, backbone, weights by content, recipe, seed."""
    said = {name: value for name, value in job.to_json().items() if name not in NOT_DEFINING}
    said["weights"] = _content(job.weights)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]


def run_name(job: Job) -> str:
    """The run's directory: words for the eye, the hash for the grid."""
    return f"{job.method}-{'+'.join(job.protocol.targets)}-{job.seed}-{identity(job)}"


def _content(weights: str) -> str:
    """`imagenet` and `none` as they are, a file as the hash of its bytes."""
    if weights in ("imagenet", "none"):
        return weights
    path = Path(weights)
    if not path.is_file():
        raise OpenDGError(f"There is no weight file {weights!r}: give 'imagenet', 'none' or a .safetensors file.")
    status = path.stat()
    return _file_hash(path, status.st_size, status.st_mtime_ns)


@lru_cache
def _file_hash(path: Path, size: int, modified: int) -> str:
    """Size and time are asked for so that a file that has changed is read again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
