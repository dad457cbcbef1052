"""The tables of the MEDIC paper as data, one TOML file a table: every result can stand beside the published one.

A row has the method's name in OpenDG and the settings that it needs to be the same thing (`ova = false`: trained with
the closed-set head alone). `score` is that of the paper's inference, `own` that of an open-set method. Values are
percent, a list for each target in the order of `metrics`; nan is what the paper leaves out.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from opendg.errors import unknown_name

TABLES = ("pacs-resnet18", "pacs-resnet50", "digits-dg", "ablation", "closed-pacs", "closed-office-home")


@dataclass(frozen=True)
class PublishedRow:
    name: str  # as printed
    method: str
    values: tuple[tuple[float, ...], ...]  # for each target, for each metric; percent
    average: tuple[float, ...]  # as printed
    score: str = "cls"
    settings: dict[str, Any] = field(default_factory=dict)
    option: str = ""  # of the ablation, as printed
    matches: tuple[str, ...] = ()  # of the ablation: whose gradients the method matches
    note: str = ""


@dataclass(frozen=True)
class Published:
    name: str
    source: str
    table: int
    label: str  # in the paper's TeX
    title: str
    dataset: str
    backbone: str  # the architecture: resnet18, resnet50, convnet
    known: int
    unknown: int
    metrics: tuple[str, ...]
    targets: tuple[str, ...]
    rows: tuple[PublishedRow, ...]

    @property
    def decimals(self) -> int:
        """How many the paper prints."""
        numbers = [x for row in self.rows for values in (*row.values, row.average) for x in values if x == x]
        return max(len(str(number).split(".")[1]) for number in numbers)

    def value(self, row: PublishedRow, target: str | None, metric: str) -> float | None:
        """Percent as printed, None where the paper has no such number. `target` None is the average."""
        if metric not in self.metrics or target not in (None, *self.targets):
            return None
        values = row.average if target is None else row.values[self.targets.index(target)]
        found = values[self.metrics.index(metric)]
        return None if found != found else found


@cache
def published(name: str) -> Published:
    """A table of the paper by name."""
    if name not in TABLES:
        raise unknown_name("published table", name, TABLES)
    said = tomllib.loads((files(__name__) / f"{name}.toml").read_text())
    rows = tuple(_row(values) for values in said.pop("rows"))
    return Published(name, rows=rows, **{key: _frozen(value) for key, value in said.items()})


def _row(values: dict[str, Any]) -> PublishedRow:
    return PublishedRow(**{key: _frozen(value) for key, value in values.items()})


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
