"""What a record must hold to be read: a torn or edited one is refused by what is wrong in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Good = Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """A finite one, which a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _table(value: Any) -> bool:
    return isinstance(value, dict)


RECORD: dict[str, Good] = {
    "dataset": _text, "protocol": _text, "target": _text, "known": _texts, "unknown": _texts, "method": _text,
    "settings": _table, "backbone": _text, "recipe": _table, "seed": _whole, "weights": _text, "selection": _text,
    "acc": is_number, "scores": _table,
}  # fmt: skip
RECIPE: dict[str, Good] = {  # what tables say of it
    "iterations": _whole, "batch": _whole, "optimizer": _text, "lr": is_number, "weight_decay": is_number,
    "schedule": _text, "augment": _text,
}  # fmt: skip
METRICS = ("oscr", "auroc", "aupr", "fpr95")


def fault(record: Mapping[str, Any]) -> str | None:
    """The first thing in a record that is missing or of another kind, by its place; None where it is whole."""
    for kinds, part, name in ((RECORD, record, ""), (RECIPE, record.get("recipe"), "recipe.")):
        for key, good in kinds.items():
            if not isinstance(part, dict) or not good(part.get(key)):
                return f"{name}{key}"
    for score, said in record["scores"].items():
        if not isinstance(said, dict):
            return f"scores.{score}"
        for key, value in said.items():
            if not _metric(key, value):
                return f"scores.{score}.{key}"
    return None


def _metric(key: str, value: Any) -> bool:
    """A number, an H-score at some threshold, or nothing where the images do not give the metric."""
    if key.startswith("h@"):
        return value is None or (isinstance(value, dict) and is_number(value.get("h")))
    return key not in METRICS or value is None or is_number(value)
