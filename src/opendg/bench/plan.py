"""The Plan: methods x datasets x targets x divisions x seeds x settings, from a TOML file -> cells.

    title = "PACS, six classes known"
    data = "pacs"                       # or a list
    targets = ["photo", "sketch"]       # default: every domain in turn
    seeds = [0, 1, 2]
    known = 6                           # default: as the catalogue has it; or a list of names, or unknown = [...]
    divisions = [{ known = 3 }, { unknown = ["person"] }]      # several ways to part known from unknown classes
    backbone = "resnet18.tv_in1k"
    scores = ["cls", "bcls", "energy"]  # default: those that need no fitting

    [recipe]                            # what differs from the common recipe, for all methods (base = "authors")
    iterations = 4000

    [[methods]]
    method = "medic"
    label = "MEDIC"
    settings = { order = 1 }
    vary = { alpha = [0.01, 0.1] }      # every combination is a run
    recipe = { lr = 2e-4 }

`[show]` says which table or figure is made of it; see `produce.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from opendg.bench.cells import Cell, absolute, run_name
from opendg.bench.check import check_plan
from opendg.bench.names import names_of
from opendg.bench.records import Tested
from opendg.data.entries import DATASETS
from opendg.errors import OpenDGError, unknown_name
from opendg.training.config import Config
from opendg.training.job import Job, make_job
from opendg.training.lists import names_in

Division = dict[str, Any]  # known or unknown, as `opendg train` takes them


@dataclass(frozen=True)
class Entry:
    """One row of a table: a method, its settings, what it changes in the recipe."""

    method: str
    label: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    vary: dict[str, list[Any]] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what a config says of the settings

    def variants(self) -> Iterator[dict[str, Any]]:
        """The settings, once for every combination of `vary`."""
        for values in product(*self.vary.values()):
            yield self.settings | dict(zip(self.vary, values, strict=True))

    def tuned(self, config: Config) -> Entry:
        """With a config's recipe and settings, if it is for this method. What makes the row what it is stays."""
        if config.method != self.method:
            return self
        return replace(
            self, settings=config.settings | self.settings, recipe=self.recipe | config.recipe, notes=config.notes
        )


@dataclass(frozen=True)
class Show:
    """What is made of the records."""

    kind: str = "table"  # table, rotating, thresholds, tsne, openness, oscr or confusion
    published: str = ""
    metrics: tuple[str, ...] = ("acc", "h@oracle10", "oscr")
    score: str = "own"  # of figures: one for all methods, or the one that each method is read with


@dataclass(frozen=True)
class Plan:
    name: str
    data: tuple[str, ...]
    methods: tuple[Entry, ...]
    title: str = ""
    targets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    known: Any = None
    unknown: Any = None
    divisions: tuple[Division, ...] = ()
    protocol: str = "shared"
    split_seed: int = 0
    backbone: str | None = None
    weights: str | None = None
    scores: tuple[str, ...] = ()
    recipe: dict[str, Any] = field(default_factory=dict)
    show: Show = Show()

    def cells(self, root: Path | None = None) -> list[Cell]:
        """Every run, in an order that fills a table early: all methods and targets of the first seed first."""
        cells = []
        for data in self.data:
            targets = self._targets(data, root)
            for seed, division, target, entry in product(self.seeds, self._divisions(), targets, self.methods):
                cells += [
                    Cell(
                        method=entry.method, data=absolute(data), target=target, seed=seed, settings=settings,
                        recipe={k: v for k, v in (self.recipe | entry.recipe).items() if k != "base"},
                        base=str((self.recipe | entry.recipe).get("base", "common")),
                        protocol=self.protocol, split_seed=self.split_seed, backbone=self.backbone,
                        weights=self.weights and absolute(self.weights), scores=entry.scores or self.scores,
                        notes=entry.notes, **division,
                    )
                    for settings in entry.variants()
                ]  # fmt: skip
        return cells

    def divides(self, tested: Tested) -> bool:
        """Whether one of its divisions has as many known and unknown classes, as far as plan and catalogue say that."""
        entry = DATASETS.get(tested.dataset)
        usual = {"known": entry.known} if entry and self.protocol == "shared" else {}
        counts = {"known": tested.known, "unknown": len(tested.unknown)}
        for division in self._divisions():
            said = {name: value for name, value in division.items() if value is not None} or usual
            if all(counts[name] == (value if isinstance(value, int) else len(value)) for name, value in said.items()):
                return True
        return False

    def _divisions(self) -> tuple[Division, ...]:
        return self.divisions or ({"known": self.known, "unknown": self.unknown},)

    def _targets(self, data: str, root: Path | None) -> list[str]:
        domains = names_of(data, root).domains
        for target in self.targets:
            if len(self.data) == 1 and not set(names_in(target)) <= set(domains):
                raise unknown_name("domain", target, domains, where=f" in {data}")
        wanted = [target for target in self.targets if set(names_in(target)) <= set(domains)]
        if self.targets and not wanted:
            raise OpenDGError(
                f"None of the targets {', '.join(self.targets)} is a domain of {data}: it has {', '.join(domains)}."
            )
        return wanted or list(domains)

    def override(
        self, *, seeds: Sequence[int] | None = None, methods: Sequence[str] | None = None,
        configs: Sequence[Config] = (), iterations: int | None = None, **values: Any,
    ) -> Plan:  # fmt: skip
        """The plan with what the command line says; None leaves a thing as it is."""
        made = replace(self, **{name: value for name, value in values.items() if value is not None})
        self._check_configs(configs)
        entries = [reduce(Entry.tuned, configs, entry) for entry in self._chosen(methods)]
        if iterations is not None:
            entries = [replace(entry, recipe=entry.recipe | {"iterations": iterations}) for entry in entries]
        return replace(made, methods=tuple(entries), seeds=tuple(seeds or self.seeds))

    def _check_configs(self, configs: Sequence[Config]) -> None:
        """Each is for a method of the plan, and no two are for the same: none is without effect."""
        tuned = [config.method for config in configs]
        for method in tuned:
            if method not in {entry.method for entry in self.methods}:
                raise OpenDGError(f"A --config is for {method}, which {self.name} does not have: leave it out.")
            if tuned.count(method) > 1:
                raise OpenDGError(f"Two of the --config files are for {method}: give one for each method.")

    def _chosen(self, methods: Sequence[str] | None) -> list[Entry]:
        """The entries of these names or labels; all of them for None."""
        names = sorted({name for entry in self.methods for name in (entry.method, entry.label) if name})
        for name in methods or ():
            if name not in names:
                raise unknown_name("method", name, names, where=f" in {self.name}")
        return [entry for entry in self.methods if methods is None or {entry.method, entry.label} & set(methods)]


def place(cells: Iterable[Cell], root: Path | None = None, need_data: bool = False) -> dict[str, tuple[Cell, Job]]:
    """Run name -> cell and job, each checked as `opendg train` would. Equal cells are one run, with all scores."""
    placed: dict[str, tuple[Cell, Job]] = {}
    by_data: dict[str, list[Cell]] = {}
    for cell in cells:
        by_data.setdefault(cell.data, []).append(cell)
    for data, group in by_data.items():
        names = names_of(data, root, need_data)
        for cell in group:
            job = make_job(cell.method, data, names_in(cell.target), names, **cell.asked())
            before, job = placed.get(name := run_name(job), (cell, job))
            placed[name] = (replace(before, scores=tuple(dict.fromkeys(before.scores + cell.scores))), job)
    return placed


def list_plans() -> list[str]:
    """Names of the shipped plans."""
    folder = files("opendg.bench") / "plans"
    return sorted(path.name.removesuffix(".toml") for path in folder.iterdir() if path.name.endswith(".toml"))


def load_plan(name: str) -> Plan:
    """A plan by the name of a shipped one or by its file."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise OpenDGError(f"There is no plan file {name!r}: give a TOML file, or one of {', '.join(list_plans())}.")
        try:
            return parse_plan(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise OpenDGError(f"The plan file {name!r} cannot be read ({error}): give a TOML file in UTF-8.") from error
    if name not in list_plans():
        raise unknown_name("plan", name, list_plans())
    return parse_plan(name, (files("opendg.bench") / "plans" / f"{name}.toml").read_text())


def parse_plan(name: str, text: str) -> Plan:
    """A Plan from TOML; what cannot be is refused, with near matches."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OpenDGError(f"The plan {name!r} is not valid TOML: {error}.") from error
    check_plan(name, said)
    data = said.pop("data")
    entries = tuple(Entry(**_tuples(entry, ("scores",))) for entry in said.pop("methods"))
    show = Show(**_tuples(said.pop("show", {}), ("metrics",)))
    values = _tuples(said, ("targets", "seeds", "divisions", "scores"))
    return Plan(name, (data,) if isinstance(data, str) else tuple(data), entries, show=show, **values)


def _tuples(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: tuple(value) if key in names else value for key, value in values.items()}
