"""From a finished run back to its classifier."""

from __future__ import annotations

import torch

from opendg.errors import OpenDGError
from opendg.models.backbones import Input, build_backbone
from opendg.models.classifier import Classifier
from opendg.runs.directory import Run
from opendg.runs.names import check_weights
from opendg.training.job import Job


def choose_weights(run: Run, asked: str | None = None) -> str:
    """`averaged` where the run has them, else `selected`, unless one of the two is asked for."""
    check_weights(asked)
    if asked == "averaged" and not run.weight_file("averaged").exists():
        raise OpenDGError(
            f"The run {str(run.path)!r} has no averaged weights: train with --average-over 0.5, or leave it out."
        )
    return asked or ("averaged" if run.weight_file("averaged").exists() else "selected")


def restore(run: Run, which: str, device: torch.device) -> Classifier:
    """The classifier of a finished run, ready to predict. Its input (size, mean, std) is what it was trained with."""
    job, tensors = Job.from_json(run.config), run.load_weights(which)
    try:
        backbone = build_backbone(run.manifest["backbone"], "none")
        backbone.input = Input.from_json(run.manifest["input"])
        classes, sources = run.manifest["classes"], run.manifest["protocol"]["sources"]
        classifier = job.make_method().build(backbone, len(classes), len(sources))
        classifier.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise OpenDGError(
            f"The weights of {str(run.path)!r} do not fit its run.json ({type(error).__name__}): train it anew."
        ) from error
    classifier.place(device, job.recipe.precision)
    return classifier.eval()
