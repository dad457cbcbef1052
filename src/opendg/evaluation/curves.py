"""OSCR curves of evaluated runs, from their predictions alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from opendg.errors import OpenDGError
from opendg.evaluation.figures import oscr_figure
from opendg.evaluation.metrics import oscr, oscr_curve
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.runs.restore import choose_weights
from opendg.scores.base import Floats, Score
from opendg.scores.registry import make_score, usable_scores


def draw_oscr(runs: Sequence[str | Path], path: Path, scores: Sequence[str] = ("cls", "bcls")) -> list[Path]:
    """One curve for each run and score that its outputs allow, as PNG and SVG: the files written.

    Curves are labelled by method, and by the run where a method has several.
    """
    opened = [Run.open(Path(run)) for run in runs]
    for run in opened:
        check_unknown(run)
    of_method = Counter(run.config["method"] for run in opened)
    curves = {}
    for run in opened:
        target = Predictions.load(run.target_file(choose_weights(run)))
        method = run.config["method"]
        which = f", {run.path}" if of_method[method] > 1 else ""
        for name in (name for name in scores if name in usable_scores(target)):
            curves[f"{method} ({name}){which}"] = curve_of(make_score(name), target)
    return oscr_figure(curves, path)


def check_unknown(run: Run) -> None:
    """Refuse a run that knows every class: it has no curve."""
    if not run.config["protocol"]["unknown"]:
        raise OpenDGError(
            f"An OSCR curve needs unknown images, and {str(run.path)!r} has no unknown class: leave the figure out, or "
            "train with --unknown CLASS."
        )


def curve_of(score: Score, target: Predictions) -> tuple[Floats, Floats, float]:
    """(false positive rates, correct classification rates, area) of the target's images."""
    values = score(target)
    parts = values[target.known], target.correct[target.known], values[~target.known]
    return (*oscr_curve(*parts), oscr(*parts))
