"""OSCR of one training's last weights and of its averaged ones, against how far back the average looks.

python benchmarks/average.py METHOD --data pacs --root data --target sketch [--over 0.1,0.25,0.5] [--iterations N] ...

`--over 0.5` is `--average-over 0.5` of `opendg train`. What it shows is the target's: good for a finding, not for a
choice. `opendg tune` chooses on source data.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from common import write

from opendg.data.store import Store
from opendg.evaluation.metrics import oscr
from opendg.predictions import Predictions, predict_rows
from opendg.scores.registry import make_score
from opendg.training.build import make_classifier, make_loop
from opendg.training.devices import make_fabric
from opendg.training.job import plan
from opendg.training.loop import Loop, move_average

SCORES = ["cls", "bcls", "energy"]
RECIPE = {"iterations": int, "batch": int, "lr": float, "schedule": str, "precision": str}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("method")
    for name in ("data", "root", "target", "weights", "out"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--over", default="0.1,0.25,0.5")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    for name, kind in RECIPE.items():
        parser.add_argument(f"--{name}", type=kind)
    asked = vars(parser.parse_args())
    recipe = {name: asked[name] for name in (*RECIPE, "root", "weights", "seed")}
    shares = [float(share) for share in asked["over"].split(",")]
    rows = measured(asked["method"], asked["data"], asked["target"], shares, asked["device"], recipe)
    write("average", rows, "cuda" if asked["device"] == "auto" and torch.cuda.is_available() else "cpu")


def measured(
    method: str, data: str, target: str, shares: list[float], device: str, recipe: dict[str, Any]
) -> list[dict[str, Any]]:
    job, index, split = plan(method, data, [target], **recipe)
    fabric, classifier = make_fabric(device), make_classifier(job)
    classifier.place(fabric.device, job.recipe.precision)
    store = Store.open(index, split.train, shown=classifier.backbone.input.size)
    loop = make_loop(job, classifier, index, split, store, fabric)
    averages = trained(loop, [replace(job.recipe, average_over=share).decay for share in shares])
    target_store = Store.open(index, split.test, size=store.size)
    rows = []
    for share, weights in zip([0.0, *shares], [loop.finished_weights(), *averages], strict=True):
        classifier.load_state_dict(weights, strict=False)
        seen = predict_rows(classifier, target_store, index, split.labels, split.test, fabric.device)
        rows.append({"method": method, "target": target, "seed": job.seed, "averaged over": share, **reached(seen)})
    return rows


def trained(loop: Loop, decays: list[float]) -> list[dict[str, torch.Tensor]]:
    """The averaged weights of each decay."""
    averages = [{name: tensor.clone() for name, tensor in loop.classifier.moving().items()} for _ in decays]
    for step in range(loop.recipe.iterations):
        loop.feed.prepare(step)
        loop.run()
        for average, decay in zip(averages, decays, strict=True):
            move_average(average, loop.classifier.moving(), loop.state.step - 1, decay)
    loop.feed.close()
    return averages


def reached(seen: Predictions) -> dict[str, float]:
    """Accuracy and OSCR in percent."""
    found = {"acc": 100 * float(seen.correct[seen.known].mean())}
    for name in SCORES:
        score = make_score(name)(seen)
        found[name] = 100 * oscr(score[seen.known], seen.correct[seen.known], score[~seen.known])
    return {name: round(value, 2) for name, value in found.items()}


if __name__ == "__main__":
    main()
