"""Scores as a run is read with. What some of them fit to source training images is fitted once and kept in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from opendg.errors import OpenDGError
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions
from opendg.runs.directory import Run
from opendg.scores.base import Head, Score
from opendg.scores.registry import SCORES, make_score

Source = Callable[[], Predictions]  # what the weights say of the source training images; asked only if it must be


def ready_scores(
    run: Run, which: str, names: Iterable[str], source: Source, classifier: Classifier
) -> dict[str, Score]:
    """The scores by name, ready to use: what is fitted comes from the run, or else from the source training images."""
    made = {name: make_score(name) for name in names}
    missing = []
    for name in (name for name, score in made.items() if score.fitted):
        state = run.load_score(which, name)
        if state is None:
            missing.append(name)
        else:
            made[name].load(state)
    return made | fit_scores(run, which, missing, source, classifier)


def fit_scores(run: Run, which: str, names: Iterable[str], source: Source, classifier: Classifier) -> dict[str, Score]:
    """Those of the scores that are fitted, fitted now; the run keeps what they found."""
    made = {name: make_score(name) for name in names if SCORES[name].fitted}
    if made:
        seen, head = source(), linear_head(classifier)
        for name, score in made.items():
            state = score.fit(seen, head).state()
            with suppress(OpenDGError):  # a run that may not be written to can still be read
                run.save_score(which, name, state)
    return made


def linear_head(classifier: Classifier) -> Head | None:
    """Weight and bias of the closed-set head, where it is a linear layer."""
    layer = getattr(classifier.head, "linear", None)
    if not isinstance(layer, torch.nn.Linear):
        return None
    return Head(layer.weight.detach().cpu().numpy(), layer.bias.detach().cpu().numpy())
