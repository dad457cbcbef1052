"""Another share of the starting weights in a run's averaged ones: it has no part in training, so nothing is trained."""

from __future__ import annotations

from pathlib import Path

from opendg.data.index import Rows
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import check_manifest, predict_split
from opendg.predictions import Predictions
from opendg.protocol import manifest
from opendg.runs.directory import Run
from opendg.runs.restore import choose_weights
from opendg.runs.scores import fit_scores
from opendg.training.build import make_classifier
from opendg.training.devices import make_fabric
from opendg.training.job import Job
from opendg.training.loop import mixed


def with_share(run: Run, share: float, out: Path, device: str = "auto") -> Run:
    """The run that `run` would be with `average_start = share`, in the new directory `out`.

    From the share s that it has, (1 - t) w_s + t w_0 with t = (share - s) / (1 - s) is w~ with the other one. The
    starting weights w_0 are made anew, and must be what they were.
    """
    job = Job.from_json(run.config)
    choose_weights(run, "averaged")
    classifier, place = make_classifier(job), make_fabric(device).device
    if run.config["starting_weights"] != classifier.backbone.start:
        raise OpenDGError(
            f"The weights {job.weights!r} are not those that {str(run.path)!r} started from: put those back."
        )
    index, split = job.open_data()
    check_manifest(run, manifest(job.protocol, index, split), ["train", "val"])
    had = job.recipe.average_start
    tensors = mixed(run.load_weights("averaged"), classifier.state_dict(), (share - had) / (1 - had))
    classifier.load_state_dict(tensors)
    classifier.place(place, job.recipe.precision)

    def seen(rows: Rows) -> Predictions:
        return predict_split(run, job, classifier, index, split, rows, place)

    recipe = run.config["recipe"] | {"average_start": share}
    other = Run.create(out, run.config | {"recipe": recipe}, run.manifest)
    fit_scores(other, "averaged", [job.make_method().score], lambda: seen(split.train), classifier)
    other.save_weights("averaged", tensors, seen(split.val))
    other.save_weights("selected", run.load_weights("selected"), Predictions.load(run.val_file("selected")))
    return other
