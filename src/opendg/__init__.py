"""OpenDG: classifiers for domains and classes they have never seen (open-set domain generalization).

import opendg

run = opendg.train("medic", data="pacs", root="data", target="sketch")
print(opendg.evaluate(run.path)["scores"]["bcls"]["oscr"])
recognizer = opendg.load(run.path)
recognizer.predict("photo.jpg")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opendg.data.catalog import list_datasets
    from opendg.deploy.recognizer import load
    from opendg.errors import OpenDGError
    from opendg.evaluation import metrics
    from opendg.evaluation.evaluate import evaluate
    from opendg.methods.registry import list_methods
    from opendg.scores.registry import list_scores
    from opendg.training.train import resume, train
