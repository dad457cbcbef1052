"""A search in the words of Optuna, which proposes settings (TPE) and whose tools can read what was found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opendg.bench.search import Trial
from opendg.bench.space import Range, Space
from opendg.errors import OpenDGError


def need_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise OpenDGError("Tuning needs Optuna, which is not installed: try pip install 'opendg[tune]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distributions(space: Space) -> dict[str, Any]:
    """The space in Optuna's words."""
    kinds = need_optuna().distributions
    return {
        name: kinds.FloatDistribution(values.low, values.high, log=values.log)
        if isinstance(values, Range)
        else kinds.CategoricalDistribution(values.values)
        for name, values in space.items()
    }


def frozen(trial: Trial, space: Space, score: str) -> Any:
    """A trial as Optuna has it."""
    optuna = need_optuna()
    failed = trial.error is not None
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL if failed else optuna.trial.TrialState.COMPLETE,
        value=None if failed else trial.value(score), params=trial.values, distributions=distributions(space),
        user_attrs={"oscr": trial.oscr, "error": trial.error, "pace": trial.pace},
    )  # fmt: skip


def propose(trials: Sequence[Trial], space: Space, score: str, seed: int) -> dict[str, Any]:
    """What TPE makes of the trials so far."""
    optuna = need_optuna()
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([frozen(trial, space, score) for trial in trials])
    return dict(study.ask(distributions(space)).params)


def keep_study(path: Path, trials: Sequence[Trial], space: Space, score: str) -> None:
    """Add to the journal at `path` those of the trials that it does not have yet."""
    optuna = need_optuna()
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.create_study(study_name="opendg", storage=storage, direction="maximize", load_if_exists=True)
    study.add_trials([frozen(trial, space, score) for trial in trials[len(study.trials) :]])
