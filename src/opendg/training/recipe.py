"""The Recipe: how long and how fast, common to all methods, so that a table compares methods and not recipes."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any

from opendg.data.augment import AUGMENTATIONS
from opendg.errors import OpenDGError, unknown_name
from opendg.training.lists import option
from opendg.training.optim import OPTIMIZERS, SCHEDULES

SELECTIONS = {
    "last": "the last iterate",
    "source-accuracy": "the best accuracy on source validation images; ties keep the latest",
}


@dataclass(frozen=True)
class Recipe:
    iterations: int = 4000
    batch: int = 8  # B: images of a task; an iteration sees 6 B (MEDIC++: 9 B)
    lr: float = 1e-4
    optimizer: str = "sgd"
    weight_decay: float = 5e-4
    schedule: str = "step"
    average_over: float = 0.0  # the share of the run that averaged weights look back over; 0 keeps none
    average_start: float = 0.0  # the share of the starting weights in them
    select: str = "last"
    select_after: float = 0.6  # with source-accuracy: only this far into the run and later
    augment: str = "photo"
    precision: str = "auto"  # of the backbone: bf16, fp32, or auto (bf16 on GPUs that have it)

    def __post_init__(self) -> None:
        self._require("iterations", self.iterations >= 1, "must be 1 or more")
        self._require("batch", self.batch >= 1, "must be 1 or more")
        self._require("lr", 0 < self.lr < math.inf, "must be above 0 and finite")
        self._require("weight_decay", 0 <= self.weight_decay < math.inf, "must be 0 or more and finite")
        share = "is out of range: give a share of the run such as 0.5, or 0 for none"
        self._require("average_over", 0 <= self.average_over <= 1, share)
        self._require("average_start", 0 <= self.average_start < 1, "is out of range: give a share such as 0.1")
        self._require(
            "average_start", self.average_start == 0 or self.average_over > 0, "needs --average-over 0.5, say"
        )
        self._require("select_after", 0 <= self.select_after <= 1, "is out of range: give a share between 0 and 1")
        if self.select not in SELECTIONS:
            raise OpenDGError(f"There is no selection rule {self.select!r}: choose {' or '.join(SELECTIONS)}.")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise OpenDGError(f"There is no precision {self.precision!r}: choose auto, bf16 or fp32.")
        _check("optimiser", self.optimizer, OPTIMIZERS)
        _check("schedule", self.schedule, SCHEDULES)
        _check("augmentation", self.augment, AUGMENTATIONS)

    def _require(self, name: str, good: bool, otherwise: str) -> None:
        if not good:
            raise OpenDGError(f"{option(name)} {getattr(self, name)} {otherwise}.")

    def rule(self, weights: str) -> str:
        """How the `selected` or the `averaged` weights came to be, in words."""
        if weights == "selected":
            return SELECTIONS[self.select]
        kept = f", {self.average_start:g} of the starting weights" if self.average_start else ""
        return f"averaged weights (over {self.average_over:g} of the run{kept})"

    @property
    def decay(self) -> float:
        """Of averaged weights: 1 - 1 / n looks back over n iterations, here a share of the run and two at the least."""
        return 1 - 1 / max(2.0, self.average_over * self.iterations)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _check(what: str, name: str, choices: Collection[str]) -> None:
    if name not in choices:
        raise unknown_name(what, name, choices)


def without_older_average(recipe: dict[str, Any], whose: str) -> dict[str, Any]:
    """A recipe that an older version may have written, where `average` was the decay of averaged weights.

    They looked back otherwise, so that neither a record nor a training of today would be of what was done.
    """
    if recipe.get("average"):
        raise OpenDGError(
            f"{whose} has averaged weights by a decay (average = {recipe['average']}), as an older OpenDG made them: "
            "use the version of its commit, or say what share of the run they look back over, as in average_over = 0.5."
        )
    return {name: value for name, value in recipe.items() if name != "average"}


def default_recipe(pretrained: bool, **asked: Any) -> Recipe:
    """Fine-tuning takes small steps; a network from scratch takes steps twenty times larger."""
    recipe = Recipe(lr=1e-4 if pretrained else 2e-3)
    return replace(recipe, **asked)
