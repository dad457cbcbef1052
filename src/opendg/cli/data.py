"""opendg data: download and check datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from opendg.cli.options import Json
from opendg.cli.show import say, table
from opendg.errors import counted, typed

LISTED = 12  # so many classes are counted one by one

app = typer.Typer(help="Download and check datasets.", no_args_is_help=True)


@app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A dataset's name: see `opendg datasets`.")],
    to: Annotated[Path, typer.Option(help="The folder that will hold the dataset.")],
    json_: Json = False,
) -> None:
    """Download a dataset from the Hugging Face Hub, where a public copy is known.

    Example: opendg data fetch pacs --to data
    """
    from opendg.data.fetch import fetch as fetch_dataset

    where = fetch_dataset(name, to)
    say(
        {"dataset": name, "folder": str(where)},
        f"{name} lies in {where}\nNext: opendg data check {typed(where)}",
        json_,
    )


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A folder with a sub-folder or a tar for each domain.")],
    expected: Annotated[
        str | None, typer.Option("--as", help="The dataset that it should be; default: recognised.")
    ] = None,
    json_: Json = False,
) -> None:
    """Count images, open every one, look for duplicates; exit code 1 when something is off.

    Example: opendg data check data/pacs --as pacs
    """
    from opendg.data.check import check as check_folder

    report = check_folder(folder, expected)
    if json_:
        say(report.to_json())
    else:
        show(report.to_json())
    if not report.ok:
        raise typer.Exit(1)


def show(report: dict[str, Any]) -> None:
    """Counts by domain and class, beside what the catalogue expects of a dataset that it knows, then what is off."""
    counts, expected = report["counts"], report["expected"]
    classes = list(next(iter(counts.values())))
    listed = classes if len(classes) <= LISTED else []
    lines = [["domain", *listed, "images", *(["expected"] if expected else [])]]
    for domain, cells in counts.items():
        told = [str(expected.get(domain, "-"))] if expected else []
        lines.append([domain, *(str(cells[name]) for name in listed), str(sum(cells.values())), *told])
    if len(counts) < len(listed):  # the fewer of both are columns, so that a terminal has the room
        lines = [["class", *counts], *map(list, list(zip(*lines, strict=True))[1:])]
    table("Images", lines[0], lines[1:], "" if listed else f"{len(classes)} classes")
    for problem in report["problems"]:
        typer.echo(f"- {problem}")
    found = counted(len(report["problems"]), "thing is", "things are")
    typer.echo("All is well." if report["ok"] else f"{found} off.")
