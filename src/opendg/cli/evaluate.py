"""opendg evaluate: a run's metrics on its target domains."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from opendg.cli.options import Device
from opendg.cli.show import say, table, tell_left_out


def command(
    run: Annotated[Path, typer.Argument(help="A finished run's directory.")],
    score: Annotated[
        str | None,
        typer.Option(help="Scores joined by commas, wildcards allowed; default: the plain ones and the method's."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="selected or averaged; default: averaged where the run has them.")
    ] = None,
    root: Annotated[Path | None, typer.Option(help="Where the dataset lies now, if it has moved.")] = None,
    on_bad_image: Annotated[str | None, typer.Option(help="error or skip; default: as in training.")] = None,
    device: Device = "auto",
    figure: Annotated[
        Path | None, typer.Option(help="Also draw the OSCR curves here (PNG, and SVG beside it).")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False,
) -> None:
    """Evaluate a run on its target domains and write per-image predictions into it.

    Example: opendg evaluate runs/pacs-sketch-medic-0 --score energy,bcls
    """
    from opendg.evaluation.curves import check_unknown, draw_oscr
    from opendg.evaluation.evaluate import evaluate
    from opendg.evaluation.figures import check_figure
    from opendg.runs.directory import Run

    if figure is not None:
        check_unknown(Run.open(run))
        check_figure(figure)
    record = evaluate(run, scores=score, weights=weights, root=root, device=device, on_bad_image=on_bad_image)
    drawn = draw_oscr([run], figure) if figure is not None else []
    if json_:
        say(record)
    else:
        show(record)
    tell_left_out(missed(record), "the evaluation")
    if drawn:
        typer.echo(f"Figure: {', '.join(map(str, drawn))}", err=json_)


def missed(record: dict[str, Any]) -> list[str]:
    """Keys of the target images that could not be read; older records do not say."""
    return list(record.get("skipped", {}).get("target", []))


def show(record: dict[str, Any]) -> None:
    """A record as a table; the header names protocol, selection and threshold rules."""
    rows = [[name, *_cells(values)] for name, values in record["scores"].items()]
    columns = ["score", "Acc", "OSCR", "AUROC", "FPR95", "H@oracle10", "H@source95", "H@0.5"]
    title = f"{record['method']} on {record['dataset']}, target {record['target']}, seed {record['seed']}"
    rules = (
        "H@oracle10 chose its threshold on the target (as papers do), H@source95 on source validation images, H@0.5 on "
        "nothing."
        if record["n_unknown"]
        else "Without unknown images there is Acc alone: `opendg train --unknown CLASS` holds a class out."
    )
    note = (
        f"protocol {record['protocol']}; {record['n_known']} known and {record['n_unknown']} unknown images; "
        f"weights: {record['selection']}.\n{rules} Percent."
    )
    table(title, columns, rows, note)


def show_all(records: list[dict[str, Any]]) -> None:
    """The record of one run, or the accuracy and OSCR of several, with their mean."""
    if len(records) == 1:
        return show(records[0])
    scores = [name for name in records[0]["scores"] if all(name in record["scores"] for record in records)]
    values = [[record["acc"], *(record["scores"][score]["oscr"] for score in scores)] for record in records]
    rows = [
        [str(record["target"]), str(record["seed"]), *map(percent, row)]
        for record, row in sorted(
            zip(records, values, strict=True), key=lambda pair: (pair[0]["target"], pair[0]["seed"])
        )
    ]
    means = [None if None in column else fmean(column) for column in zip(*values, strict=True)]
    rows.append(["mean", "", *map(percent, means)])
    first = records[0]
    note = (
        f"Weights: {first['selection']}. OSCR asks for no threshold; `opendg evaluate RUN` shows H-scores too. Percent."
    )
    table(
        f"{first['method']} on {first['dataset']}", ["target", "seed", "Acc", *(f"OSCR {name}" for name in scores)],
        rows, note,
    )  # fmt: skip


def _cells(values: dict[str, Any]) -> list[str]:
    plain = [percent(values[name]) for name in ("acc", "oscr", "auroc", "fpr95")]
    rules = [values[name] for name in ("h@oracle10", "h@source95", "h@0.5")]
    return plain + [percent(rule and rule["h"]) for rule in rules]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
