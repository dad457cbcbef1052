"""Which iterate of a run is kept. Only source validation images are ever asked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from opendg.errors import OpenDGError
from opendg.methods.base import Method
from opendg.training.recipe import Recipe


def check_selection(method: Method, recipe: Recipe) -> None:
    """A method that ends with a mean over iterations has made its choice; a mean over a new start is of two runs."""
    asked = {
        "--select": (recipe.select != "last", recipe.select, "those of one"),
        "--average-over": (recipe.average_over > 0, recipe.average_over, "another mean"),
    }
    for option, (given, value, other) in asked.items():
        if method.averages and given:
            raise OpenDGError(
                f"{method.title} ends with a mean of the weights of many iterations, and {option} {value} would put "
                f"{other} in its place: leave {option} out."
            )
    if method.restarts and recipe.average_over > 0:
        raise OpenDGError(
            f"{method.title} begins anew within the run, and --average-over {recipe.average_over} would mix both "
            "trainings: leave --average-over out."
        )


class Selection:
    """`last` keeps the last iterate. `source-accuracy` keeps the best seen late in the run; ties keep the latest."""

    def __init__(self, recipe: Recipe) -> None:
        self.active = recipe.select == "source-accuracy"
        self.after, self.end = recipe.select_after, recipe.iterations
        self.interval = max(1, recipe.iterations // 40)
        self.accuracy = -1.0
        self.kept: dict[str, Tensor] = {}

    def due(self, step: int) -> bool:
        return self.active and step / self.end >= self.after and (step % self.interval == 0 or step == self.end)

    def offer(self, accuracy: float, weights: dict[str, Tensor]) -> None:
        if accuracy >= self.accuracy:
            self.accuracy = accuracy
            self.kept = {name: tensor.detach().clone() for name, tensor in weights.items()}

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"best.{name}": tensor for name, tensor in self.kept.items()}
        return tensors, {"best_accuracy": self.accuracy}

    def load(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.accuracy = float(facts["best_accuracy"])
        self.kept = {name.removeprefix("best."): t for name, t in tensors.items() if name.startswith("best.")}
