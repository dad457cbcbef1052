"""The search space of `opendg tune`: what is varied and how far, for the recipe and for every method. As data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from opendg.seeds import generator

RECIPE, SETTINGS = "recipe.", "settings."  # how names in a space begin: what of the two a value belongs to


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, spread evenly over their logarithm or, with `log` false, over themselves."""

    low: float
    high: float
    log: bool = True

    def at(self, share: float) -> float:
        """The number at a share (0 to 1) of the way, to three digits."""
        value = self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low)
        return float(min(max(float(f"{value:.3g}"), self.low), self.high))

    def with_(self, value: float) -> Range:
        return replace(self, low=min(self.low, value), high=max(self.high, value))


@dataclass(frozen=True)
class Choice:
    """One of some values."""

    values: tuple[Any, ...]

    def at(self, share: float) -> Any:
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def with_(self, value: Any) -> Choice:
        return self if value in self.values else Choice((*self.values, value))


Space = dict[str, Range | Choice]

LR = (1 / 3, 5.0)  # the learning rate, as factors of the one that the recipe has
COMMON: Space = {"schedule": Choice(("step", "cosine")), "average_over": Choice((0.0, 0.5))}
START = f"{RECIPE}average_start"
SHARES = Range(0, 0.5, log=False)  # of the start in averaged weights: searched where every trial averages
TRIED = 6  # shares for each training where other settings are searched too: 0, 0.1 ... 0.5

_INNER = Range(1e-3, 3e-2)  # rate of an inner step: larger ones failed in searches on PACS and on the digit set
_WEIGHT = Range(0.1, 10)  # of a term beside the classification loss
_OVA: Space = {"ova_scale": Choice((0.5, 1.0))}  # of L_ova, where it is trained: MEDIC's code has 0.5, its Eq. 7 has 1

# The few settings of a method that its paper leaves open or searches itself. Methods that are not here have none. Not
# beta of meta-learning: with g1 + beta g2 the weights go (1 + beta) / 2 times as far, which is what lr is searched for.
METHODS: dict[str, Space] = {
    "medic": {"alpha": _INNER},
    "medic++": {"alpha": _INNER, "select": Choice(("random", "hard"))},
    "mldg": {"alpha": _INNER},
    "classwise": {"alpha": _INNER},
    "arith": {"alpha": _INNER},
    "ebil-hads": {"alpha": Range(1e-4, 1e-2), "evidential": _WEIGHT},
    "mvdg": {"inner_lr": Range(1e-4, 1e-2), "scale": Range(0.03, 0.3)},
    "metareg": {"weight": _WEIGHT, "alpha": Range(1e-4, 1e-2)},
    "daml": {"alpha": _INNER, "distill": Range(0.3, 3)},
    "arpl": {"weight": Range(1e-2, 1), "temperature": Range(0.5, 2)},
    "crossmatch": {"reach": Range(0.3, 3), "consistency": Range(0.3, 3)},
    "coral": {"weight": _WEIGHT},
    "mmd": {"weight": _WEIGHT},
    "dann": {"weight": _WEIGHT},
    "irm": {"weight": Range(1, 1e4)},
    "selfreg": {"weight": Range(0.3, 3), "feature_weight": Range(0.1, 1)},
    "miro": {"weight": Range(1e-3, 1)},
    "mixstyle": {"probability": Range(0.3, 0.7, log=False), "alpha": Choice((0.1, 0.2, 0.3))},
    "mmld": {"adversary": Range(0.3, 3), "entropy": Range(0.3, 3)},
    "rsc": {"cells": Range(0.2, 0.5, log=False), "channels": Range(0.2, 0.5, log=False)},
    "sagnet": {"weight": Range(1e-2, 1)},
    "cirl": {"weight": Range(0.5, 50), "draws": Range(0.4, 0.8, log=False)},
    "swad": {"tolerance": Range(1.1, 1.5, log=False)},
}


def space_of(method: str, defaults: Mapping[str, Any], fixed: Collection[str] = ()) -> Space:
    """What is searched for a method, less what is fixed.

    `defaults` are the values without a search, by `recipe.NAME` and `settings.NAME` as in the space. Each lies in it.
    """
    lr = defaults[f"{RECIPE}lr"]
    averaged = f"{RECIPE}average_over" in fixed and defaults[f"{RECIPE}average_over"] > 0
    recipe: Space = {"lr": Range(lr * LR[0], lr * LR[1]), **COMMON}
    whole = {f"{RECIPE}{name}": values for name, values in recipe.items()} | ({START: SHARES} if averaged else {})
    head = _OVA if defaults.get(f"{SETTINGS}ova") else {}
    whole |= {f"{SETTINGS}{name}": values for name, values in (METHODS.get(method, {}) | head).items()}
    return {name: values.with_(defaults[name]) for name, values in whole.items() if name not in fixed}


def candidates(space: Space, defaults: Mapping[str, Any], count: int, seed: int) -> list[dict[str, Any]]:
    """The defaults, then points of a Halton sequence, which fills a space evenly however few they are.

    A longer list begins with the shorter one. The list does not depend on the data: searches for several targets try
    the same settings, so that their ranks can be compared. Shares of the starting weights, which need no training of
    their own, are tried in turn for each point of the other settings. Of choices alone each combination is listed once,
    so that there may be fewer than `count`.
    """
    if START in space and len(space) > 1:
        trained = {name: values for name, values in space.items() if name != START}
        shares = [space[START].at(number / (TRIED - 1)) for number in range(TRIED)]
        points = candidates(trained, defaults, -(-count // TRIED), seed)
        return [point | {START: share} for point in points for share in shares][:count]
    first = {name: defaults[name] for name in space}
    choices = [values.values for values in space.values() if isinstance(values, Choice)]
    if len(choices) == len(space):
        every = (dict(zip(space, chosen, strict=True)) for chosen in product(*choices))
        return [first, *(point for point in every if point != first)][:count]
    from scipy.stats.qmc import Halton

    points = Halton(len(space), scramble=True, rng=generator(seed, "candidates")).random(count - 1)
    return [first] + [
        {name: values.at(float(share)) for (name, values), share in zip(space.items(), point, strict=True)}
        for point in points
    ]


def training_of(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What of the settings decides a training: settings that differ in the share of the start alone share one."""
    return tuple((name, values[name]) for name in sorted(values) if name != START)


def part(values: Mapping[str, Any], start: str) -> dict[str, Any]:
    """The values whose names begin with RECIPE or with SETTINGS, without that beginning."""
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def fast_motion(recipe: dict[str, Any], pace: float) -> dict[str, Any]:
    """The recipe of a run that does in one iteration what another does in `pace`; see `tuner.pace_of`.

    Averaged weights look back over a share of a run, and so over the same one.
    """
    return recipe | {"lr": recipe["lr"] * pace}
