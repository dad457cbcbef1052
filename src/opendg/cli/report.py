"""opendg report: one HTML page of evaluated runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opendg.cli.show import Progress, say
from opendg.errors import counted


def command(
    runs: Annotated[
        list[Path], typer.Argument(help="Evaluated runs, folders of them, or folders of records (evaluation-*.json).")
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    root: Annotated[
        Path | None, typer.Option(help="Where the datasets lie now: thumbnails are made from their images.")
    ] = None,
    title: Annotated[str, typer.Option(help="The page's title.")] = "OpenDG report",
    points: Annotated[int, typer.Option(help="Images of a run in the t-SNE plane; 0 leaves it out.")] = 500,
    mistakes: Annotated[int, typer.Option(help="Images of each kind of mistake; 0 leaves them out.")] = 12,
    json_: Annotated[bool, typer.Option("--json", help="Print what went into the page as JSON.")] = False,
) -> None:
    """Write one self-contained HTML page: leaderboard, threshold slider, curves, t-SNE, mistakes, commands.

    Example: opendg report runs/ --out page.html
    """
    from opendg.report.build import write_report

    with Progress("Reading runs", quiet=json_) as progress:
        facts = write_report(runs, out, root=root, title=title, points=points, mistakes=mistakes, watch=progress)
    for note in facts["notes"]:
        typer.echo(note, err=True)
    text = (
        f"{facts['page']} ({facts['bytes'] / 1e6:.1f} MB): {counted(facts['runs'], 'run')}, "
        f"{facts['with_predictions']} with predictions, {counted(facts['thumbnails'], 'thumbnail')}, "
        f"protocols: {', '.join(facts['protocols'])}."
    )
    say(facts, text, json_)
