"""opendg train: train a method on source domains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opendg.cli import options
from opendg.cli.options import Text
from opendg.cli.show import Progress, say, speaks, tell_left_out
from opendg.cli.words import (
    AGAIN,
    domains,
    known_classes,
    names,
    numbers,
    refuse_all_but,
    refuse_both,
    refuse_idle,
    require,
    settings,
)
from opendg.errors import counted, typed

if TYPE_CHECKING:
    from opendg.runs.directory import Run

RESUMED = ("resume", "root", "device", "devices", "evaluate", "json_")  # what a run that goes on heeds


def command(
    context: typer.Context,
    method: Annotated[Text, typer.Argument(help="A method's name: see `opendg methods`.")] = None,
    data: options.Data = None,
    root: options.Root = None,
    target: Annotated[Text, typer.Option(help="The held-out domain, or several joined by commas.")] = None,
    sources: options.Sources = None,
    known: options.Known = None,
    unknown: options.Unknown = None,
    protocol: Annotated[
        str, typer.Option(help="shared: all sources hold all known classes; daml: each has its own.")
    ] = "shared",
    split_seed: options.SplitSeed = 0,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    config: Annotated[
        Path | None, typer.Option(help="A file with method, recipe and settings, as `opendg tune` writes it.")
    ] = None,
    recipe: Annotated[
        str, typer.Option(help="common: the same for all methods; authors: the method's original.")
    ] = "common",
    iterations: Annotated[int | None, typer.Option(help="How many iterations.")] = None,
    batch: options.Batch = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer: options.Optimizer = None,
    weight_decay: options.WeightDecay = None,
    schedule: Annotated[Text, typer.Option(help="step (x 0.1 at 80 %), cosine or constant.")] = None,
    average_over: Annotated[
        float | None, typer.Option(help="Keep averaged weights too; 0.5: they look back over half of the run.")
    ] = None,
    average_start: Annotated[
        float | None, typer.Option(help="The share of the starting weights in the averaged ones, e.g. 0.1.")
    ] = None,
    select: Annotated[Text, typer.Option(help="Which iterate is kept: last or source-accuracy.")] = None,
    select_after: Annotated[
        float | None, typer.Option(help="source-accuracy: only from this fraction of the run on.")
    ] = None,
    augment: options.Augment = None,
    precision: options.Precision = None,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn at random.")] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method, e.g. order=2.")
    ] = None,
    on_bad_image: options.OnBadImage = "error",
    device: options.Device = "auto",
    devices: Annotated[int, typer.Option(help="Train data-parallel on so many devices (or start with torchrun).")] = 1,
    capture: Annotated[bool, typer.Option(help="Replay the step from a CUDA graph (GPU only).")] = True,
    compile_: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="torch.compile first; unasked from 12,000 iterations on."),
    ] = None,
    each_target: Annotated[Text, typer.Option(help="A run for each: all, or domains joined by commas.")] = None,
    seeds: Annotated[
        Text, typer.Option(help="A run for each seed, e.g. 0,1,2 (with --each-target or --target).")
    ] = None,
    lanes: Annotated[int, typer.Option(help="How many of several runs train at once on a GPU that has the room.")] = 2,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Evaluate each run when it is finished.")] = False,
    checkpoint_every: options.CheckpointEvery = 500,
    track: Annotated[
        str, typer.Option(help="Curves to tensorboard, wandb, mlflow or none; auto: tensorboard where installed.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run's directory; default: runs/DATA-TARGET-METHOD-SEED. With --each-target or --seeds, the "
            "folder of the runs TARGET-SEED; default: runs/DATA-METHOD."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this interrupted run; --root where its data have moved.")
    ] = None,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the run (a list of several) and its record as JSON.")
    ] = False,
) -> None:
    """Train a method on the source domains of a dataset.

    With --each-target or --seeds, the same command goes on where it was stopped.

    Example: opendg train medic --data pacs --root data --target sketch
    """
    records: dict[Path, dict[str, Any]] = {}
    several, evaluate = bool(each_target or seeds), evaluate and speaks()
    if resume is not None:
        refuse_all_but(context, RESUMED, "a run goes on as it was started")
        done = _evaluator(device, root, records) if evaluate else None
        runs = [_resumed(resume, root, device, devices, json_)]
    else:
        asked: dict[str, Any] = {
            "root": root, "sources": names(sources),
            "known": known_classes(known), "unknown": names(unknown),
            "protocol": protocol, "split_seed": split_seed, "backbone": backbone,
            "weights": weights, "recipe": recipe, "iterations": iterations, "batch": batch, "lr": lr,
            "optimizer": optimizer, "weight_decay": weight_decay, "schedule": schedule, "average_over": average_over,
            "average_start": average_start, "select": select, "select_after": select_after,
            "augment": augment, "precision": precision,
            "chosen": settings(set_ or []), "on_bad_image": on_bad_image, "device": device, "devices": devices,
            "capture": capture, "compile": compile_, "checkpoint_every": checkpoint_every, "track": track,
        }  # fmt: skip
        if config is not None:
            from opendg.training.config import read_config

            method, asked = read_config(config).beneath(method, asked)
        refuse_both(context, "target", "each_target")
        refuse_both(context, "seed", "seeds")
        if not several:
            refuse_idle(context, ["lanes"], "there is one run, and --each-target or --seeds make several")
        method, data = require("train", method, data, target or each_target, root)
        from opendg.training.job import home

        done = _evaluator(device, home(data, root), records) if evaluate else None
        if several:
            numbered = numbers(seeds) or [seed]
            runs = _many(method, data, target, each_target, numbered, out, lanes, done, json_, asked)
        else:
            runs = [_one(method, data, str(target), seed, out, json_, asked)]
    if not speaks():
        return
    if done and not several:  # several runs are evaluated as they finish
        done(runs[0])
    _tell(runs, records, several, json_)


def _tell(runs: list[Run], records: dict[Path, dict[str, Any]], several: bool, json_: bool) -> None:
    """The runs, and their records where they were evaluated: one run, or a list where several were asked for."""
    from opendg.cli.evaluate import missed, show_all

    if records and not json_:
        show_all(list(records.values()))
    tell_left_out((key for run in runs for key in run.manifest.get("skipped", [])), "training")
    tell_left_out((key for record in records.values() for key in missed(record)), "the evaluation")
    found: list[dict[str, Any]] = [
        {"run": str(run.path)} | ({"record": records[run.path]} if run.path in records else {}) for run in runs
    ]
    told = "\n".join(f"Run: {run.path}" for run in runs)
    first = runs[0].path
    next_ = f"report {typed(first.parent)} --out report.html" if records else f"evaluate {typed(first)}"
    say(found if several else found[0], f"{told}\nNext: opendg {next_}", json_)


def _resumed(path: Path, root: Path | None, device: str, devices: int, quiet: bool) -> Run:
    from opendg.training.train import resume

    with Progress("resume", quiet=quiet) as progress:
        run = resume(path, root=root, device=device, devices=devices, report=progress)
    for sentence in (entry["warning"] for entry in run.read_log() if "warning" in entry):
        typer.echo(sentence, err=True)
    return run


def _one(method: str, data: str, target: str, seed: int, out: Path | None, quiet: bool, asked: dict[str, Any]) -> Run:
    from opendg.training.train import train

    with Progress(f"{method} -> {target}", quiet=quiet) as progress:
        return train(method, data, target, out=out, seed=seed, report=progress, **asked)


def _many(
    method: str, data: str, target: str | None, each: str | None, seeds: list[int], out: Path | None, lanes: int,
    done: Callable[[Run], None] | None, quiet: bool, asked: dict[str, Any],
) -> list[Run]:  # fmt: skip
    from opendg.data.catalog import open_dataset
    from opendg.training.many import train_many

    index = open_dataset(data, asked["root"])
    targets = domains(each, index) if each else [str(target)]
    folder = out or Path("runs") / f"{index.dataset}-{method}"
    try:
        with Progress(f"{method}: {counted(len(targets) * len(seeds), 'run')}", quiet=quiet) as progress:
            return train_many(
                method, data, targets, seeds, folder=folder, lanes=lanes, report=progress, finished=done,
                note=progress.note, **asked,
            )  # fmt: skip
    except KeyboardInterrupt as stop:
        stop.add_note(AGAIN)
        raise


def _evaluator(device: str, root: str | Path | None, records: dict[Path, dict[str, Any]]) -> Callable[[Run], None]:
    """What is done with a run that is finished: its record joins `records`, as it was written or else made now."""
    from opendg.evaluation.evaluate import evaluate, record_file
    from opendg.runs.restore import choose_weights

    def done(run: Run) -> None:
        try:
            records[run.path] = json.loads(record_file(run, choose_weights(run)).read_text())
        except (OSError, ValueError):
            records[run.path] = evaluate(run.path, root=root, device=device)

    return done
