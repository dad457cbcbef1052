"""opendg reproduce: a table or figure of the paper by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opendg.cli import bench
from opendg.cli.bench import RUNS, GridProgress, ready, show_forecast
from opendg.cli.options import CheckpointEvery, Device, Json, Root, Weights
from opendg.cli.show import say
from opendg.cli.words import names, numbers, refuse_all_but

if TYPE_CHECKING:
    from opendg.bench.produce import Product


# What is heeded where a table is made of records.
OF_RECORDS = ("name", "records", "root", "out", "plan", "take", "score", "note", "quick", "device", "json_")


def command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A table or figure (see `opendg bench plans`) or a TOML plan.")],
    root: Root = None, weights: Weights = None, seeds: bench.Seeds = None, methods: bench.Methods = None,
    targets: bench.Targets = None, backbone: bench.Backbone = None, iterations: bench.Iterations = None,
    config: bench.Configs = None,
    runs: bench.Runs = RUNS,
    out: Annotated[Path | None, typer.Option(help="Where table and records go; default: reproduced/NAME.")] = None,
    plan: Annotated[
        Path | None, typer.Option(help="Methods, settings and recipe of this TOML plan, shown as table NAME.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="Make it from the records in this folder; nothing is trained.")
    ] = None,
    take: Annotated[
        str | None, typer.Option(help="Weights: selected or averaged; default: averaged where a run has them.")
    ] = None,
    score: Annotated[str | None, typer.Option(help="Of figures: one score for all; default: each its own.")] = None,
    note: Annotated[list[str] | None, typer.Option(help="A sentence for the header, e.g. about the data.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few iterations and one seed, to see the shape.")] = False,
    dry_run: bench.Dry = False, jobs: bench.Jobs = 1, on: bench.On = "here", address: bench.Address = None,
    cpus: bench.Cpus = 1, device: Device = "auto", checkpoint_every: CheckpointEvery = 500,
    compile_: bench.Compile = None, retry_failed: bench.Retry = False, json_: Json = False,
) -> None:  # fmt: skip
    """Run what is missing of a table or figure of the paper, then show it beside the published numbers.

    Writes Markdown, LaTeX, CSV and the raw records, or PNG and SVG.

    Example: opendg reproduce pacs-resnet18 --root data --seeds 0,1,2
    """
    bench.refuse_of_ray(context, on)
    with GridProgress(quiet=json_ or dry_run or records is not None) as bar:  # moves while torch is imported
        from opendg.bench import reproduce
        from opendg.bench.made import about_configs, make_into
        from opendg.bench.records import load_records

        if records is not None:
            refuse_all_but(context, OF_RECORDS, "with --records nothing is run, and a table is of all in the folder")
        asked = reproduce.asked_for(
            name, plan, quick, seeds=numbers(seeds), methods=names(methods), targets=names(targets), weights=weights,
            backbone=backbone, iterations=iterations, configs=bench.read_configs(config), score=score,
        )  # fmt: skip
        notes, failed = [*(note or []), *about_configs(config or [])], False
        folder = out or Path("reproduced") / asked.name
        if dry_run:
            show_forecast(asked.name, reproduce.forecast(asked, runs, root, jobs, retry_failed), json_)
            return
        if records is not None:
            results = load_records(records)
        else:
            reproduce.check_writable(folder)
            site = reproduce.site_of(runs, root, device=device, checkpoint_every=checkpoint_every, compile=compile_)
            with ready(on, runs, jobs=jobs, cpus=cpus, device=device, address=address) as runner:
                bar.note(f"{asked.name}: on {runner.told}, runs in {runs}")
                states = reproduce.run_plan(asked, site, runner, retry_failed=retry_failed, report=bar)
            failed = "failed" in states.values()
            notes += reproduce.about_failures(states)
            found = reproduce.results_of(asked, runs, root)
            results, records = reproduce.keep_records(asked, found, folder, take=take, root=root, device=device)
        made = make_into(
            folder, name, records, results, plan=plan, root=root, device=device, take=take, score=score,
            notes=tuple(notes), quick=quick,
        )  # fmt: skip
    show(made, json_)
    if failed:
        typer.echo(f"Some runs failed: see `opendg bench status --runs {runs}`, then try --retry-failed.", err=True)
        raise typer.Exit(1)


def show(made: Product, as_json: bool) -> None:
    """Tables and captions on stdout, and where the files are."""
    from opendg.bench.header import NAMES
    from opendg.bench.produce import comparison_lines
    from opendg.bench.render import block, columns, heading, markdown_table

    if as_json:
        say({"files": [str(path) for path in made.files]})
        return
    for one in made.tables:
        typer.echo("\n".join([one.title, *one.header]) + "\n")
        for metric in one.metrics:
            rows = [[label, *cells] for label, cells in block(one, metric)]
            head = [NAMES.get(metric, metric), *(heading(column) for column in columns(one))]
            typer.echo(markdown_table(head, rows) + "\n")
    if made.comparisons:
        title, names, rows = comparison_lines(made.comparisons)
        typer.echo(f"{title}\n\n{markdown_table(names, rows)}\n")
    if made.numbers:
        typer.echo(made.numbers + "\n")
    if made.caption:
        typer.echo("\n".join(made.caption) + "\n")
    typer.echo("Written: " + ", ".join(str(path) for path in made.files))
