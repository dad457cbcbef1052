"""What may stand in a plan file: keys, kinds of values, and names. All is checked before anything is spent on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from opendg.bench.header import NAMES
from opendg.bench.published import TABLES
from opendg.bench.records import Tested
from opendg.errors import OpenDGError, unknown_name
from opendg.methods.registry import METHODS, in_words
from opendg.scores.registry import SCORES
from opendg.training.config import KINDS
from opendg.training.recipe import Recipe

Kind = tuple[str, Callable[[Any], bool]]  # in words, and whether a value is of it

PRODUCTS = ("table", "rotating", "openness", "thresholds", "tsne", "oscr", "confusion")  # what `[show]` may make
COLUMNS = {"rotating": "division", "openness": "ratio"}  # what a place is for; figures have one for each target
OWN = "own"  # the score that each method is read with


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(type(part) is kind for part in value)


TEXT: Kind = ("a text in quotes", lambda value: isinstance(value, str))
WHOLE: Kind = ("a whole number", lambda value: type(value) is int)
TEXTS: Kind = ('a list of texts, such as ["a", "b"],', _list_of(str))
TABLE: Kind = ("a table, such as { a = 1 },", lambda value: isinstance(value, dict))
ENTRIES: Kind = ("a list of tables, such as [{ a = 1 }],", _list_of(dict))
DATA: Kind = ("a text or a list of texts", lambda value: bool(value) and (TEXT[1](value) or TEXTS[1](value)))
SEEDS: Kind = ("a list of whole numbers, such as [0, 1, 2],", lambda value: bool(value) and _list_of(int)(value))
KNOWN: Kind = ("a number of classes or a list of names", lambda value: WHOLE[1](value) or TEXTS[1](value))
VARY: Kind = (
    "a table of lists, such as { alpha = [0.1, 1.0] },",
    lambda value: isinstance(value, dict) and all(isinstance(part, list) and part for part in value.values()),
)

DIVISION = {"known": KNOWN, "unknown": TEXTS}
PLAN = DIVISION | {
    "title": TEXT, "data": DATA, "methods": ENTRIES, "targets": TEXTS, "seeds": SEEDS, "divisions": ENTRIES,
    "protocol": TEXT, "split_seed": WHOLE, "backbone": TEXT, "weights": TEXT, "scores": TEXTS, "recipe": TABLE,
    "show": TABLE,
}  # fmt: skip
ENTRY = {"method": TEXT, "label": TEXT, "settings": TABLE, "vary": VARY, "recipe": TABLE, "scores": TEXTS}
SHOW = {"kind": TEXT, "published": TEXT, "metrics": TEXTS, "score": TEXT}


def _of_recipe(kinds: tuple[type, ...]) -> Kind:
    return in_words(kinds[-1]), lambda value: isinstance(value, kinds) and not isinstance(value, bool)


RECIPE = {f.name: _of_recipe(KINDS[f.type]) for f in fields(Recipe)} | {"base": TEXT}


def check_plan(name: str, said: Mapping[str, Any]) -> None:
    """Refuse what is misspelt, missing or of another kind."""
    plan = f"the plan {name!r}"
    _fits(said, PLAN, plan)
    missing = [key for key in ("data", "methods") if not said.get(key)]
    if missing:
        raise OpenDGError(f"The plan {name!r} does not say {' and '.join(missing)}: a dataset and methods are needed.")
    for entry in said["methods"]:
        _fits(entry, ENTRY, f"a method of {plan}")
        if "method" not in entry:
            raise OpenDGError(f'A [[methods]] entry of {plan} has no method: add method = "erm", say.')
        _named("method", [entry["method"]], METHODS, plan)
    for recipe in (said.get("recipe", {}), *(entry.get("recipe", {}) for entry in said["methods"])):
        _fits(recipe, RECIPE, f"the recipe in {plan}")
    for division in said.get("divisions", []):
        if not division or not set(division) <= set(DIVISION):
            raise OpenDGError(f"A division of {plan} is {division}: give known, unknown or both.")
        _fits(division, DIVISION, f"a division of {plan}")
    for part in (said, *said["methods"]):
        _named("score", part.get("scores", []), [*SCORES, OWN], plan)
    _check_show(said.get("show", {}), plan)


def _check_show(show: Mapping[str, Any], plan: str) -> None:
    _fits(show, SHOW, f"[show] in {plan}")
    _named("kind of [show]", [show["kind"]] if "kind" in show else [], PRODUCTS, plan)
    _named("metric", show.get("metrics", []), NAMES, plan)
    _named("published table", [show["published"]] if "published" in show else [], TABLES, plan)
    check_score(show.get("score", OWN), plan)


def check_score(score: str, where: str) -> None:
    _named("score", [score], [*SCORES, OWN], where)


def check_shown(kind: str, tested: Collection[Tested]) -> None:
    """Refuse runs that cannot be shown as `kind`: before they are trained, and when records are given."""
    if kind == "table":  # of which there is one for each protocol
        return
    shown, protocols = f"[show] with kind = {kind!r}", dict[str, set[str]]()
    for one in tested:
        protocols.setdefault(getattr(one, COLUMNS.get(kind, "target")), set()).add(one.protocol)
        if not one.unknown:
            raise OpenDGError(f"{shown} needs unknown classes, and {one.protocol} has none: name some.")
    datasets = sorted({one.dataset for one in tested})
    if kind in COLUMNS and len(datasets) > 1:
        raise OpenDGError(f"{shown} is of one dataset, and these are {' and '.join(datasets)}: make one of each.")
    for column, ids in protocols.items():
        if len(ids) > 1:
            raise OpenDGError(
                f"{shown} has one place for {column}, and there are {len(ids)} protocols for it "
                f"({', '.join(sorted(ids)[:3])}{' ...' * (len(ids) > 3)}): keep one of them."
            )


def _fits(said: Mapping[str, Any], kinds: Mapping[str, Kind], where: str) -> None:
    for key, value in said.items():
        if key not in kinds:
            raise unknown_name("key", key, kinds, where=f" of {where}")
        words, is_kind = kinds[key]
        if not is_kind(value):
            raise OpenDGError(f"{key} of {where} is {value!r}: {words} was expected.")


def _named(what: str, names: Collection[str], choices: Collection[str], where: str) -> None:
    for name in names:
        if name not in choices:
            raise unknown_name(what, name, choices, where=f" in {where}")
