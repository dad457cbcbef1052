"""opendg tune: search hyper-parameters on source data alone."""

from __future__ import annotations

import shlex
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opendg.cli import options
from opendg.cli.evaluate import percent
from opendg.cli.options import Text
from opendg.cli.show import Progress, say, table, tell_left_out
from opendg.cli.words import domains, known_classes, names, refuse_all_but, refuse_both, require, settings
from opendg.errors import OpenDGError, require_one
from opendg.training.lists import as_options

if TYPE_CHECKING:
    from opendg.bench.combine import Place
    from opendg.bench.search import Search
    from opendg.bench.tuner import Tuner

COMBINED = ("what", "combine", "score", "out", "json_")  # what --combine heeds
AS_ASKED = {  # what of a search a run with its settings is asked for again, and what it is unasked
    "root": None, "sources": None, "known": None, "unknown": None, "split_seed": 0, "backbone": None, "weights": None,
    "on_bad_image": "error",
}  # fmt: skip


def command(
    context: typer.Context,
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="A method; with --combine: searches, or the folder that holds them."),
    ] = None,
    data: options.Data = None,
    root: options.Root = None,
    target: Annotated[Text, typer.Option(help="The held-out domain, or several joined by commas. Not opened.")] = None,
    each_target: Annotated[Text, typer.Option(help="A search for each: all, or domains joined by commas.")] = None,
    combine: Annotated[
        bool, typer.Option("--combine", help="Choose one setting for all targets from finished searches.")
    ] = False,
    sources: options.Sources = None,
    known: options.Known = None,
    unknown: options.Unknown = None,
    split_seed: options.SplitSeed = 0,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    recipe: Annotated[str, typer.Option(help="What the search starts from: common, or authors.")] = "common",
    trials: Annotated[int, typer.Option(help="How many settings are tried, the defaults first.")] = 8,
    iterations: Annotated[int, typer.Option(help="How many iterations each of them is trained.")] = 1000,
    for_: Annotated[
        int | None, typer.Option("--for", help="Iterations of the run to be: a trial is that run in fast motion.")
    ] = None,
    folds: Annotated[int | None, typer.Option(help="Source domains to hold out in turn; default: all.")] = None,
    score: Annotated[Text, typer.Option(help="The score whose OSCR counts; default: the method's own.")] = None,
    sampler: Annotated[
        str, typer.Option(help="list: the same settings for every target; tpe: half of it, then Optuna's TPE.")
    ] = "list",
    batch: options.Batch = None,
    lr: Annotated[float | None, typer.Option(help="Fix the learning rate instead of searching it.")] = None,
    optimizer: options.Optimizer = None,
    weight_decay: options.WeightDecay = None,
    schedule: Annotated[Text, typer.Option(help="Fix the schedule: step, cosine or constant.")] = None,
    average_over: Annotated[
        float | None, typer.Option(help="Fix the share of the run that averaged weights look back over; 0: none.")
    ] = None,
    average_start: Annotated[
        float | None, typer.Option(help="With --average-over, fix the share of the starting weights in them.")
    ] = None,
    augment: options.Augment = None,
    precision: options.Precision = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Fix a setting of the method.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the settings tried, the folds and the trainings.")] = 0,
    on_bad_image: options.OnBadImage = "error",
    device: options.Device = "auto",
    compile_: Annotated[
        bool | None,
        typer.Option(
            "--compile/--no-compile", help="torch.compile first; unasked where a search has 12,000 iterations."
        ),
    ] = None,
    lanes: Annotated[int, typer.Option(help="How many folds train at once on a GPU that has the room.")] = 2,
    out: Annotated[
        Path | None, typer.Option(help="The search's folder (runs/tune/DATA-METHOD); --combine: a file.")
    ] = None,
    json_: options.Json = False,
) -> None:
    """Search the settings of a method without opening the target: source domains and known classes are held out.

    The same command goes on with a search that was stopped.

    The best settings are written as a config for `opendg train --config`.

    Example: opendg tune medic --data pacs --root data --target sketch
    """
    if combine:
        refuse_all_but(context, COMBINED, "searches are combined as they were asked for")
        _combined(_found(what or []), out, score, json_)
        return
    if what and len(what) > 1:
        raise OpenDGError(f"One search is of one method, and {' and '.join(what)} were given: name one of them.")
    refuse_both(context, "target", "each_target")
    method, data = require("tune", what[0] if what else None, data, target or each_target, root)
    from opendg.bench.tune import prepare

    require_one("--trials", trials)  # before anything is said of a search that lies there
    asked: dict[str, Any] = {
        "root": root, "sources": names(sources), "known": known_classes(known),
        "unknown": names(unknown), "split_seed": split_seed, "backbone": backbone, "weights": weights, "recipe": recipe,
        "iterations": iterations, "length": for_, "folds": folds, "score": score, "sampler": sampler,
        "batch": batch, "lr": lr, "optimizer": optimizer, "weight_decay": weight_decay, "schedule": schedule,
        "average_over": average_over, "average_start": average_start, "augment": augment, "precision": precision,
        "chosen": settings(set_ or []), "seed": seed,
        "on_bad_image": on_bad_image, "device": device, "compile": compile_, "lanes": lanes,
    }  # fmt: skip
    if each_target:
        _each(method, data, each_target, trials, out, json_, asked)
    else:
        (search,) = _searches([prepare(method, data, str(target), out=out, **asked)], trials, json_)
        _show(search, data, asked, json_)


def _searches(tuners: list[Tuner], trials: int, quiet: bool) -> list[Search]:
    if caution := tuners[0].caution:
        typer.echo(caution, err=True)
    found = []
    for tuner in tuners:
        unseen = ",".join(tuner.job.protocol.targets)
        with Progress(f"tune {tuner.job.method}, target {unseen} unseen", quiet=quiet) as progress:
            found.append(tuner.run(trials, progress))
    tell_left_out((key for search in found for key in search.left_out()), "the search")
    return found


def _each(method: str, data: str, each: str, trials: int, out: Path | None, json_: bool, asked: dict[str, Any]) -> None:
    """A search for each target, all checked before the first begins; then the one setting for all of them."""
    from opendg.bench.combine import check_out
    from opendg.bench.tune import default_folder, prepare
    from opendg.data.catalog import open_dataset

    index = open_dataset(data, asked["root"])
    folder = out or default_folder(index.dataset, method, ["all"]).parent
    targets = domains(each, index)
    check_out(folder / "best.toml")
    tuners = [prepare(method, data, target, out=folder / target, **asked) for target in targets]
    searches = _searches(tuners, trials, json_)
    if not json_ or len(searches) == 1:
        for search in searches:
            _show(search, data, asked, json_)
    if len(searches) > 1:
        _combined(searches, folder / "best.toml", asked["score"], json_)


def _show(search: Search, data: str, asked: dict[str, Any], json_: bool) -> None:
    """The trials of a search, best first."""
    facts, score = search.facts, search.facts["score"]
    best, config = search.best(score), search.folder / "best.toml"
    if json_:
        say({"config": str(config), "best": best.number, "score": score, "folder": str(search.folder),
             "oscr": best.value(score), "pace": best.pace, "values": facts["fixed"] | best.values})  # fmt: skip
        return
    held = [fold["held"] for fold in facts["folds"]]
    rows = [
        [str(trial.number), *_values(trial.values), *(percent(trial.oscr.get(score, {}).get(name)) for name in held),
         percent(trial.value(score)) if not trial.error else "failed"]
        for trial in sorted(search.trials, key=lambda trial: -trial.value(score))
    ]  # fmt: skip
    out = "; ".join(f"{fold['held']} ({', '.join(fold['unknown'])} unknown)" for fold in facts["folds"])
    note = (
        f"OSCR of {score} in percent, on source domains held out in turn: {out}.\nThe target "
        f"{', '.join(facts['targets'])} was not opened. Trial 0 has the defaults.{_hurried(search)}"
    )
    title = f"{facts['method']} on {facts['dataset']}"
    table(title, ["trial", *_names(best.values), *held, "mean"], rows, note)
    typer.echo(f"Best: trial {best.number}, written to {config}")
    again: dict[str, Any] = {"config": config, "data": data, "target": facts["targets"]}
    again |= {name: asked[name] for name, unasked in AS_ASKED.items() if asked[name] != unasked}
    typer.echo(f"Next: {shlex.join(['opendg', 'train', *as_options(again)])}")


def _hurried(search: Search) -> str:
    """What the table adds where trials were runs in fast motion."""
    from opendg.bench.search import times

    pace = search.facts["pace"]
    return f"\nAll were trained at {times(pace)} these learning rates (--for)." if pace != 1 else ""


def _found(folders: list[str]) -> list[Search]:
    from opendg.bench.combine import find_searches

    if not folders:
        raise OpenDGError("--combine needs folders of searches: try `opendg tune --combine runs/tune/pacs-medic`.")
    return find_searches(folders)


def _combined(searches: list[Search], out: Path | None, score: str | None, json_: bool) -> None:
    from opendg.bench.combine import NOTE, beside, combine

    out = out or beside(searches)
    places = combine(searches, out, score)
    best = places[0]
    if json_:
        listed = [{"trial": p.trial.number, "mean_rank": p.mean_rank, "mean_oscr": _oscr(p)} for p in places]
        say({"config": str(out), "best": best.trial.number, "values": best.trial.values, "note": NOTE,
             "trials": listed})  # fmt: skip
        return
    targets = list(best.ranks)
    columns = ["trial", *_names(best.trial.values), *(f"rank {name}" for name in targets), "mean rank", "mean OSCR"]
    table(
        "One setting for all targets", columns, [_row(place, targets) for place in places], NOTE + _hurried(searches[0])
    )
    typer.echo(f"Best: trial {best.trial.number}, written to {out}")


def _row(place: Place, targets: list[str]) -> list[str]:
    ranks = [f"{place.ranks[name]:g}" for name in targets]
    return [str(place.trial.number), *_values(place.trial.values), *ranks, f"{place.mean_rank:.2f}",
            percent(_oscr(place))]  # fmt: skip


def _oscr(place: Place) -> float | None:
    """The mean OSCR; none for settings that failed to train somewhere."""
    return place.mean_oscr if isfinite(place.mean_oscr) else None


def _names(values: dict[str, Any]) -> list[str]:
    return [name.split(".", 1)[1] for name in values]


def _values(values: dict[str, Any]) -> list[str]:
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values.values()]
