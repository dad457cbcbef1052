"""Per-image predictions of a run -> what the page needs of them: scores, a few images to show, places in the plane."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opendg.errors import OpenDGError
from opendg.evaluation import metrics
from opendg.evaluation.plane import plane
from opendg.predictions import UNREADABLE, Predictions, read_arrays
from opendg.report.records import Entry
from opendg.scores.base import Floats
from opendg.scores.registry import SCORES, make_score

Rows = NDArray[np.int64]
UNKNOWN_SHARE = 0.4  # of the images in the plane, at most: where unknown ones are few, they should still be seen


@dataclass(frozen=True)
class Mistakes:
    """Rows of the surest candidates for a mistake, surest first. Whether they are one depends on the threshold."""

    unknown: Rows  # highest scores
    known: Rows  # lowest scores


@dataclass(frozen=True)
class Images:
    """All target images of a run, without their features."""

    keys: NDArray[np.str_]
    label: NDArray[np.int64]
    predicted: NDArray[np.int64]
    scores: dict[str, Floats]  # as they rank
    plane: tuple[Rows, NDArray[np.float64]] | None  # t-SNE: some rows, and (n, 2) from 0 to 1

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.asarray(self.label >= 0)

    def mistakes(self, score: str, most: int) -> Mistakes:
        scores = self.scores[score]
        known, unknown = np.flatnonzero(self.known), np.flatnonzero(~self.known)
        highest = unknown[np.argsort(-scores[unknown], kind="stable")][:most]
        return Mistakes(highest, known[np.argsort(scores[known], kind="stable")][:most])


def read_images(file: Path, entry: Entry, points: int) -> Images:
    """The images of a run, or an OpenDGError that says why there are none to show.

    Scores are those of the record that need no fitting: they come from the outputs beside it alone.
    """
    predictions = _load(file, len(entry["known"]))
    names = [name for name in entry["scores"] if name in SCORES and not SCORES[name].fitted]
    scores = {name: make_score(name)(predictions) for name in names if not SCORES[name].lacks(predictions)}
    _check_record(entry, predictions, scores)
    return Images(predictions.keys, predictions.label, predictions.predicted, scores, _places(predictions, points))


def _load(file: Path, classes: int) -> Predictions:
    """Predictions as `opendg evaluate` wrote them; those stripped of their features will do."""
    try:
        found = read_arrays(file)
    except UNREADABLE as error:
        raise OpenDGError(f"{file.name} cannot be read ({error}): evaluate the run again.") from error
    found.setdefault("features", np.empty((np.size(found.get("label", ())), 0), np.float32))
    try:
        predictions = Predictions.from_arrays(found)
        _check_classes(predictions, classes)
    except (ValueError, TypeError, AttributeError) as error:
        raise OpenDGError(
            f"{file.name} does not hold predictions that fit the record: evaluate the run again."
        ) from error
    return predictions


def _check_classes(predictions: Predictions, classes: int) -> None:
    """A ValueError, unless there are images, and outputs and labels are of so many classes."""
    label, width = predictions.label, predictions.logits.shape[1]
    if not classes or not len(label) or width != classes or label.min() < -1 or label.max() >= classes:
        raise ValueError(f"labels and logits (of {width} classes) do not go with {classes}")


def _check_record(entry: Entry, predictions: Predictions, scores: dict[str, Floats]) -> None:
    """The page shows a record's numbers beside those it counts itself, so both must come from the same outputs."""
    known, correct = predictions.known, predictions.correct
    pairs = [(float(correct[known].mean()) if known.any() else None, entry["acc"])]
    if known.any() and not known.all():
        pairs += [
            (metrics.oscr(values[known], correct[known], values[~known]), entry["scores"][name]["oscr"])
            for name, values in scores.items()
        ]
    if any((ours is None) != (said is None) or abs((ours or 0) - (said or 0)) > 1e-6 for ours, said in pairs):
        raise OpenDGError("The predictions beside the record give other numbers than it: evaluate the run again.")


def _places(predictions: Predictions, points: int) -> tuple[Rows, NDArray[np.float64]] | None:
    """t-SNE of the pooled features of some images, from 0 to 1.

    Which images is decided by their keys alone, so that runs on one target show the same ones.
    """
    rows = _sample(predictions, points)
    features = predictions.features[rows]
    if len(rows) < 5 or not features.shape[1] or not np.isfinite(features).all():
        return None
    spread = plane(features)
    if not spread.any():  # all in one place
        return None
    low, high = spread.min(axis=0), spread.max(axis=0)
    return rows, (spread - low) / np.maximum(high - low, 1e-12)


def _sample(predictions: Predictions, points: int) -> Rows:
    """Rows of at most so many images, drawn by the hash of their keys; unknown ones take at most their share."""
    ticket = np.array(
        [hashlib.sha1(key.encode(errors="surrogatepass")).hexdigest() for key in predictions.keys.tolist()]
    )
    order = np.argsort(ticket, kind="stable")
    known, unknown = order[predictions.known[order]], order[~predictions.known[order]]
    few = min(len(unknown), max(int(UNKNOWN_SHARE * points), points - len(known)))
    return np.sort(np.concatenate([unknown[:few], known[: points - few]]))
