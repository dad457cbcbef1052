"""opendg bench: many runs, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opendg.cli.options import CheckpointEvery, Device, Json, Root, Weights
from opendg.cli.panels import Panelled
from opendg.cli.show import Progress, say, table
from opendg.cli.words import names, numbers, refuse_idle
from opendg.errors import OpenDGError, counted

if TYPE_CHECKING:
    from opendg.bench.grid import Standing
    from opendg.bench.reproduce import Forecast
    from opendg.training.config import Config

app = typer.Typer(help="Many runs: plans, runners, how far they are.", no_args_is_help=True)

Runs = Annotated[Path, typer.Option(help="The folder that holds the runs; several runners may share it.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds joined by commas; default: those of the plan.")]
Methods = Annotated[str | None, typer.Option(help="Only these methods of the plan, joined by commas.")]
Targets = Annotated[str | None, typer.Option(help="Only these target domains, joined by commas.")]
Configs = Annotated[
    list[Path] | None, typer.Option("--config", help="Recipe and settings of a method, as `opendg tune` writes them.")
]
Backbone = Annotated[str | None, typer.Option(help="Another backbone than the plan's.")]
Iterations = Annotated[int | None, typer.Option(help="Iterations of every run instead of the plan's.")]
Jobs = Annotated[int, typer.Option(help="Runs at once on each GPU, or on the CPU where there is none.")]
On = Annotated[str, typer.Option(help="here (this machine) or ray.")]
Address = Annotated[str | None, typer.Option(help="Of the Ray cluster; default: the one this machine belongs to.")]
Cpus = Annotated[int, typer.Option(help="CPUs that a run takes of a Ray node.")]
Retry = Annotated[bool, typer.Option("--retry-failed", help="Try the failed runs again.")]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="torch.compile first; unasked where it pays."),
]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say what would run and how long; needs no data and no GPU.")]
RUNS = Path("runs/bench")


@app.command("run", cls=Panelled)
def run(
    context: typer.Context,
    plan: Annotated[str, typer.Argument(help="A shipped plan's name (see `opendg bench plans`) or a TOML file.")],
    runs: Runs = RUNS, root: Root = None, weights: Weights = None, seeds: Seeds = None, methods: Methods = None,
    targets: Targets = None, backbone: Backbone = None, iterations: Iterations = None, config: Configs = None,
    jobs: Jobs = 1, on: On = "here", address: Address = None, cpus: Cpus = 1, device: Device = "auto",
    checkpoint_every: CheckpointEvery = 500, compile_: Compile = None, retry_failed: Retry = False,
    dry_run: Dry = False, json_: Json = False,
) -> None:  # fmt: skip
    """Train and evaluate every run of a plan. Finished runs are kept, interrupted ones go on, failed ones are noted.

    Example: opendg bench run pacs-resnet18 --root data --seeds 0,1,2 --jobs 2
    """
    refuse_of_ray(context, on)
    with GridProgress(quiet=json_ or dry_run) as bar:  # first of all, so that something moves while torch is imported
        from opendg.bench.plan import load_plan
        from opendg.bench.reproduce import forecast, run_plan, site_of

        asked = load_plan(plan).override(
            seeds=numbers(seeds), methods=names(methods), targets=names(targets), weights=weights, backbone=backbone,
            iterations=iterations, configs=read_configs(config),
        )  # fmt: skip
        if dry_run:
            show_forecast(asked.name, forecast(asked, runs, root, jobs, retry_failed), json_)
            return
        site = site_of(runs, root, device=device, checkpoint_every=checkpoint_every, compile=compile_)
        with ready(on, runs, jobs=jobs, cpus=cpus, device=device, address=address) as runner:
            bar.note(f"{asked.name}: on {runner.told}, runs in {runs}")
            states = run_plan(asked, site, runner, retry_failed=retry_failed, report=bar)
    finish(states, runs, json_)


@app.command("status")
def status(
    folder: Annotated[Path | None, typer.Argument(metavar="RUNS", help="The folder, as with --runs.")] = None,
    runs: Annotated[Path | None, typer.Option(help=f"The folder that holds the runs; default: {RUNS}.")] = None,
    json_: Json = False,
) -> None:
    """Say what is done, running, failed and left, and how long it will take.

    Example: opendg bench status --runs runs/bench
    """
    from opendg.bench.estimate import duration
    from opendg.bench.status import status as look

    if folder and runs:
        raise OpenDGError("Give RUNS or --runs, not both.")
    place = folder or runs or RUNS
    found = look(place)
    if json_:
        say([{"plan": one.plan, "seconds": one.seconds, "runs": [asdict(r) for r in one.runs]} for one in found])
        return
    rows = [
        [
            one.plan, str(len(one.runs)), str(one.count("done")), str(one.count("running")), str(one.count("failed")),
            str(one.count("left", "interrupted")), duration(one.seconds) if one.seconds else "-",
        ]
        for one in found
    ]  # fmt: skip
    table(f"Runs in {place}", ["plan", "runs", "done", "running", "failed", "left", "time left"], rows)
    for run_status in (r for one in found for r in one.runs):
        if run_status.state == "running":
            typer.echo(f"running  {run_status.name}: {run_status.steps}/{run_status.iterations}")
        elif run_status.error:
            typer.echo(f"failed   {run_status.name}: {run_status.error}")


@app.command("plans")
def plans(json_: Json = False) -> None:
    """List the shipped plans.

    Example: opendg bench plans
    """
    from opendg.bench.plan import list_plans, load_plan

    found = {name: load_plan(name) for name in list_plans()}
    rows = [[name, plan.show.kind, plan.title] for name, plan in found.items()]
    if json_:
        say({name: {"kind": plan.show.kind, "title": plan.title} for name, plan in found.items()})
    else:
        table("Plans", ["name", "makes", "of"], rows, "opendg reproduce NAME, or opendg bench run NAME")


@app.command("tables")
def tables(
    folder: Annotated[Path, typer.Argument(help="A folder that holds tables and their records.")] = Path("results"),
    check: Annotated[bool, typer.Option("--check", help="Only say which are stale; exit code 1 then.")] = False,
    json_: Json = False,
) -> None:
    """Make the tables under a folder anew from their records, with the commands in their headers.

    Example: opendg bench tables results --check
    """
    from opendg.bench.made import pages_of, remake, stale

    if check:
        found = stale(folder)
        say(found, "\n".join(found) or f"The tables in {folder} are what their records make.", json_)
        raise typer.Exit(1 if found else 0)
    written = [str(path) for page in pages_of(folder) for path in remake(page)]
    say(written, "\n".join(["Written:", *written]) if written else f"There is no table in {folder}.", json_)


def read_configs(paths: list[Path] | None) -> list[Config]:
    from opendg.training.config import read_config

    return [read_config(path) for path in paths or []]


@contextmanager
def ready(on: str, runs: Path, **options: Any) -> Iterator[Any]:
    """A runner, closed whatever happens."""
    from opendg.bench.runners.choose import make_runner

    runner = make_runner(on, runs, **options)
    try:
        yield runner
    finally:
        runner.close()


def refuse_of_ray(context: typer.Context, on: str) -> None:
    """Refuse the options of the Ray runner beside another one."""
    if on != "ray":
        refuse_idle(context, ["address", "cpus"], "without --on ray there is no cluster")


def show_forecast(name: str, found: Forecast, as_json: bool) -> None:
    """What would run."""
    from collections import Counter

    import torch

    from opendg.bench.estimate import HERE, duration

    counts = dict(Counter(found.states.values()))
    if as_json:
        seconds = {run: estimate.seconds for run, estimate in found.estimates.items()}
        say({"plan": name, "states": found.states, "seconds": found.seconds, "runs": seconds})
        return
    by_method = Counter(found.methods.values())
    rows = [[method, str(number)] for method, number in by_method.items()]
    note = (
        f"{counted(len(found.states), 'run')} in the plan: {', '.join(f'{n} {state}' for state, n in counts.items())}."
    )
    if found.sources:
        note += f"\nAbout {duration(found.seconds)} for what would run, by {'; '.join(found.sources)}."
    if set(found.sources) - {HERE} and not torch.cuda.is_available():
        note += " This machine has no GPU: here it takes many times that."
    if rows:
        table(f"{name}: what would run", ["method", "runs"], rows)
    else:
        typer.echo(f"{name}: nothing would run.")
    typer.echo(note)


def finish(states: dict[str, str], runs: Path, as_json: bool) -> None:
    """What came of a grid; exit code 1 when a run failed."""
    failed = [name for name, state in states.items() if state == "failed"]
    text = f"{len(states) - len(failed)} of {counted(len(states), 'run is', 'runs are')} done, in {runs}."
    if failed:
        text += f" {len(failed)} failed: see `opendg bench status --runs {runs}`, then try --retry-failed."
    say({"runs": str(runs), "states": states}, text, as_json)
    if failed:
        raise typer.Exit(1)


class GridProgress:
    """Progress of a grid on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self.shown, self.quiet, self.said = Progress("runs", quiet), quiet, ""

    def __enter__(self) -> GridProgress:
        self.shown.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.shown.__exit__(*error)

    def note(self, text: str) -> None:
        if not self.quiet:
            typer.echo(text, err=True)

    def __call__(self, grid: Standing) -> None:
        ended, failed = grid.done + grid.failed, f"{grid.failed} failed  " if grid.failed else ""
        steps = ", ".join(f"{name.rsplit('-', 1)[0]} at {step}" for name, step in list(grid.running.items())[:3])
        self.shown.bar.update(self.shown.task, completed=ended, total=grid.total, losses=failed + steps)
        if not self.shown.live and failed + str(ended) != self.said:
            self.said = failed + str(ended)
            self.note(f"{ended} of {counted(grid.total, 'run')}  {failed}{steps}")
