"""One setting for all targets: the best mean rank over the targets' own searches.

Trials on one training, which differ in the share of the starting weights alone, are the same networks: the share with
the best mean OSCR stands for them. Else many near-equal shares would crowd the ranks.

A search for a target has not opened it. But each target is a source domain in the searches of the others, so the one
setting has been chosen with a look at every domain, as a source. Whoever shows a table made with it says so (`NOTE`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from opendg.bench.search import ITERATIONS, Search, Trial, at_pace, difference
from opendg.bench.space import training_of
from opendg.errors import OpenDGError, counted
from opendg.runs.files import make_folder
from opendg.training.config import write_config

NOTE = (
    "One setting for all targets, by its mean rank over the targets' own searches. No search opened its target; but "
    "each target domain was a source in the searches of the other targets."
)
SAME = (
    "method", "dataset", "known", "backbone", "weights", "seed", "split_seed", "on_bad_image", "sampler", "defaults",
    "fixed", "space",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """One setting over all targets: its rank and OSCR in each search."""

    trial: Trial
    ranks: dict[str, float]  # by target
    oscr: dict[str, float]

    @property
    def mean_rank(self) -> float:
        return fmean(self.ranks.values())

    @property
    def mean_oscr(self) -> float:
        return fmean(self.oscr.values())


def find_searches(folders: Sequence[str | Path]) -> list[Search]:
    """The searches that folders are or, directly inside them, hold."""
    found: list[Path] = []
    for folder in map(Path, folders):
        inside = sorted(path.parent for path in folder.glob("*/tune.json"))
        found += [folder] if (folder / "tune.json").exists() or not inside else inside
    return [Search.open(folder) for folder in found]


def beside(searches: list[Search]) -> Path:
    """Where the one setting is written unless another place is named: the folder that holds the first search."""
    folder = searches[0].folder
    return (folder.parent if folder.name not in ("", "..") else folder.resolve().parent) / "best.toml"


def check_out(out: Path) -> None:
    """Never in the place of a search's own settings."""
    if (out.parent / "tune.json").exists():
        raise OpenDGError(f"{str(out.parent)!r} is a search with settings of its own: choose another --out.")


def combine(searches: list[Search], out: Path, score: str | None = None) -> list[Place]:
    """A setting of every training that all searches have made, the best mean rank first; written to `out` as a config.

    Equal mean ranks are parted by mean OSCR. The score is the searches' own unless another is named: they hold all.
    """
    check_out(out)
    check_alike(searches)
    by_target = {",".join(search.facts["targets"]): search for search in searches}
    score = score or own_score(searches)
    if any(all(score not in trial.oscr for trial in search.trials) for search in searches):
        raise OpenDGError(f"The score {score!r} was not measured in all of these searches: choose another --score.")
    count = min(len(search.trials) for search in searches)
    chosen = best_shares(searches, count, score)
    reached = {t: [search.trials[trial.number].value(score) for trial in chosen] for t, search in by_target.items()}
    ranked = {target: ranks(values) for target, values in reached.items()}
    places = [
        Place(trial, {t: ranked[t][i] for t in by_target}, {t: reached[t][i] for t in by_target})
        for i, trial in enumerate(chosen)
    ]
    places.sort(key=lambda place: (place.mean_rank, -place.mean_oscr, place.trial.number))
    write_choice(out, places[0], searches, score, count)
    return places


def best_shares(searches: list[Search], count: int, score: str) -> list[Trial]:
    """Of the first search's trials one for each training: the share of the start that is best over all searches."""
    by_training: dict[object, list[Trial]] = {}
    for trial in searches[0].trials[:count]:
        by_training.setdefault(training_of(trial.values), []).append(trial)

    def mean(trial: Trial) -> float:
        return fmean(search.trials[trial.number].value(score) for search in searches)

    return [max(trials, key=mean) for trials in by_training.values()]


def ranks(values: Sequence[float]) -> list[float]:
    """1 for the largest; equal values share the mean of their ranks."""
    return [1 + sum(b > a for b in values) + (sum(b == a for b in values) - 1) / 2 for a in values]


def check_alike(searches: list[Search]) -> None:
    """Ranks only mean something between searches that tried the same settings."""
    if len(searches) < 2:
        raise OpenDGError("One search has the best settings in its own best.toml: name two or more to combine.")
    first = searches[0]
    for search in searches:
        if not search.trials:
            raise OpenDGError(f"The search {str(search.folder)!r} has no trial yet: let it run first.")
        if search.facts["sampler"] != "list":
            raise OpenDGError(f"The search {str(search.folder)!r} chose its own settings (tpe): tune with list.")
        if found := difference(search.facts, first.facts, SAME):
            name, one, other = found
            raise OpenDGError(
                f"{str(search.folder)!r} and {str(first.folder)!r} differ ({name}: {one} and {other}): combine "
                "searches that were asked for in the same way, but for the target."
            )
    targets = [tuple(search.facts["targets"]) for search in searches]
    if len(set(targets)) < len(targets):
        raise OpenDGError("Two of these searches are for the same target: name one search for each target.")


def own_score(searches: list[Search]) -> str:
    """The score that all searches went by."""
    scores = list(dict.fromkeys(search.facts["score"] for search in searches))
    if len(scores) > 1:
        raise OpenDGError(f"The searches went by different scores ({', '.join(scores)}): choose one with --score.")
    return str(scores[0])


def write_choice(out: Path, place: Place, searches: list[Search], score: str, count: int) -> None:
    facts = searches[0].facts
    notes = [
        f"{facts['dataset']}, targets {', '.join(place.ranks)}: trial {place.trial.number} of {count}, mean rank "
        f"{place.mean_rank:.2f}, mean OSCR ({score}) {place.mean_oscr:.4f}.",
        budget(searches, count),
        *(part + "." for part in NOTE.rstrip(".").split(". ")),
    ]
    make_folder(out.parent)
    write_config(out, place.trial.config(facts["method"], facts["fixed"]), notes)


def budget(searches: list[Search], count: int) -> str:
    """What was spent on the choice, in words."""
    facts = searches[0].facts
    folds, iterations = sum(len(search.facts["folds"]) for search in searches), facts["defaults"][ITERATIONS]
    trained = len({training_of(trial.values) for trial in searches[0].trials[:count]})
    how = "each trained for" if trained == count else f"on {counted(trained, 'training')} of"
    return (
        f"Budget: {counted(count, 'trial')} for each target, {how} {iterations} iterations{at_pace(facts['pace'])} in "
        f"every fold; folds of all targets: {folds}."
    )
