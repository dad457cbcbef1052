"""Means over places and seeds: one rule for every table, and for the page of `opendg report` (assets/table.js).

A place is a target, or a target under one division of the classes. Its number is the mean over its seeds. The average
is the mean of the places' numbers: a reader finds it again from the row that it ends, also where a place has more seeds
than another. Its spread is over the seeds that have every place, each with its mean over the places.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple, TypeVar

Place = TypeVar("Place", bound=Hashable)


class Measured(NamedTuple):
    mean: float | None
    numbers: list[float]  # those that the spread is over

    @property
    def spread(self) -> float | None:
        """The standard deviation, None for a single number."""
        return stdev(self.numbers) if len(self.numbers) > 1 else None


def over_seeds(values: Mapping[tuple[Place, int], float], places: Sequence[Place]) -> Measured:
    """The mean of values by (place, seed), None where a place has none."""
    seeds = sorted({seed for _, seed in values})
    by_place = [[values[place, seed] for seed in seeds if (place, seed) in values] for place in places]
    whole = [seed for seed in seeds if all((place, seed) in values for place in places)]
    return Measured(
        mean(map(mean, by_place)) if all(by_place) else None,
        [mean(values[place, seed] for place in places) for seed in whole],
    )
