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

__version__ = "0.1.0"

__all__ = [
    "OpenDGError",
    "evaluate",
    "list_datasets",
    "list_methods",
    "list_scores",
    "load",
    "metrics",
    "resume",
    "train",
]

# Looked up when first used, so that `import opendg` and `opendg --help` do not wait for torch.
_PLACES = {
    "OpenDGError": "opendg.errors",
    "evaluate": "opendg.evaluation.evaluate",
    "list_datasets": "opendg.data.catalog",
    "list_methods": "opendg.methods.registry",
    "list_scores": "opendg.scores.registry",
    "load": "opendg.deploy.recognizer",
    "resume": "opendg.training.train",
    "train": "opendg.training.train",
}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return importlib.import_module("opendg.evaluation.metrics")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'opendg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
