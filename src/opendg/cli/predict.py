"""opendg predict: label images, or say that they are of no known class."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from opendg.cli.show import table
from opendg.errors import OpenDGError


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
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
) -> None:
    """Predict images: a label or `unknown`, with a confidence. Broken images are reported, the rest still predicted.

    Example: opendg predict runs/pacs-sketch-medic-0 photos/ --format csv
    """
    from opendg.deploy.recognizer import find_images, load

    if json_ and format_ not in (None, "jsonl"):
        raise OpenDGError(f"--json is --format jsonl, and --format {format_} was given too: leave one of them out.")
    kind = "jsonl" if json_ else format_ or "table"
    if kind not in ("table", "csv", "jsonl"):
        raise OpenDGError(f"There is no format {kind!r}: choose table, csv or jsonl.")
    files = find_images(images)
    if not files:
        raise OpenDGError(f"No image was found in {', '.join(map(str, images))}: give image files or folders of them.")
    recognizer = load(run, score=score, accept=accept, weights=weights, device=device)
    found = recognizer.stream(files)
    broken = 0
    if kind == "table":
        listed = list(found)
        rows = [[p.image, p.label, p.closest, "-" if p.confidence is None else f"{p.confidence:.3f}"] for p in listed]
        note = (
            f"confidence: {recognizer.score.name}; unknown: below {recognizer.threshold:.3f}, which {accept:.0%} of "
            "source validation images reach."
        )
        table("Predictions", ["image", "label", "closest", "confidence"], rows, note)
        broken = _report(listed)
    elif kind == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(["image", "label", "closest", "confidence", "error"])
        for p in found:
            writer.writerow([p.image, p.label, p.closest, p.confidence, p.error or ""])
            broken += _report([p])
    else:
        for p in found:
            typer.echo(json.dumps(p.to_json()))
            broken += _report([p])
    if broken:
        raise typer.Exit(1)


def _report(predictions: list) -> int:  # type: ignore[type-arg]
    """Name the broken images on stderr; how many."""
    broken = [p for p in predictions if p.error]
    for p in broken:
        typer.echo(f"Broken: {p.error}", err=True)
    return len(broken)
