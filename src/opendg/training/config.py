"""A config file: a method, its settings and what it changes in the recipe, as TOML.

    method = "medic"

    [recipe]
    lr = 2e-4
    schedule = "cosine"

    [settings]
    alpha = 0.02

`opendg tune` writes one, `opendg train --config` takes it. A method of a plan has the same keys. The comment above
it, where `opendg tune` says how the settings were found, goes with the runs: tables that are made of them say it too.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

from opendg.errors import OpenDGError, unknown_name
from opendg.methods.registry import in_words, make_method
from opendg.runs.files import write_atomic
from opendg.training.recipe import Recipe, without_older_average

KEYS = ("method", "recipe", "settings")
KINDS: dict[Any, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}  # the widest is the last


@dataclass(frozen=True)
class Config:
    method: str
    recipe: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = field(default=(), compare=False)  # the sentences above it

    def beneath(self, method: str | None, asked: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The method and arguments of `opendg.train`: as they were given, else as the config has them."""
        if method not in (None, self.method):
            raise OpenDGError(
                f"The config is for {self.method}, not for {method}: leave the method out, or the config."
            )
        given = {name: value for name, value in asked.items() if value is not None}
        noted = {"notes": self.notes} if self.notes else {}
        chosen = self.settings | (asked.get("chosen") or {})
        return self.method, asked | self.recipe | given | noted | {"chosen": chosen}


def read_config(path: str | Path) -> Config:
    """The Config of a file. What is misspelt or does not fit is refused before anything is spent."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        said = tomllib.loads(text)
    except OSError as error:
        raise OpenDGError(f"The config {str(path)!r} cannot be read ({error.strerror}): give a TOML file.") from error
    except ValueError as error:
        raise OpenDGError(f"The config {str(path)!r} is not valid TOML: {error}.") from error
    where = f" in the config {str(path)!r}"
    for key in said:
        if key not in KEYS:
            raise unknown_name("key", key, KEYS, where)
    if not isinstance(said.get("method"), str):
        raise OpenDGError(f'The config {str(path)!r} does not name its method: add a line such as method = "medic".')
    if isinstance(said.get("recipe"), dict):
        said["recipe"] = without_older_average(said["recipe"], f"The config {str(path)!r}")
    config = Config(**said, notes=_notes(text))
    _check_recipe(config.recipe, where)
    if not isinstance(config.settings, dict):
        raise OpenDGError(f"The settings{where} are not a table: write [settings] and their values below.")
    make_method(config.method, config.settings)
    return config


def write_config(path: Path, config: Config, notes: list[str]) -> None:
    """The file, with notes above it."""
    lines = [f"# {note}" for note in notes] + [f"method = {json.dumps(config.method)}"]
    for title, values in (("recipe", config.recipe), ("settings", config.settings)):
        lines += ["", f"[{title}]"] + [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def _notes(text: str) -> tuple[str, ...]:
    """The sentences of the comment at the top of a file: a line without a full stop at its end goes on in the next."""
    found: list[str] = []
    for line in takewhile(lambda line: line.startswith("#"), text.splitlines()):
        begun = [found.pop()] if found and not found[-1].endswith(".") else []
        found.append(" ".join([*begun, line.removeprefix("#").strip()]).strip())
    return tuple(filter(None, found))


def _check_recipe(recipe: Any, where: str) -> None:
    if not isinstance(recipe, dict):
        raise OpenDGError(f"The recipe{where} is not a table: write [recipe] and its values below.")
    kinds = {f.name: KINDS[f.type] for f in fields(Recipe)}
    for key, value in recipe.items():
        if key not in kinds:
            raise unknown_name("part of the recipe", key, kinds, where)
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise OpenDGError(f"The recipe's {key} is {value!r}{where}: {in_words(kinds[key][-1])} was expected.")
    Recipe(**recipe)
