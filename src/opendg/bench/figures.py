"""The figures of the paper, from records and the predictions that lie beside them. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opendg.bench.records import Result
from opendg.bench.tables import Row, Table
from opendg.errors import OpenDGError
from opendg.evaluation import figures
from opendg.evaluation.curves import curve_of
from opendg.evaluation.evaluate import check_manifest, predict_split
from opendg.evaluation.metrics import confusion, h_curve, oscr_losses
from opendg.evaluation.plane import components, plane
from opendg.predictions import Predictions
from opendg.protocol import Split, manifest
from opendg.runs.directory import Run
from opendg.runs.files import write_atomic
from opendg.runs.names import predictions_file
from opendg.runs.restore import restore
from opendg.scores.base import Floats, Score
from opendg.scores.registry import make_score
from opendg.seeds import generator
from opendg.training.devices import make_fabric
from opendg.training.job import Job

NEEDS = {  # the predictions that lie beside a record, and that a figure is drawn from
    "thresholds": ("target", "source-val", "source-unknown"), "tsne": ("target",), "oscr": ("target",),
    "confusion": ("target",),
}  # fmt: skip
POINTS = 2000  # of a t-SNE: more are drawn over each other
STEPS = 201  # thresholds of the H curve
ENDS = (0.01, 0.99)
TAIL = 1e-8  # probabilities nearer to 0 or 1 than this are not told apart


def draw_thresholds(rows: Sequence[Row], out: Path, root: Path | None, device: str) -> list[Path]:
    """H against the threshold for every target: on the target, and on the source domains with their unknown images."""
    written = []
    for target in targets(rows):
        at, seen, sources = _h_curves(rows, target, root, device)
        written += figures.threshold_figure(at, seen, sources, out / f"thresholds-{target}", target)
    return written


def threshold_numbers(rows: Sequence[Row], root: Path | None, device: str) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: what the curves of each target reach, and what the rule that sees sources alone does."""
    found = []
    for target in targets(rows):
        _, seen, sources = _h_curves(rows, target, root, device)
        for row in (row for row in rows if row.label in seen):
            h, best = seen[row.label], int(np.argmax(sources[row.label]))
            ruled = row.measured(target, "h@source95", (target,)).mean
            said = [100 * h.max(), 100 * h[best], ruled]
            found.append([f"{target}: {row.label}", *("-" if value is None else f"{value:.1f}" for value in said)])
    return ["H-score", "best on the target", "at the sources' best threshold", "H@source95"], found


def _h_curves(
    rows: Sequence[Row], target: str, root: Path | None, device: str
) -> tuple[Floats, dict[str, Floats], dict[str, Floats]]:
    """Thresholds, and by label the mean H at each: on the target, and on the source domains."""
    scored = [(row, _both_sides(row, target, root, device)) for row in rows if of_target(row, target)]
    at = _axis([side for _, sides in scored for side in sides])
    seen, sources = ({row.label: _mean_h(sides[i::2], at) for row, sides in scored} for i in (0, 1))
    return at, seen, sources


Side = tuple[Floats, NDArray[np.bool_], Floats]  # values of known images, which are right, values of unknown ones


def _both_sides(row: Row, target: str, root: Path | None, device: str) -> list[Side]:
    """For each seed the target's side, then the sources'."""
    score, sides = plain_score(row.score), []
    for result in of_target(row, target):
        seen, known, unknown = (beside(result, what, root, device) for what in NEEDS["thresholds"])
        sides.append((_value(score, seen, seen.known), seen.correct[seen.known], _value(score, seen, ~seen.known)))
        sides.append((_value(score, known), known.correct, _value(score, unknown)))
    return sides


def _axis(sides: Sequence[Side]) -> Floats:
    """Even steps over the range of the scores, less a hundredth at either end; for probabilities, of their log-odds."""
    values = np.concatenate([part for known, _, unknown in sides for part in (known, unknown)])
    are_probabilities = values.min() >= 0 and values.max() <= 1
    if are_probabilities:
        values = values.clip(TAIL, 1 - TAIL)
        values = np.log(values / (1 - values))
    low, high = np.quantile(values, ENDS)
    at = np.linspace(float(low), float(high), STEPS)
    return 1 / (1 + np.exp(-at)) if are_probabilities else at


def _mean_h(sides: Sequence[Side], at: Floats) -> Floats:
    """Over seeds."""
    return np.asarray(np.mean([h_curve(*side, at).h for side in sides], axis=0))


def predict_unknown(run: Run, which: str, root: Path | None, device: str) -> Predictions:
    """Predictions for unknown classes in the source domains. Only the threshold figure asks for them."""
    job = Job.from_json(run.config)
    index, split = job.open_data(root)
    check_source_unknown(job, split)
    check_manifest(run, manifest(job.protocol, index, split))
    place = make_fabric(device).device
    return predict_split(run, job, restore(run, which, place), index, split, split.val_unknown, place)


def check_source_unknown(job: Job, split: Split) -> None:
    """The threshold figure lays the sources beside the target: both need known and unknown images."""
    if not len(split.val_unknown):
        raise OpenDGError(
            f"The source domains ({', '.join(job.protocol.sources)}) have no image of an unknown class, which the "
            "threshold figure needs: show a table, or another figure."
        )


def draw_tsne(rows: Sequence[Row], out: Path) -> list[Path]:
    """t-SNE of the target's features, a figure for each method and target; of the first seed, 2000 images at most."""
    written = []
    for row, target, result in _first_seeds(rows):
        seen = slim("tsne", beside(result))
        if not np.isfinite(seen.features).all():
            raise OpenDGError(f"The run {result.path.parent.name!r} has features that are no numbers: train it anew.")
        written += figures.embedding_figure(
            plane(seen.features), seen.known, out / f"tsne-{target}-{_file(row, with_score=False)}",
            f"{_name(row)} on {target}",
        )  # fmt: skip
    return written


def draw_oscr_curves(rows: Sequence[Row], out: Path) -> list[Path]:
    """The OSCR curves of all methods, a figure for each target; of the first seed."""
    written = []
    for target in targets(rows):
        curves = {}
        for row in rows:
            for result in of_target(row, target)[:1]:
                curves[row.label] = curve_of(plain_score(row.score), beside(result))
        written += figures.oscr_figure(curves, out / f"oscr-{target}", target)
    return written


def draw_confusion(rows: Sequence[Row], out: Path) -> list[Path]:
    """Answers with "unknown" among them, at the threshold that accepts 95 % of the source validation images."""
    written = []
    for row, target, result in _first_seeds(rows):
        seen, rule = beside(result), result.record["scores"][row.score]["h@source95"]
        accepted = plain_score(row.score)(seen) >= rule["ranked_threshold"]
        counts = confusion(seen.label, seen.predicted, accepted, len(result.record["known"]))
        written += figures.confusion_figure(
            counts, result.record["known"], out / f"confusion-{target}-{_file(row)}", f"{row.label} on {target}"
        )
    return written


def class_numbers(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Column names and rows: the points of OSCR that each class costs, by mistakes and by unknown images above it."""
    known = sorted({name for row in rows for result in row.results for name in result.record["known"]})
    found = []
    for row, target, result in _first_seeds(rows):
        seen = beside(result)
        values, label = plain_score(row.score)(seen), seen.label[seen.known]
        lost = oscr_losses(values[seen.known], seen.correct[seen.known], values[~seen.known])
        images = {name: label == number for number, name in enumerate(result.record["known"])}
        cells = [_points(lost, images[name]) if name in images else "-" for name in known]
        found.append([f"{target}: {row.label}", *cells, _points(lost, label >= 0)])
    return ["OSCR lost: mistaken + outranked", *known, "all"], found


def _points(lost: tuple[Floats, Floats], images: NDArray[np.bool_]) -> str:
    """What some of the known images take from OSCR, in percent of all of them."""
    return " + ".join(f"{100 * part[images].sum() / len(images):.1f}" for part in lost)


def draw_openness(table: Table, metric: str, out: Path) -> list[Path]:
    """OSCR against openness, the share of unknown classes, from the records of a table by division."""
    openness = {}
    for result in (result for row in table.rows for result in row.results):
        known, unknown = result.tested.known, len(result.tested.unknown)
        openness[result.tested.ratio] = unknown / (known + unknown)
    columns = sorted(table.columns, key=openness.__getitem__)
    values = {row.label: [table.value(row, column, metric).mean for column in columns] for row in table.rows}
    areas = {label: [np.nan if v is None else v / 100 for v in found] for label, found in values.items()}
    return figures.openness_figure([openness[column] for column in columns], areas, out / table.name)


def targets(rows: Sequence[Row]) -> list[str]:
    return sorted({result.target for row in rows for result in row.results})


def of_target(row: Row, target: str) -> list[Result]:
    """The row's results on a target, by seed."""
    return sorted((result for result in row.results if result.target == target), key=lambda result: result.seed)


def _first_seeds(rows: Sequence[Row]) -> Iterator[tuple[Row, str, Result]]:
    for target in targets(rows):
        for row in rows:
            for result in of_target(row, target)[:1]:
                yield row, target, result


def beside(result: Result, what: str = "target", root: Path | None = None, device: str = "auto") -> Predictions:
    """Predictions that lie beside a record: of the target, of the sources' validation images or unknown classes.

    The last are made when they are first asked for, in a run directory with its data at hand.
    """
    which = result.record["weights"]
    path = result.path.parent / predictions_file(what, which)
    if what == "source-unknown" and not path.is_file() and (path.parent / "run.json").is_file():
        write_atomic(path, predict_unknown(Run.open(path.parent), which, root, device).pack())
    if not path.is_file():
        raise OpenDGError(
            f"This figure needs predictions, and {path.name} is not beside {str(result.path)!r}: give the folder of "
            "runs with --runs or --records, not records alone."
        )
    return Predictions.load(path)


def slim(kind: str, predictions: Predictions) -> Predictions:
    """What a figure draws of the predictions; of those that were slimmed before, all.

    t-SNE looks at the principal components of POINTS images, in half precision; the other figures at no features.
    """
    if kind != "tsne":
        return replace(predictions, features=predictions.features[:, :0])
    if len(predictions) > POINTS:
        predictions = predictions.take(generator(0, "t-sne").permutation(len(predictions))[:POINTS])
    return replace(predictions, features=components(predictions.features).astype(np.float16))


def plain_score(name: str) -> Score:
    """A score that needs no fitting: figures have predictions and no source images."""
    score = make_score(name)
    if score.fitted:
        raise OpenDGError(f"The score {name!r} is fitted on source images, which figures do not read: try --score cls.")
    return score


def _value(score: Score, predictions: Predictions, which: NDArray[np.bool_] | None = None) -> Floats:
    values = score.value(score(predictions))
    return values if which is None else values[which]


def _name(row: Row) -> str:
    """A row's label without its score."""
    return row.label.removesuffix(f"-{row.score}")


def _file(row: Row, with_score: bool = True) -> str:
    """A row's label as part of a file's name."""
    label = row.label if with_score else _name(row)
    return "".join(sign if sign.isalnum() or sign in "-+." else "_" for sign in label.lower())
