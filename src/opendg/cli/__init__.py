"""The command line: one file a command. It parses, calls the library and prints; torch is imported late."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from opendg.cli import bench, data, demo, evaluate, lists, predict, report, reproduce, train, tune
from opendg.cli.panels import Panelled
from opendg.cli.words import AGAIN
from opendg.errors import OpenDGError

INTERRUPTED = 130  # the exit code of a command that Ctrl-C has ended
REPEATED = ("tune", "bench", "reproduce")  # go on when they are given again


class Commands(TyperGroup):
    """The commands. One that Ctrl-C ends says how it goes on: the same again, or as the training notes it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            notes = [AGAIN] if ctx.invoked_subcommand in REPEATED else getattr(stop, "__notes__", [])[-1:]
            typer.echo(": ".join(["Interrupted", *notes]) + ".", err=True)
            raise typer.Exit(INTERRUPTED) from stop


app = typer.Typer(
    name="opendg",
    cls=Commands,
    help="Classifiers for domains and classes they have never seen: open-set domain generalization.\n\n"
    "Start with: opendg demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", cls=Panelled)(train.command)
app.command("evaluate")(evaluate.command)
app.command("predict")(predict.command)
app.command("demo")(demo.command)
app.command("report")(report.command)
app.command("reproduce", cls=Panelled)(reproduce.command)
app.command("tune", cls=Panelled)(tune.command)
app.command("methods")(lists.methods)
app.command("datasets")(lists.datasets)
app.command("scores")(lists.scores)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"opendg {version('opendg')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    """What holds for every command."""


def main() -> None:
    """Run a command; an error is one sentence and exit code 2."""
    # Threads of torch that wait for one another do so asleep: spinning, they are ten times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if isinstance(sys.stdout, TextIOWrapper):  # a file's name may hold what stdout cannot encode: shown as \xe4
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except OpenDGError as error:
        if "--debug" in sys.argv:
            raise
        typer.secho(f"Error: {error}", fg="red", err=True)
        sys.exit(2)
