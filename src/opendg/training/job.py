"""The Job: all that defines a training, checked before anything is spent on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from opendg.data import catalog
from opendg.data.index import Index
from opendg.errors import OpenDGError, unknown_name
from opendg.methods.base import Authors, Method
from opendg.methods.registry import METHODS, make_method, settings
from opendg.protocol import Names, Protocol, Split, make_protocol
from opendg.training.recipe import Recipe, default_recipe, without_older_average
from opendg.training.select import check_selection

# What the fields of a run.json must be, by their annotation.
KINDS: dict[Any, Any] = {
    "str": str, "str | None": str | None, "int": int, "float": int | float, "dict[str, Any]": dict,
    "tuple[str, ...]": list, "Protocol": dict, "Recipe": dict,
}  # fmt: skip

NOT_DEFINING = ("data", "root", "notes")  # where the images lie (the protocol names the dataset), who chose settings


@dataclass(frozen=True)
class Job:
    """What `run.json` keeps, and what a resumed run is made from."""

    method: str
    settings: dict[str, Any]
    data: str
    root: str | None
    protocol: Protocol
    backbone: str
    weights: str
    recipe: Recipe
    seed: int
    on_bad_image: str
    notes: tuple[str, ...] = ()  # what the config says of its settings

    def to_json(self) -> dict[str, Any]:
        parts = {"protocol": self.protocol.to_json(), "recipe": self.recipe.to_json(), "notes": list(self.notes)}
        return vars(self) | parts

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        """From a run.json; a stranger's values are looked up and checked like those of the command line."""
        try:
            known = _checked(cls, values)
            recipe = without_older_average(known["recipe"], "The run")
            _checked(Recipe, recipe)
            parts = {"protocol": Protocol.from_json(known["protocol"]), "recipe": Recipe(**recipe)}
            return cls(**(known | parts | {"notes": tuple(map(str, known.get("notes", ())))}))
        except (KeyError, TypeError) as error:
            raise OpenDGError(f"The run.json is damaged ({error}): train the run anew.") from error

    def make_method(self) -> Method:
        return make_method(self.method, self.settings)

    def open_data(self, root: str | Path | None = None) -> tuple[Index, Split]:
        """The data of the job, which lie in `root` if they have moved."""
        data, where = self.place(root)
        if not _is_name(data) and not Path(data).expanduser().is_dir():
            gone = "are no longer" if root is None else "are not"
            raise OpenDGError(f"The images of the run {gone} in {data!r}: give their folder with --root.")
        index = catalog.open_dataset(data, where)
        return index, self.protocol.apply(index)

    def place(self, root: str | Path | None = None) -> tuple[str, Path | None]:
        """What `open_dataset` is asked for: the root above a named dataset is `root`, and so is a folder itself."""
        data = self.data if root is None or _is_name(self.data) else str(root)
        where = root or self.root
        return data, None if where is None else Path(where)

    def differs(self, other: Job) -> list[str]:
        """What sets two jobs apart, by name. Neither notes do nor where the images lie: a run's manifest knows them."""
        own, others = _defining(self), _defining(other)
        return [name for name in own | others if own.get(name) != others.get(name)]


def home(data: str, root: str | Path | None) -> Path | None:
    """Where data lie that are asked for in these words, as `Job.open_data` takes it."""
    where = root if catalog.is_named(data, root) else data
    return None if where is None else Path(where)


def _defining(job: Job) -> dict[str, Any]:
    """All that defines a job, as a run.json has it: {"method": "erm", "recipe.lr": 0.001 ...}."""
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(job.to_json())).items():
        found |= {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return {name: value for name, value in found.items() if name not in NOT_DEFINING}


def _checked(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Those values that are fields of a dataclass, each of the kind that it wants."""
    found = [field for field in fields(kind) if field.name in values]
    for field in found:
        if not isinstance(values[field.name], KINDS[field.type]):
            raise TypeError(f"{field.name} is {values[field.name]!r}")
    return {field.name: values[field.name] for field in found}


def check_on_bad_image(said: str) -> None:
    if said not in ("error", "skip"):
        raise OpenDGError(f"There is no --on-bad-image {said!r}: choose error or skip.")


def _is_name(data: str) -> bool:
    """Whether the data are a dataset of the catalogue, and no folder of the user's."""
    return catalog.find(data) is not None


def _where(data: str, root: str | Path | None) -> str:
    """What a job remembers of --data: a folder that is opened for itself, whatever its name, by its whole path."""
    return data if catalog.is_named(data, root) else _absolute(data)


def _absolute(path: str | Path) -> str:
    """A path that also holds where the run is opened from another folder."""
    return str(Path(path).expanduser().absolute())


def refuse_misspelt(asked: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Refuse an argument that neither the recipe nor one of these functions takes by its name."""
    taken = [field.name for field in fields(Recipe)]
    for taker in takers:
        taken += [p.name for p in signature(taker).parameters.values() if p.kind is Parameter.KEYWORD_ONLY]
    for name in asked:
        if name not in taken:
            raise unknown_name("argument", name, taken)


def plan(
    method: str, data: str, targets: Sequence[str], *, root: str | Path | None = None, **asked: Any
) -> tuple[Job, Index, Split]:
    """The Job of what was asked for (see `make_job`), and its data."""
    chosen_method(method, asked.get("recipe", "common"), asked.get("chosen"))  # before a large dataset is listed
    index = catalog.open_dataset(data, None if root is None else Path(root))
    job = make_job(method, data, targets, index, root=root, **asked)
    return job, index, job.protocol.apply(index)


def make_job(
    method: str,
    data: str,
    targets: Sequence[str],
    names: Names,
    *,
    root: str | Path | None = None,
    sources: Sequence[str] | None = None,
    known: int | Sequence[str] | None = None,
    unknown: Sequence[str] | None = None,
    protocol: str = "shared",
    split_seed: int = 0,
    backbone: str | None = None,
    weights: str | None = None,
    seed: int = 0,
    chosen: dict[str, Any] | None = None,
    on_bad_image: str = "error",
    recipe: str = "common",
    notes: Sequence[str] = (),
    **asked: Any,
) -> Job:
    """Check what was asked for and fill in what was not: classes, backbone and recipe follow the dataset.

    Its domains and classes are enough for that; no image need be there.
    """
    refuse_misspelt(asked, make_job)
    authors, made = chosen_method(method, recipe, chosen)
    entry = catalog.DATASETS.get(names.dataset)
    if known is None and unknown is None and entry is not None and protocol == "shared":
        known = entry.known
    rule = make_protocol(
        names, targets, known=known, unknown=unknown, sources=sources, kind=protocol, split_seed=split_seed
    )
    if len(rule.sources) < made.min_sources:
        raise OpenDGError(
            f"{made.title} needs {made.min_sources} or more source domains, and {len(rule.sources)} is left "
            f"({', '.join(rule.sources)}): name fewer targets, or use erm."
        )
    check_on_bad_image(on_bad_image)
    name = backbone or (entry.backbone if entry else "resnet18.tv_in1k")
    start = weights or ("none" if name == "convnet" else "imagenet")
    start = start if start in ("imagenet", "none") else _absolute(start)
    kind = entry.input if entry else "photo"
    said = {"augment": kind} | authors.recipe | {name: value for name, value in asked.items() if value is not None}
    common = default_recipe(start != "none", **said)
    check_selection(made, common)
    return Job(
        method=method, settings=settings(made), data=_where(data, root),
        root=None if root is None else _absolute(root), protocol=rule, backbone=name, weights=start,
        recipe=common, seed=seed, on_bad_image=on_bad_image, notes=tuple(notes),
    )  # fmt: skip


def chosen_method(method: str, recipe: str, chosen: dict[str, Any] | None) -> tuple[Authors, Method]:
    """The method with the settings chosen for it, and what the recipe changes."""
    authors = authors_of(method, recipe)
    return authors, make_method(method, authors.settings | (chosen or {}))


def authors_of(method: str, recipe: str) -> Authors:
    """What `--recipe authors` changes; nothing for `--recipe common`."""
    if recipe not in ("common", "authors"):
        raise OpenDGError(f"There is no recipe {recipe!r}: choose common (the same for all methods) or authors.")
    if recipe == "common" or method not in METHODS:
        return Authors()
    found = METHODS[method].authors
    if found is None:
        raise OpenDGError(f"The authors' recipe of {method} is not known: leave --recipe out.")
    return found
