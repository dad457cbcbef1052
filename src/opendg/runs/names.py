"""How the files of a run are named, for those who look into its directory without opening the run."""

from __future__ import annotations

from pathlib import Path

from opendg.errors import OpenDGError

EVALUATIONS = "evaluation-*.json"
WEIGHTS = {"selected": "weights.safetensors", "averaged": "averaged.safetensors"}  # a run with the first is finished
CHECKPOINTS = "step-*.json"  # each says that the tensors beside it are whole


def check_weights(which: str | None) -> None:
    """Refuse a name that is of no weights of a run. None leaves the choice open."""
    if which not in (None, *WEIGHTS):
        raise OpenDGError(f"There are no weights {which!r} in a run: choose selected or averaged.")


def evaluation_file(weights: str) -> str:
    return EVALUATIONS.replace("*", weights)


def evaluated(record: Path) -> str | None:
    """The weights that a record is of, by its name: selected or averaged. None where it is named otherwise."""
    return record.stem.removeprefix("evaluation-") if record.match(EVALUATIONS) else None


def predictions_file(images: str, weights: str) -> str:
    """Outputs for the images of the `target`, of `source-val` or of `source-unknown`."""
    return f"{images}-{weights}.npz"


def checkpoint_file(step: int) -> str:
    return CHECKPOINTS.replace("*", f"{step:08d}")


def checkpoint_step(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))
