"""Records as `opendg evaluate` writes them, with numbers of our choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opendg.bench.records import Result
from opendg.methods.registry import make_method, settings
from opendg.training.recipe import Recipe

CLASSES = ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]


def record(
    method: str = "erm", target: str = "photo", seed: int = 0, value: float = 0.5, *,
    chosen: dict[str, Any] | None = None, unknown: tuple[str, ...] = ("person",),
    scores: dict[str, float] | None = None, weights: str = "selected",
    backbone: str = "resnet18.tv_in1k", start: str | None = "0123abcd4567", notes: tuple[str, ...] = (), **recipe: Any,
) -> dict[str, Any]:  # fmt: skip
    """`value` is OSCR of cls; other scores have theirs in `scores`; accuracy is 0.1 and H 0.05 above."""
    values = {"cls": value} | (scores or {})
    known = [name for name in CLASSES if name not in unknown]
    division = f"{len(known)}+{len(unknown)}:{'-'.join(unknown)[:6]}"
    return {
        "dataset": "pacs", "protocol": f"pacs:shared:{division}", "target": target,
        "sources": [], "known": known, "unknown": list(unknown), "method": method,
        "settings": settings(make_method(method, chosen)), "backbone": backbone, "recipe": Recipe(**recipe).to_json(),
        "seed": seed, "weights": weights,
        "selection": "the last iterate" if weights == "selected" else "averaged weights (over 0.5 of the run)",
        "acc": value + 0.1, "starting_weights": start, "opendg": "0.1.0", "commit": "abc123", "machine": "a machine",
        **({"notes": list(notes)} if notes else {}),
        "scores": {
            name: {"oscr": number, "auroc": None, "h@oracle10": {"h": number + 0.05}, "h@source95": {"h": number}}
            for name, number in values.items()
        },
    }  # fmt: skip


def result(*asked: Any, **more: Any) -> Result:
    return Result(record(*asked, **more), Path("somewhere/evaluation-selected.json"))
