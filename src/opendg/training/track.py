"""Trackers: the curves of a run, beside its log.jsonl, in TensorBoard, Weights & Biases or MLflow.

Each is a Logger of Lightning Fabric and gets the numbers that the log gets, when it gets them, so that the device is
asked for nothing more. A resumed run goes on in the same place: the tracker is given the log up to there once more,
since a kill may have cost it the end, and replaces what it has (TensorBoard) or takes what it lacks (the others). Where
a tracker sends its numbers is said by its own environment variables (WANDB_MODE, MLFLOW_TRACKING_URI ...).
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from opendg.errors import OpenDGError, unknown_name
from opendg.runs.directory import Run
from opendg.runs.files import write_atomic

PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
CHOICES = ("auto", *PACKAGES, "none")


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist or is not installed, before anything is spent."""
    if name not in CHOICES:
        raise unknown_name("tracker", name, CHOICES)
    if name in PACKAGES and not installed(name):
        raise OpenDGError(
            f"--track {name} needs the package {name}, which is not installed: try pip install {name}, or --track none."
        )


def installed(name: str) -> bool:
    return any(find_spec(package) is not None for package in PACKAGES[name])


class Tracker:
    """Writes each entry to the run's log and, where there is one, to its logger. Used in a `with` block.

    A logger that fails (its server is gone, its disk is full) is left out from there on: the log has it all.
    """

    def __init__(self, run: Run, name: str, begin: int) -> None:
        """`begin` is the step that a resumed run goes on from."""
        self.run, self.step = run, begin
        if name == "auto":
            name = "tensorboard" if installed("tensorboard") else "none"
        check_tracker(name)
        self.logger = None if name == "none" else make_logger(name, run)
        for entry in run.read_log() if begin else []:
            self._send(entry)

    def log(self, entry: dict[str, Any]) -> None:
        self.run.log(entry)
        self._send(entry)

    def show(self, numbers: dict[str, float], step: int) -> None:
        """To the logger alone."""
        self.step = step
        self._tell(lambda logger: logger.log_metrics(numbers, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(lambda logger: logger.finalize("success" if error is None else "failed"))

    def _send(self, entry: dict[str, Any]) -> None:
        numbers = {name: value for name, value in flat(entry).items() if not isinstance(value, str)}
        self.show(numbers, int(numbers.pop("step")))

    def _tell(self, what: Callable[[Logger], None]) -> None:
        if self.logger is None:
            return
        try:
            what(self.logger)
        except Exception as error:  # of any kind, from packages that share no base class
            name, self.logger = type(self.logger).__name__, None
            self.run.log({"step": self.step, "warning": f"{name} failed and is left out from here on: {error}"})


def make_logger(name: str, run: Run) -> Logger:
    if name == "tensorboard":
        return _tensorboard(run)
    try:
        return WandbLogger(run) if name == "wandb" else MLflowLogger(run)
    except Exception as error:  # their errors have no common ground: no account, no server, no rights, no room
        reason = str(error).strip().split("\n")[0].rstrip(".")
        offline = "set WANDB_MODE=offline" if name == "wandb" else "see to it"
        raise OpenDGError(f"{name} could not be opened ({reason}): {offline}, or use --track none.") from error


def _tensorboard(run: Run) -> Logger:
    """In the place of the curves of an earlier start, also where a kill came before the first checkpoint.

    Their files are emptied: TensorBoard reads files by the second and the process in their names, so that those of a
    run that was killed and went on within a second might come last. One that is open is told to forget what it has
    read (`purge_step`: from the second start that it sees on). It would wait for ever for a file that is gone.
    """
    for file in (run.path / "tensorboard").glob("events.out.tfevents.*"):
        write_atomic(file, b"")
    return TensorBoardLogger(run.path, name="", version="tensorboard", purge_step=0)


def flat(values: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Nested dicts as one: {"losses": {"ce": 1}} -> {"losses/ce": 1}."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{above}{key}/") if isinstance(value, dict) else {f"{above}{key}": value}
    return found


class _OwnLogger(Logger):
    """What the two below share: a name, an identity, and that no step is logged twice."""

    def __init__(self, run: Run) -> None:
        self._name, self._id = run.path.name, run.identity[:16]  # the same when it is resumed
        self.logged = -1  # the last step that is there already

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> str:
        return self._id

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if step is None or step > self.logged:
            self.send(metrics, step or 0)

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the run's run.json went there when the logger was opened."""

    def send(self, metrics: dict[str, float], step: int) -> None:
        raise NotImplementedError


class WandbLogger(_OwnLogger):
    """Weights & Biases. Its files lie in the run's directory; WANDB_MODE=offline keeps them there."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        wandb = import_module("wandb")
        self.experiment = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "opendg"), id=self._id, name=self._name, dir=run.path,
            config=run.config, resume="allow", reinit="create_new", settings=wandb.Settings(console="off", silent=True),
        )  # fmt: skip
        self.logged = int(self.experiment.step) - 1 if self.experiment.resumed else -1

    def send(self, metrics: dict[str, float], step: int) -> None:
        self.experiment.log(metrics, step=step)

    def finalize(self, status: str) -> None:
        self.experiment.finish(exit_code=0 if status == "success" else 1)


class MLflowLogger(_OwnLogger):
    """MLflow, in the store that MLFLOW_TRACKING_URI or else MLflow's own default names."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.entities = import_module("mlflow.entities")
        self.client = import_module("mlflow.tracking").MlflowClient()
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "opendg")
        known = self.client.get_experiment_by_name(title)
        experiment = known.experiment_id if known else self.client.create_experiment(title)
        found = self.client.search_runs([experiment], f"tags.`opendg.run` = '{self._id}'")
        self.run_id = found[0].info.run_id if found else self._create(experiment, run)
        if found:
            self.client.update_run(self.run_id, "RUNNING")
            steps = [m.step for key in found[0].data.metrics for m in self.client.get_metric_history(self.run_id, key)]
            self.logged = max(steps, default=-1)
        self.sent: list[Any] = []

    def _create(self, experiment: str, run: Run) -> str:
        made = self.client.create_run(experiment, tags={"opendg.run": self._id}, run_name=self._name)
        values = flat(run.config) | {"directory": str(Path(run.path).resolve())}
        params = [self.entities.Param(key, str(value)[:500]) for key, value in values.items()]
        self.client.log_batch(made.info.run_id, params=params)
        return str(made.info.run_id)

    def send(self, metrics: dict[str, float], step: int) -> None:
        """Without waiting for the server."""
        now = int(time.time() * 1000)
        listed = [self.entities.Metric(key, float(value), now, step) for key, value in metrics.items()]
        self.sent.append(self.client.log_batch(self.run_id, metrics=listed, synchronous=False))

    def finalize(self, status: str) -> None:
        for operation in self.sent:
            operation.wait()
        self.client.set_terminated(self.run_id, "FINISHED" if status == "success" else "FAILED")
