"""A search for settings, as it lies in its folder.

tune.json           what is searched, on what, by which code
trials.json         settings and OSCR of every trial that is done, for all scores
records/            the evaluation of each trial and fold
study.log           the same trials as an Optuna study (journal storage)
best.toml           the best settings: `opendg train --config` takes them
runs/               trials on their way; a run is removed once it is measured
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from opendg.bench.space import RECIPE, SETTINGS, part
from opendg.errors import OpenDGError
from opendg.runs.lock import LOCK
from opendg.training.config import Config
from opendg.training.recipe import without_older_average

FORMAT = "opendg-tune-1"
ITERATIONS = f"{RECIPE}iterations"
KINDS: dict[str, Any] = {  # what must be in a tune.json
    "format": str, "method": str, "dataset": str, "targets": list, "sources": list, "known": list, "backbone": str,
    "weights": str, "seed": int, "score": str, "sampler": str, "defaults": dict, "fixed": dict, "space": dict,
    "folds": list,
}  # fmt: skip
NUMBERED = "[0-9][0-9][0-9]-*"  # how the records and the runs of trials are named


@dataclass(frozen=True)
class Trial:
    """Settings and what they reached: score -> domain held out -> OSCR. A trial that failed has an error instead."""

    number: int
    values: dict[str, Any]  # by `recipe.NAME` and `settings.NAME`, of the run to be
    oscr: dict[str, dict[str, float]]
    error: str | None = None
    pace: float = 1.0  # it was trained at so many times the learning rate: see `fast_motion`

    def value(self, score: str) -> float:
        """The mean OSCR over the folds; minus infinity for a trial that failed."""
        return fmean(self.oscr[score].values()) if score in self.oscr else float("-inf")

    def config(self, method: str, fixed: dict[str, Any]) -> Config:
        values = fixed | self.values
        recipe = without_older_average(part(values, RECIPE), f"Trial {self.number}")
        return Config(method, recipe, part(values, SETTINGS))


@dataclass(frozen=True)
class Search:
    """A folder with its facts (tune.json) and the trials that are done."""

    folder: Path
    facts: dict[str, Any]
    trials: list[Trial]

    @classmethod
    def open(cls, folder: Path) -> Search:
        if not (folder / "tune.json").exists():
            raise OpenDGError(f"{str(folder)!r} is no search: a folder that `opendg tune` made was expected.")
        facts = _facts(folder / "tune.json")
        return cls(folder, facts, _trials(folder / "trials.json", facts["pace"]))

    def left_out(self) -> list[str]:
        """Keys of the broken images that its trials did without, as their records have them."""
        records = [_json(path) or {} for path in sorted((self.folder / "records").glob(NUMBERED))]
        found = [keys for record in records for keys in record.get("skipped", {}).values()]
        return sorted({key for keys in found for key in keys})

    def best(self, score: str) -> Trial:
        return max(self.trials, key=lambda trial: trial.value(score))  # the first of equals


def _facts(path: Path) -> dict[str, Any]:
    """A tune.json. Older ones lack some: the pace is in their iterations, the others are the defaults."""
    facts: dict[str, Any] = _json(path)
    if isinstance(facts, dict) and facts.get("format", FORMAT) != FORMAT:
        raise OpenDGError(f"{str(path.parent)!r} is not a search of this version of OpenDG ({FORMAT!r}): tune anew.")
    whole = isinstance(facts, dict) and all(isinstance(facts.get(key), kind) for key, kind in KINDS.items())
    if not whole or not facts["defaults"].get(ITERATIONS):
        raise OpenDGError(f"{str(path)!r} is damaged: tune anew, in another folder.")
    trained = facts["defaults"][ITERATIONS]
    pace = facts["fixed"].get(ITERATIONS, trained) / trained
    return {"pace": pace, "split_seed": 0, "on_bad_image": "error"} | facts


def _trials(path: Path, pace: float) -> list[Trial]:
    if not path.exists():
        return []
    listed = _json(path)
    try:
        trials = [Trial(**({"pace": pace} | trial)) for trial in listed]
    except TypeError:
        trials = []
    whole = all(trial.number == place and isinstance(trial.oscr, dict) for place, trial in enumerate(trials))
    if not whole or not trials:
        raise OpenDGError(
            f"{str(path)!r} is damaged: remove it, and the same `opendg tune` makes it anew from the records beside it."
        )
    return trials


def _json(path: Path) -> Any:
    """What a file says; nothing where it is cut short."""
    try:
        return json.loads(path.read_text())
    except ValueError:
        return None
    except OSError as error:
        raise OpenDGError(f"{str(path)!r} cannot be read ({error.strerror}).") from error


def has_results(folder: Path) -> bool:
    """Whether a search in the folder has measured anything: until then the folder is free for another."""
    return (folder / "trials.json").exists() or any((folder / "records").glob(NUMBERED))


def lacking(folder: Path) -> list[Path]:
    """What a search in the folder has to make, the innermost first."""
    places = (folder / "tune.json", folder / "records", folder / LOCK, folder, *folder.parents)
    return [path for path in places if not path.exists()]


@contextmanager
def or_nothing(folder: Path, made: list[Path]) -> Iterator[None]:
    """A search that ends before it has measured anything leaves nothing behind that it made."""
    try:
        yield
    except BaseException:
        if not has_results(folder):
            clear_runs(folder)
            for path in made:
                with suppress(OSError):  # a folder in which something else lies stays
                    path.rmdir() if path.is_dir() else path.unlink()
        raise


def clear_runs(folder: Path) -> None:
    """Remove what is left of trials on their way."""
    for path in (folder / "runs").glob(NUMBERED):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # it may not be there, or hold runs of the user's
        (folder / "runs").rmdir()


def difference(one: dict[str, Any], other: dict[str, Any], keys: Iterable[str]) -> tuple[str, str, str] | None:
    """The first value that sets the facts of two searches apart, and what each has for it, in the user's words."""
    for key in keys:
        if one[key] == other[key]:
            continue
        if not isinstance(one[key], dict):
            return "target" if key == "targets" else key, _words(one[key]), _words(other[key])
        a, b = one[key], other[key]
        name = next(name for name in a | b if name not in a or name not in b or a[name] != b[name])
        shown = "--for" if name == ITERATIONS and key == "fixed" else name.split(".", 1)[1]
        return shown, _had(one, key, name), _had(other, key, name)
    return None


def _had(facts: dict[str, Any], key: str, name: str) -> str:
    return _words(facts[key][name]) if name in facts[key] else "searched" if name in facts["space"] else "not given"


def _words(value: Any) -> str:
    """A value as it is given on the command line; a fold by what it holds out."""
    if isinstance(value, dict):
        return f"{value['held']} without {'+'.join(value['unknown'])}" if "held" in value else json.dumps(value)
    return ",".join(map(_words, value)) if isinstance(value, list) else str(value)


def times(pace: float) -> str:
    """A pace in words."""
    return f"{pace:.0f} times" if pace >= 100 else f"{pace:.3g} times"


def at_pace(pace: float) -> str:
    """How fast trials went, behind what is said of their length; nothing where they went as fast as the run."""
    return f" at {times(pace)} the learning rate" if pace != 1 else ""
