"""A search at work: its trials, one after another, and what is kept of each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opendg.bench.folds import Fold
from opendg.bench.search import (
    FORMAT,
    ITERATIONS,
    Search,
    Trial,
    at_pace,
    clear_runs,
    difference,
    has_results,
    lacking,
    or_nothing,
    times,
)
from opendg.bench.space import RECIPE, SETTINGS, START, candidates, fast_motion, part, space_of, training_of
from opendg.bench.study import keep_study, propose
from opendg.bench.work import readable
from opendg.errors import Diverged, OpenDGError, require_one
from opendg.evaluation.evaluate import evaluate
from opendg.evaluation.share import with_share
from opendg.methods.registry import make_method, settings
from opendg.runs.directory import Run
from opendg.runs.files import make_folder, write_json
from opendg.runs.lock import held
from opendg.runs.restore import choose_weights
from opendg.seeds import derive
from opendg.training.config import write_config
from opendg.training.job import Job
from opendg.training.many import Together, side_by_side
from opendg.training.recipe import Recipe
from opendg.training.train import Report, start


class Tuner:
    """A search at work in its folder."""

    def __init__(
        self, folder: Path, job: Job, folds: list[Fold], fixed: list[str], of_recipe: dict[str, Any], score: str,
        sampler: str, device: str, lanes: int, compile: bool | None, length: int | None,
    ) -> None:  # fmt: skip
        self.folder, self.job, self.folds, self.score, self.sampler = folder, job, folds, score, sampler
        self.pace = pace_of(job, folds[0], length) if length else 1.0
        self.device, self.lanes, self.compile = device, lanes, compile
        self.defaults = {f"{RECIPE}{name}": value for name, value in job.recipe.to_json().items()}
        self.defaults |= {f"{SETTINGS}{name}": value for name, value in job.settings.items()}
        method = job.make_method()
        if method.averages or method.restarts:  # its weights are a mean already, or a mean would mix two trainings
            fixed = [*fixed, f"{RECIPE}average_over"]
        self.space = space_of(job.method, self.defaults, fixed)
        if job.weights == "none":
            self.space.pop(START, None)  # random weights: nothing to keep
        if not self.space:
            raise OpenDGError("Every setting that could be searched is fixed: leave out some of what you gave.")
        self.fixed = {name: value for name, value in of_recipe.items() if name not in self.space}
        self.fixed |= {name: self.defaults[name] for name in fixed}
        if length is not None:
            self.fixed[ITERATIONS] = length
        self.facts = json.loads(json.dumps(self._facts()))
        self.trials: list[Trial] = []
        self.trained: dict[str, tuple[dict[str, Any], Run]] = {}  # by fold: the last training and what was asked of it
        self.runs = len(folds)  # of the whole search: decides whether compiling pays

    def run(self, count: int, report: Report | None) -> Search:
        require_one("--trials", count)
        listed = self._listed(count)
        if self.sampler == "list":
            count = len(listed)
        self.runs = self._trainings(count, listed) * len(self.folds)
        busy = f"Another process is tuning in {str(self.folder)!r}: choose another --out."
        made = lacking(self.folder)
        make_folder(self.folder)
        with held(self.folder, busy), or_nothing(self.folder, made):
            self._begin()
            for number in range(len(self.trials), count):
                together = Together(report, count * len(self.folds), number * len(self.folds))
                self._add(self._trial(number, self._propose(number, listed), together))
            clear_runs(self.folder)
            search = Search(self.folder, self.facts, self.trials)
            self._write_best(search)
        return search

    def _listed(self, count: int) -> list[dict[str, Any]]:
        """The settings of the trials that do not wait for results: with `tpe` the first half of them."""
        return candidates(
            self.space, self.defaults, count if self.sampler == "list" else max(1, count // 2), self.job.seed
        )

    def _trainings(self, count: int, listed: list[dict[str, Any]]) -> int:
        """How many of so many trials train: a list tries several shares of the start for each training."""
        return len(set(map(training_of, listed))) if self.sampler == "list" else count

    @property
    def caution(self) -> str | None:
        """What to know before such a search, in a sentence."""
        if self.pace <= 1 or self.job.weights != "none":
            return None
        return (
            f"--for trains at {times(self.pace)} the learning rate, which a network from scratch seldom bears: better "
            "leave it out."
        )

    def _facts(self) -> dict[str, Any]:
        """What a search is. One that goes on must be the same one."""
        protocol = self.job.protocol
        return {
            "format": FORMAT, "method": self.job.method, "dataset": protocol.dataset, "targets": protocol.targets,
            "sources": protocol.sources, "known": protocol.known, "backbone": self.job.backbone,
            "weights": self.job.weights, "seed": self.job.seed, "split_seed": protocol.split_seed,
            "on_bad_image": self.job.on_bad_image, "score": self.score, "sampler": self.sampler,
            "defaults": self.defaults, "fixed": self.fixed, "pace": self.pace,
            "space": {name: asdict(values) for name, values in self.space.items()},
            "folds": [fold.to_json() for fold in self.folds],
        }  # fmt: skip

    def check(self) -> None:
        """See that the search in the folder is this one, where one has results there."""
        if not has_results(self.folder):
            return
        there = Search.open(self.folder).facts
        if found := difference(there, self.facts, self.facts):
            name, theirs, ours = found
            raise OpenDGError(
                f"{str(self.folder)!r} holds another search ({name}: {theirs} there, {ours} here): choose another "
                "--out, or ask for the same search to go on with it."
            )

    def _begin(self) -> None:
        """Take the folder, or go on with the search in it."""
        if not has_results(self.folder):
            from opendg.training.devices import make_fabric
            from opendg.training.origin import origin

            for name in ("records", "runs"):
                make_folder(self.folder / name)
            write_json(self.folder / "tune.json", self.facts | {"origin": origin(make_fabric(self.device).device)})
        self.check()
        there = Search.open(self.folder)
        self.facts, self.trials = there.facts, there.trials

    def _propose(self, number: int, listed: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings of a trial: from the list, or from what Optuna learnt of the trials so far."""
        if number < len(listed):
            return listed[number]
        return propose(self.trials, self.space, self.score, derive(self.job.seed, "trial", number))

    def _trial(self, number: int, values: dict[str, Any], together: Together) -> Trial:
        """Train and measure every fold. Settings that do not train are a result; defaults that do not are an error."""
        if failure := self._failure(values):
            return Trial(number, values, {}, failure, self.pace)
        try:
            records = dict(self._folds(number, values, together))
        except Diverged as error:
            if number > 0:
                return Trial(number, values, {}, str(error), self.pace)
            if self.pace > 1:
                raise OpenDGError(
                    f"At {times(self.pace)} the learning rate the defaults do not train: give more --iterations, a "
                    "smaller --for, or leave --for out."
                ) from error
            raise
        scores = set.intersection(*(set(record["scores"]) for record in records.values()))
        if self.score not in scores:
            raise OpenDGError(
                f"The score {self.score!r} cannot be read from {self.job.method} with these settings: choose one of "
                f"{', '.join(sorted(scores))}."
            )
        oscr = {
            score: {fold.held: records[fold.held]["scores"][score]["oscr"] for fold in self.folds}
            for score in sorted(scores)
        }
        return Trial(number, values, oscr, pace=self.pace)

    def _failure(self, values: dict[str, Any]) -> str | None:
        """Why an earlier trial on the same training failed, if one did: this one would too."""
        same = (trial for trial in self.trials if training_of(trial.values) == training_of(values))
        return next((trial.error for trial in same if trial.error), None)

    def _folds(self, number: int, values: dict[str, Any], together: Together) -> Iterator[tuple[str, dict[str, Any]]]:
        """(domain held out, evaluation) of every fold; those measured before a kill are read from their records."""
        todo = []
        for fold in self.folds:
            asked = self._asked(fold, values)
            if (record := self._measured(number, fold, asked)) is not None:
                together.kept += 1
                yield fold.held, record
            elif self._has_trained(fold, asked):
                together.kept += 1
                yield fold.held, self._measure(number, fold, asked)
            else:
                todo.append(partial(self._train, number, fold, asked, together.of(fold.held)))
        for run in side_by_side(todo, self.lanes, self.device):
            fold = next(fold for fold in self.folds if self._run(number, fold) == run.path)
            asked = self._asked(fold, values)
            self.trained[fold.held] = (_of_training(asked), run)
            yield fold.held, self._measure(number, fold, asked)

    def _train(self, number: int, fold: Fold, asked: dict[str, Any], report: Report) -> tuple[Run, Iterator[int]]:
        """A fold's run. It forgets its starting weights: what share of them is best can be seen afterwards."""
        if fold.held in self.trained:
            shutil.rmtree(self.trained.pop(fold.held)[1].path)
        path = self._run(number, fold)
        shutil.rmtree(path, ignore_errors=True)
        return start(report=report, out=path, **_of_training(asked))

    def _has_trained(self, fold: Fold, asked: dict[str, Any]) -> bool:
        return fold.held in self.trained and self.trained[fold.held][0] == _of_training(asked)

    def _measure(self, number: int, fold: Fold, asked: dict[str, Any]) -> dict[str, Any]:
        """The evaluation of a fold's run with the share of its start that was asked for, kept as a record."""
        run = self.trained[fold.held][1]
        if share := asked["average_start"]:
            with TemporaryDirectory(dir=run.path.parent, prefix=f"{run.path.name}-") as folder:
                found = measure(with_share(run, share, Path(folder) / "run", self.device), self.score, self.device)
        else:
            found = measure(run, self.score, self.device)
        found |= {"pace": self.pace}  # why its rate is not the trial's
        write_json(self._record(number, fold), found)
        return found

    def _measured(self, number: int, fold: Fold, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a fold, if it is of what would be trained: asked for more trials, TPE proposes other ones."""
        path = self._record(number, fold)
        if not path.exists():
            return None
        try:
            record: dict[str, Any] = json.loads(path.read_text())
        except ValueError:  # cut short: as if it were not there
            return None
        recipe = Recipe(**{f.name: asked[f.name] for f in fields(Recipe)}).to_json()
        meant = {"recipe": recipe, "settings": settings(make_method(self.job.method, asked["chosen"]))}
        same = all(record[key] == value for key, value in json.loads(json.dumps(meant)).items())
        return record if same else None

    def _record(self, number: int, fold: Fold) -> Path:
        return self.folder / "records" / f"{number:03d}-{fold.held}.json"

    def _run(self, number: int, fold: Fold) -> Path:
        return self.folder / "runs" / f"{number:03d}-{fold.held}"

    def _asked(self, fold: Fold, values: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `start` for one fold of a trial. All trials share the seed, so that chance is the same."""
        job, every = self.job, self.defaults | values
        return {
            "method": job.method, "data": job.data, "root": job.root, "target": [fold.held], "sources": fold.sources,
            "known": fold.known, "unknown": fold.unknown, "split_seed": job.protocol.split_seed,
            "backbone": job.backbone, "weights": job.weights, "seed": job.seed, "on_bad_image": job.on_bad_image,
            "chosen": part(every, SETTINGS), **fast_motion(part(every, RECIPE), self.pace),
            "device": self.device, "track": "none",
            "checkpoint_every": job.recipe.iterations + 1, "runs": self.runs, "compile": self.compile,
        }  # fmt: skip

    def _add(self, trial: Trial) -> None:
        """Keep a trial that is done, for us and for Optuna's tools."""
        self.trials.append(trial)
        write_json(self.folder / "trials.json", [asdict(trial) for trial in self.trials])
        keep_study(self.folder / "study.log", self.trials, self.space, self.score)

    def _write_best(self, search: Search) -> None:
        best, protocol = search.best(self.score), self.job.protocol
        held = ", ".join(f"{fold.held} without {'+'.join(fold.unknown)}" for fold in self.folds)
        notes = [
            f"Trial {best.number} of {len(search.trials)}: mean OSCR ({self.score}) {best.value(self.score):.4f} on "
            f"{protocol.dataset} after {self.job.recipe.iterations} iterations{at_pace(self.pace)},",
            f"held out in turn: {held}.",
            f"Found without the target {','.join(protocol.targets)}; opendg tune, {self.facts['origin']['created']}.",
        ]
        write_config(self.folder / "best.toml", best.config(self.job.method, self.fixed), notes)


def _of_training(asked: dict[str, Any]) -> dict[str, Any]:
    """What decides how a run is trained: all but the share of the start, which is mixed in at the end."""
    return asked | {"average_start": 0.0}


def measure(run: Run, score: str, device: str) -> dict[str, Any]:
    """The evaluation of a fold's run: on its averaged weights where it has them."""
    which = choose_weights(run)
    return evaluate(run.path, scores=readable(run, which, (score,)), weights=which, device=device)


def pace_of(job: Job, fold: Fold, length: int) -> float:
    """At how many times its learning rate a run of `length` iterations is tried, in the trial's iterations.

    Steps of SGD go the way of their sum, shared by the images: with lr x iterations / images as in the run, each image
    moves the weights as far. A fold has a share of the run's images, taken as that of its domains times its classes'.
    """
    whole = job.protocol
    share = len(fold.sources) * len(fold.known) / (len(whole.sources) * len(whole.known))
    return share * length / job.recipe.iterations
