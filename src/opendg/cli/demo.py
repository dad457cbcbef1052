"""opendg demo: the main job on the built-in dataset."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from opendg.cli.evaluate import percent
from opendg.cli.options import Device, Json
from opendg.cli.show import Progress, say, table
from opendg.errors import typed

METHODS = {"medic": {}, "erm": {"ova": True}}  # ERM gets the same one-vs-all head, so that both can be read both ways


def command(
    target: Annotated[str, typer.Option(help="The held-out domain of glyphs.")] = "fabric",
    iterations: Annotated[int, typer.Option(help="Iterations of each method.")] = 600,
    out: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
    device: Device = "auto",
    json_: Json = False,
) -> None:
    """Train MEDIC and, for comparison, ERM on built-in digits, and test both on a domain they have not seen.

    Example: opendg demo
    """
    from opendg.evaluation.curves import draw_oscr
    from opendg.evaluation.evaluate import evaluate
    from opendg.training.train import train

    folder = _free(out)
    records = {}
    for method, settings in METHODS.items():
        with Progress(f"{method:>5} -> {target}", quiet=json_) as progress:
            run = train(
                method, "glyphs", target, out=folder / method, device=device, iterations=iterations,
                chosen=settings, report=progress,
            )  # fmt: skip
        records[method] = evaluate(run.path, scores="cls,bcls", device=device)
    draw_oscr([folder / method for method in METHODS], folder / "oscr.png")
    if json_:
        say({"runs": str(folder), "records": records})
    else:
        _show(records, target, folder)


def _show(records: dict[str, dict[str, Any]], target: str, folder: Path) -> None:
    rows = [
        [method, score, *(percent(v) for v in (values["acc"], values["h@oracle10"]["h"], values["oscr"]))]
        for method, record in records.items()
        for score, values in record["scores"].items()
    ]
    record = records["medic"]
    note = (
        f"Digits 0-5 are known, 6-9 unknown; {target!r} was never seen. {record['n_known']} known and "
        f"{record['n_unknown']} unknown images.\nH-score: best of ten thresholds on the target (the paper's). Percent."
    )
    table(f"glyphs, target {target}", ["method", "score", "Acc", "H-score", "OSCR"], rows, note)
    program = "opendg" if shutil.which("opendg") else sys.argv[0]  # it is not on the path where `make demo` runs it
    typer.echo(f"Runs and the figure oscr.png are in {folder}")
    typer.echo(
        f"Next: {program} evaluate {typed(folder / 'medic')}; then your own: {program} train medic --data FOLDER "
        "--target DOMAIN"
    )


def _free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 ... that does not exist."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free
