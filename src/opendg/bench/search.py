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
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from opendg.bench.space import RECIPE, SETTINGS, part
from opendg.errors import OpenDGError
from opendg.training.config import Config

FORMAT = "opendg-tune-1"


@dataclass(frozen=True)
class Trial:
    """Settings and what they reached: score -> domain held out -> OSCR. A trial that failed has an error instead."""

    number: int
    values: dict[str, Any]  # by `recipe.NAME` and `settings.NAME`
    oscr: dict[str, dict[str, float]]
    error: str | None = None

    def value(self, score: str) -> float:
        """The mean OSCR over the folds; minus infinity for a trial that failed."""
        return fmean(self.oscr[score].values()) if score in self.oscr else float("-inf")

    def config(self, method: str, fixed: dict[str, Any]) -> Config:
        values = fixed | self.values
        return Config(method, part(values, RECIPE), part(values, SETTINGS))


@dataclass(frozen=True)
class Search:
    """A folder with its facts (tune.json) and the trials that are done."""

    folder: Path
    facts: dict[str, Any]
    trials: list[Trial]

    @classmethod
    def open(cls, folder: Path) -> Search:
        try:
            facts = json.loads((folder / "tune.json").read_text())
            listed = folder / "trials.json"
            trials = [Trial(**trial) for trial in json.loads(listed.read_text())] if listed.exists() else []
        except (OSError, ValueError, TypeError) as error:
            raise OpenDGError(
                f"{str(folder)!r} is no search: a folder that `opendg tune` made was expected."
            ) from error
        if facts.get("format") != FORMAT:
            raise OpenDGError(f"{str(folder)!r} is not a search of this version of OpenDG ({FORMAT!r}): tune anew.")
        return cls(folder, facts, trials)

    def best(self, score: str) -> Trial:
        return max(self.trials, key=lambda trial: trial.value(score))  # the first of equals
