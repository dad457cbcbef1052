"""Records: the evaluations that runs leave behind, read back and put in order."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from opendg.bench.shape import fault
from opendg.errors import OpenDGError
from opendg.runs.names import check_weights, evaluated

# Parts of the recipe that records lack, and what those runs did: newer parts, and `average`, the decay that older runs
# had for their averaged weights. It warmed up, d = min(average, (1 + t) / (10 + t)): the last tenth of a run counted.
LATER = {"average": 0.0, "average_over": 0.0, "average_start": 0.0}
SEARCH = "tune.json"  # in the folder of a search for settings: what lies there are trials, and no results


class Tested(NamedTuple):
    """What a run is tested on."""

    dataset: str
    protocol: str
    target: str
    known: int
    unknown: tuple[str, ...]

    @property
    def division(self) -> str:
        """The unknown classes, which name a division of a dataset."""
        return "+".join(self.unknown)

    @property
    def ratio(self) -> str:
        """known:unknown classes."""
        return f"{self.known}:{len(self.unknown)}"


@dataclass(frozen=True)
class Result:
    """A record and where it was read: in a run directory the predictions lie beside it."""

    record: dict[str, Any]
    path: Path

    @property
    def target(self) -> str:
        return str(self.record["target"])

    @property
    def seed(self) -> int:
        return int(self.record["seed"])

    @property
    def tested(self) -> Tested:
        record = self.record
        return Tested(
            record["dataset"], record["protocol"], self.target, len(record["known"]), tuple(record["unknown"])
        )

    @property
    def run(self) -> tuple[str, ...]:
        """What the same training has in common, whichever of its weights were evaluated."""
        return (*self.row[:-1], self.record["protocol"], self.target, str(self.seed))

    @property
    def row(self) -> tuple[str, ...]:
        """What the records of one row of a table share; the weights that were evaluated come last."""
        record = self.record
        said = [json.dumps(record[name], sort_keys=True) for name in ("settings", "recipe")]
        return (record["method"], *said, record["backbone"], self.start, record["weights"])

    @property
    def start(self) -> str:
        """The weights that the backbone started from, by the hash of their numbers; older records do not say."""
        said = self.record.get("starting_weights")
        return "from scratch" if said == "none" else f"from weights {said or 'not recorded'}"

    @property
    def notes(self) -> list[str]:
        """What a config said of the settings, a line each; older records do not say."""
        return [" ".join(str(note).split()) for note in self.record.get("notes") or ()]

    @property
    def architecture(self) -> str:
        return str(self.record["backbone"]).split(".")[0]

    def metric(self, score: str, metric: str) -> float | None:
        """A metric in percent; None where the run has no such score or the data no such metric."""
        if metric == "acc":
            return 100 * float(self.record["acc"])
        found = self.record["scores"].get(score, {}).get(metric)
        if isinstance(found, dict):
            found = found["h"]
        return None if found is None else 100 * float(found)


def load_records(folder: Path) -> list[Result]:
    """All records under a folder, by path. Those of a search are left out, unless it is the search that is given."""
    if not folder.is_dir():
        raise OpenDGError(
            f"There is no folder of records {str(folder)!r}: give one that holds evaluation-*.json files."
        )
    found = [result for path in sorted(json_files(folder)) if (result := _read(path)) is not None]
    if not found:
        raise OpenDGError(
            f"{str(folder)!r} holds no records: files that `opendg evaluate` writes were expected. The trials of a "
            "search (`opendg tune`) are no results: give the folder of one to see them."
        )
    return found


def json_files(folder: Path) -> Iterator[Path]:
    """JSON files below a folder. A search that lies there gives its facts alone: its trials are no results."""
    for place, folders, files in os.walk(folder):
        if SEARCH in files and Path(place) != folder:
            folders[:], files[:] = [], [SEARCH]
        folders[:] = sorted(name for name in folders if name != "checkpoints" and not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".json"))


def read_records(paths: Iterable[Path]) -> list[Result]:
    """The records in these files."""
    return [result for path in paths if (result := _read(path)) is not None]


def _read(path: Path) -> Result | None:
    """A record, or None when the JSON is of something else."""
    if path.name in ("run.json", "manifest.json"):
        return None
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise OpenDGError(f"{str(path)!r} cannot be read as JSON ({error}): remove it, or evaluate the run.") from error
    if evaluated(path) is None and not (isinstance(said, dict) and "scores" in said):
        return None
    if wrong := fault(said if isinstance(said, dict) else {}):
        raise OpenDGError(f"{str(path)!r} is no whole record ({wrong} is wrong): remove it, or evaluate the run again.")
    recipe = LATER | said["recipe"]
    if "bias-corrected" in said["selection"]:  # for a few commits the decay did not warm up, as it no longer does
        recipe |= {"average": 0.0, "average_over": 1 / ((1 - recipe["average"]) * recipe["iterations"])}
    return Result(said | {"recipe": recipe}, path)


def take_weights(results: Sequence[Result], which: str | None = None) -> list[Result]:
    """One record a run: of the averaged weights where it has them, else of the selected ones, unless one is asked for.

    A run that lies in two places counts once.
    """
    check_weights(which)
    kept: dict[tuple[str, ...], Result] = {}
    for result in results:
        if which in (None, result.record["weights"]):
            before = kept.get(result.run)
            if before is None or result.record["weights"] == "averaged":
                kept[result.run] = result
    if not kept:
        raise OpenDGError(f"No run has {which} weights: leave --take out, or train with --average-over 0.5.")
    return list(kept.values())


def one_protocol(results: Sequence[Result]) -> str:
    """The protocol that all share. Numbers of two protocols never stand in one table."""
    ids = sorted({result.record["protocol"] for result in results})
    if len(ids) > 1:
        raise OpenDGError(
            f"These records are of {len(ids)} protocols ({', '.join(ids[:3])}{' ...' * (len(ids) > 3)}) and cannot "
            "stand in one table: give a folder with the records of one."
        )
    return str(ids[0])
