"""Tuning on source data alone: hyper-parameters by how well a method meets a source domain and classes left out.

A trial is one choice of settings. For each fold it trains on all source domains but one and on two thirds of the known
classes, and is measured on the source domain left out, where the other third is unknown (`folds.py`). Its value is the
mean OSCR over the folds, which are the same for every trial. No image of the target domain is opened, and none of the
unknown classes takes part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from opendg.bench.folds import Fold, check_folds, make_folds
from opendg.bench.search import Search
from opendg.bench.space import RECIPE, SETTINGS
from opendg.bench.study import need_optuna
from opendg.bench.tuner import Tuner
from opendg.errors import OpenDGError, require_one, unknown_name
from opendg.scores.registry import SCORES
from opendg.training.job import Job, authors_of, plan
from opendg.training.lists import names_in
from opendg.training.recipe import Recipe
from opendg.training.train import Report

SAMPLERS = {
    "list": "the same settings for every target: the defaults, then evenly spread ones",
    "tpe": "half of that list, then what Optuna's TPE makes of the results",
}
DEFAULT_ITERATIONS = 1000  # of a trial


def tune(
    method: str, data: str, target: str | Sequence[str], *, trials: int = 8, report: Report | None = None, **asked: Any
) -> Search:
    """Search the settings of a method for a target that is not opened; go on with the search where it was stopped.

    `asked` is what `prepare` takes.
    """
    require_one("--trials", trials)
    return prepare(method, data, target, **asked).run(trials, report)


def prepare(
    method: str, data: str, target: str | Sequence[str], *, iterations: int = DEFAULT_ITERATIONS,
    length: int | None = None, folds: int | None = None, score: str | None = None, sampler: str = "list", seed: int = 0,
    out: str | Path | None = None, device: str = "auto", lanes: int = 2, compile: bool | None = None, **asked: Any,
) -> Tuner:  # fmt: skip
    """A search, checked before anything is spent on it.

    `asked` is what `opendg.train` takes: values of the recipe and of the method (`chosen`) that are given are fixed.
    `length` is that of the runs which the settings are for: a trial is such a run in fast motion (`fast_motion`).
    The folds of a trial train side by side in `lanes`, where the GPU has the room.
    """
    need_optuna()
    if sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS)
    check_length(length, iterations)
    require_one("--lanes", lanes)
    targets = names_in(target) if isinstance(target, str) else list(target)
    job, index, _ = plan(method, data, targets, iterations=iterations, seed=seed, **asked)
    made = make_folds(job.protocol, folds, seed)
    check_enough(job, made)
    check_folds(made, index, job.protocol)
    score = score or job.make_method().score
    if score not in SCORES:
        raise unknown_name("score", score, SCORES)
    folder = Path(out) if out else default_folder(index.dataset, method, targets)
    tuner = Tuner(
        folder, job, made, _fixed(asked), _of_recipe(method, asked), score, sampler, device, lanes, compile, length
    )
    tuner.check()
    return tuner


def check_length(length: int | None, iterations: int) -> None:
    if length is not None and length < 1:
        raise OpenDGError(f"--for {length} is out of range: it is the iterations of the run to be, 1 or more.")
    if length is not None and length < iterations:
        default = " (the default)" if iterations == DEFAULT_ITERATIONS else ""
        raise OpenDGError(
            f"--for {length} is less than --iterations {iterations}{default}, and a trial is no longer than the run: "
            f"give --iterations {length} or fewer, or leave --for out."
        )


def default_folder(dataset: str, method: str, targets: Sequence[str]) -> Path:
    return Path("runs") / "tune" / f"{dataset}-{method}" / "+".join(targets)


def check_enough(job: Job, folds: list[Fold]) -> None:
    method = job.make_method()
    if len(folds[0].sources) < method.min_sources:
        raise OpenDGError(
            f"{method.title} trains on {method.min_sources} or more domains, and tuning holds one of the "
            f"{len(job.protocol.sources)} sources out: name fewer targets."
        )


def _fixed(asked: dict[str, Any]) -> list[str]:
    """The names that were given a value, and are not searched."""
    recipe = [f"{RECIPE}{f.name}" for f in fields(Recipe) if asked.get(f.name) is not None]
    return recipe + [f"{SETTINGS}{name}" for name in asked.get("chosen") or {}]


def _of_recipe(method: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What `--recipe authors` changes: a run with the settings found needs it too."""
    authors = authors_of(method, asked.get("recipe", "common"))
    recipe = {f"{RECIPE}{name}": value for name, value in authors.recipe.items()}
    return recipe | {f"{SETTINGS}{name}": value for name, value in authors.settings.items()}
