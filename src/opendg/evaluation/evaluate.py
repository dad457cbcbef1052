"""Evaluation of a run on its target domains: predictions of every image, then every score from the one pass."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from opendg.data.index import Index, Rows
from opendg.data.store import Store
from opendg.errors import OpenDGError
from opendg.evaluation.thresholds import evaluate_score
from opendg.methods.registry import METHODS
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions, predict_rows
from opendg.protocol import Split, manifest
from opendg.runs.directory import Run
from opendg.runs.files import write_atomic, write_json
from opendg.runs.names import evaluation_file
from opendg.runs.restore import choose_weights, restore
from opendg.runs.scores import linear_head, ready_scores
from opendg.scores.registry import select_scores, usable_scores
from opendg.training.devices import make_fabric
from opendg.training.job import Job, check_on_bad_image

PLAIN = ("cls", "bcls", "energy", "max-logit")


def evaluate(
    path: str | Path, *, scores: str | list[str] | None = None, weights: str | None = None,
    root: str | Path | None = None, device: str = "auto", on_bad_image: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The Record of a run: what was run, with which code, and its metrics for each score.

    Writes `target-WEIGHTS.npz` (per-image predictions) and `evaluation-WEIGHTS.json` into the run. Scores default to
    those that need no fitting and the method's own; fitted ones look at the source training images alone, and what they
    were fitted to is kept in the run. Scores that an earlier evaluation has are evaluated again beside those asked for:
    a record never loses one. What happens to images that cannot be read is as in training, unless `on_bad_image` says
    it; the record names those that were left out.
    """
    run = Run.open(Path(path))
    which = choose_weights(run, weights)
    if scores:
        select_scores(scores)  # a name that there is not is told before anything is read
    job = Job.from_json(run.config)
    if on_bad_image is not None:
        check_on_bad_image(on_bad_image)
        job = replace(job, on_bad_image=on_bad_image)
    index, split = job.open_data(root)
    check_manifest(run, manifest(job.protocol, index, split))
    place = make_fabric(device).device
    classifier = restore(run, which, place)
    target = predict_split(run, job, classifier, index, split, split.test, place)
    if not target.known.any():
        raise OpenDGError("Every target image of a known class is broken, and nothing can be measured: replace them.")
    write_atomic(run.target_file(which), target.pack())
    val = Predictions.load(run.val_file(which))
    own, usable = METHODS[job.method].score, usable_scores(target, linear_head(classifier))
    names = select_scores(scores, usable) if scores else [name for name in usable if name in (*PLAIN, own)]
    names += [name for name in recorded_scores(run, which) if name in usable]

    def source() -> Predictions:
        return predict_split(run, job, classifier, index, split, split.train, place)

    ready = ready_scores(run, which, names, source, classifier)
    record = describe(run, job, which, target) | {"skipped": left_out(run, index, split, target)}
    record["scores"] = {
        name: evaluate_score(score, score(target), target.correct, target.known, score(val))
        for name, score in ready.items()
    }
    write_json(record_file(run, which), record)
    return record


def record_file(run: Run, which: str) -> Path:
    return run.path / evaluation_file(which)


def recorded_scores(run: Run, which: str) -> list[str]:
    """The scores of the record that the run has for these weights; none where there is no record, or a damaged one."""
    try:
        return list(json.loads(record_file(run, which).read_text())["scores"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def predict_split(
    run: Run, job: Job, classifier: Classifier, index: Index, split: Split, rows: Rows, device: torch.device
) -> Predictions:
    """Predictions for rows of the data, prepared as in training."""
    store = Store.open(index, rows, on_bad_image=job.on_bad_image, size=run.image_size)
    return predict_rows(classifier, store, index, split.labels, store.rows, device)


def predict_source(run: Run, classifier: Classifier, device: torch.device) -> Predictions:
    """Predictions for the source training images, where the run knew them. No image of the target is looked at."""
    job = Job.from_json(run.config)
    index, split = job.open_data()
    check_manifest(run, manifest(job.protocol, index, split), ["train"])
    return predict_split(run, job, classifier, index, split, split.train, device)


def left_out(run: Run, index: Index, split: Split, target: Predictions) -> dict[str, list[str]]:
    """Keys of the images that could not be read: left out of training and validation, and of the numbers (target)."""
    read = set(target.keys.tolist())
    wanted = [index.keys[row] for row in split.test] if len(read) < len(split.test) else []
    return {"source": list(run.manifest.get("skipped", [])), "target": [key for key in wanted if key not in read]}


def check_manifest(run: Run, found: dict[str, Any], parts: Iterable[str] | None = None) -> None:
    """Numbers only mean something on the files that the run was made for: all parts of them, or some."""
    for part in found["files"] if parts is None else parts:
        if found["files"][part] != run.manifest["files"].get(part):
            moved = "give the folder as it was with --root, or train anew on what is there now"
            raise OpenDGError(
                f"The {part} images differ from those of the run in name or size ({found['images'][part]} found, "
                f"{run.manifest['images'].get(part)} expected): {moved if part.startswith('test') else 'check --root'}."
            )


def describe(run: Run, job: Job, which: str, target: Predictions) -> dict[str, Any]:
    """All of a Record but the metrics."""
    protocol = job.protocol
    names = ("starting_weights", "opendg", "commit", "command", "created", "machine", "versions")
    origin = {name: run.config.get(name) for name in names}
    return {
        "dataset": protocol.dataset, "protocol": protocol.id, "target": ",".join(protocol.targets),
        "sources": list(protocol.sources), "known": list(protocol.known), "unknown": list(protocol.unknown),
        "method": job.method, "settings": job.settings, "backbone": run.manifest["backbone"],
        "recipe": job.recipe.to_json(), "seed": job.seed, "weights": which, "selection": job.recipe.rule(which),
        "n_known": int(target.known.sum()), "n_unknown": int((~target.known).sum()),
        "acc": float(target.correct[target.known].mean()), "notes": list(job.notes), **origin,
    }  # fmt: skip
