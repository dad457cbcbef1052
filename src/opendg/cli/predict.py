"""opendg predict: label images, or say that they are of no known class."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from opendg.cli.options import Device
from opendg.cli.show import Progress, table
from opendg.errors import OpenDGError

if TYPE_CHECKING:
    from opendg.deploy.recognizer import Prediction


def command(
    run: Annotated[Path, typer.Argument(help="A finished run's directory.")],
    images: Annotated[list[Path], typer.Argument(help="Images and folders.")],
    score: Annotated[
        str | None,
        typer.Option(
            help="The score that decides; default: the method's own, and bcls in place of cls where there is a "
            "one-vs-all head."
        ),
    ] = None,
    accept: Annotated[float, typer.Option(help="Share of source validation images that the threshold accepts.")] = 0.95,
    weights: Annotated[str | None, typer.Option(help="selected or averaged.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="table (the default), csv or jsonl.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="The same as --format jsonl.")] = False,
    device: Device = "auto",
) -> None:
    """Predict images: a label or `unknown`, with a confidence. Broken images are reported, the rest still predicted.

    Example: opendg predict runs/pacs-sketch-medic-0 photos/ --format csv
    """
    from opendg.data.tree import SUFFIXES
    from opendg.deploy.recognizer import find_images, load
    from opendg.runs.directory import Run

    if json_ and format_ not in (None, "jsonl"):
        raise OpenDGError(f"--json is --format jsonl, and --format {format_} was given too: leave one of them out.")
    kind = "jsonl" if json_ else format_ or "table"
    if kind not in ("table", "csv", "jsonl"):
        raise OpenDGError(f"There is no format {kind!r}: choose table, csv or jsonl.")
    files = find_images(images)
    if not files:
        Run.open(run)  # given the wrong way round, this is what is wrong
        raise OpenDGError(
            f"No image was found in {', '.join(map(str, images))}: give files, or folders that hold "
            f"{', '.join(SUFFIXES)}."
        )
    out = sys.stdout
    silent = not sys.stderr.isatty() or (kind != "table" and out.isatty())  # rows and a bar do not share a screen
    with Progress("predict", quiet=silent) as progress:
        recognizer = load(run, score=score, accept=accept, weights=weights, device=device)
        found = _watched(recognizer.stream(files), len(files), progress)
        if kind == "table":
            listed = list(found)
        else:
            broken = (_csv if kind == "csv" else _jsonl)(found, out)
    if kind == "table":
        rows = [[p.image, p.label, p.closest, "-" if p.confidence is None else f"{p.confidence:.3f}"] for p in listed]
        note = (
            f"confidence: {recognizer.score.name}; unknown: below {recognizer.threshold:.3f}, which {100 * accept:g} % "
            "of source validation images reach."
        )
        table("Predictions", ["image", "label", "closest", "confidence"], rows, note)
        broken = sum(map(_report, listed))
    if broken:
        raise typer.Exit(1)


def _watched(found: Iterator[Prediction], total: int, progress: Progress) -> Iterator[Prediction]:
    for number, prediction in enumerate(found, 1):
        progress(number, total, {})
        yield prediction


def _csv(found: Iterator[Prediction], out: TextIO) -> int:
    """A row for each image as it comes; how many are broken."""
    writer, broken = csv.writer(out, lineterminator="\n"), 0
    writer.writerow(["image", "label", "closest", "confidence", "error"])
    for p in found:
        writer.writerow([p.image, p.label, p.closest, p.confidence, p.error or ""])
        out.flush()  # who reads along has it now, not some thousand bytes later
        broken += _report(p)
    return broken


def _jsonl(found: Iterator[Prediction], out: TextIO) -> int:
    """A line of JSON for each image as it comes; how many are broken."""
    broken = 0
    for p in found:
        typer.echo(json.dumps(p.to_json()), file=out)
        broken += _report(p)
    return broken


def _report(prediction: Prediction) -> bool:
    """Name a broken image on stderr; whether it is one."""
    if prediction.error:
        typer.echo(f"Broken: {prediction.error}", err=True)
    return prediction.error is not None
