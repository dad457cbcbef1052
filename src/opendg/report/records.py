"""Records on disk -> entries of the page. What a stranger's file holds is checked here, and nowhere trusted after."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opendg.bench.records import LATER, SEARCH, json_files
from opendg.bench.shape import METRICS, is_number
from opendg.errors import OpenDGError, counted, typed
from opendg.evaluation.thresholds import RULES
from opendg.runs.names import EVALUATIONS, WEIGHTS, evaluated, predictions_file

TEXTS = ("dataset", "protocol", "target", "method", "backbone", "weights", "selection")
ORIGIN = ("command", "commit", "created", "machine", "opendg", "versions", "starting_weights", "settings", "recipe")
MOST_BYTES = 4_000_000  # a record has a few thousand; other JSON files may lie beside it

Entry = dict[str, Any]  # one row of results, ready for JSON


@dataclass(frozen=True)
class Found:
    """A record: where it lies, what it holds as one text, and its entry of the page."""

    file: Path
    content: str
    entry: Entry

    @property
    def predictions(self) -> Path | None:
        """The per-image predictions that `opendg evaluate` writes beside a record."""
        weights = evaluated(self.file)
        beside = self.file.with_name(predictions_file("target", str(weights)))
        return beside if weights and beside.is_file() else None


def find_records(paths: Sequence[str | Path]) -> tuple[list[Found], list[str]]:
    """All records in runs, folders of runs and folders of records, and a sentence for each thing left out.

    A record that lies in two places is taken once, from the place with predictions where there is one.
    """
    found: list[Found] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise OpenDGError(f"There is no {str(path)!r}: give run directories, or folders that hold runs or records.")
        files = [path] if path.is_file() else list(json_files(path))
        for file in files:
            try:
                found += _read(file, _name(file, path))
            except OpenDGError as error:
                left_out.append(str(error))
        left_out += _not_evaluated(files) + _searches(files, path)
    found.sort(key=lambda each: each.predictions is None)
    once = {each.content: each for each in reversed(found)}
    if not once:
        why = f", as {left_out[0]}" if left_out else ": evaluate the runs first, with `opendg evaluate RUN`."
        raise OpenDGError(f"No record was found{why}")
    return sorted(once.values(), key=_order), left_out


def _order(found: Found) -> tuple[Any, ...]:
    names = ("dataset", "protocol", "method", "target", "backbone", "selection")
    return (*(found.entry[name] for name in names), found.entry["seed"] or 0, str(found.file))


def _not_evaluated(files: Sequence[Path]) -> list[str]:
    runs = [file.parent for file in files if file.name == "run.json"]
    return [
        f"{run.name} is not evaluated yet: try `opendg evaluate {typed(run)}`."
        if (run / WEIGHTS["selected"]).exists()
        else f"{run.name} is not finished: go on with `opendg train --resume {typed(run)}`."
        for run in runs
        if not any(run.glob(EVALUATIONS))
    ]


def _searches(files: Sequence[Path], path: Path) -> list[str]:
    found = [file for file in files if file.name == SEARCH and file.parent != path]
    some = counted(len(found), "search for settings is", "searches for settings are")
    return [f"{some} left out: give the folder of one to see its trials."] * bool(found)


def _read(file: Path, name: str) -> list[Found]:
    """The record of a JSON file; none where the file is another thing and does not claim to be one."""
    claims = evaluated(file) is not None
    record: Any = None
    try:
        if file.stat().st_size <= MOST_BYTES:
            record = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(record, dict) and isinstance(record.get("scores"), dict):
            return [Found(file, json.dumps(record, sort_keys=True), _entry(record, name))]
    except (OSError, ValueError, RecursionError) as error:
        if claims:
            raise OpenDGError(f"{name}: {file.name} cannot be read ({error}): evaluate it again.") from error
    if claims:
        raise OpenDGError(f"{name}: {file.name} is not a record: evaluate it again.")
    return []


def _name(file: Path, path: Path) -> str:
    """What to call it: the run's folder, or the file where records lie side by side, as seen from the given path."""
    place = file.parent if evaluated(file) else file.with_suffix("")
    return place.resolve().name if place == path or file == path else place.relative_to(path).as_posix()


def _entry(record: dict[str, Any], name: str) -> Entry:
    for key in TEXTS:
        if not isinstance(record.get(key), str):
            raise OpenDGError(f"{name}: the record has no text under {key!r}: evaluate it again.")
    scores = {key: _metrics(values) for key, values in record["scores"].items() if isinstance(values, dict)}
    return {
        "name": name, **{key: record[key] for key in TEXTS}, "seed": _number(record.get("seed")),
        **{key: _texts(record.get(key)) for key in ("sources", "known", "unknown")},
        **{key: _number(record.get(key)) for key in ("n_known", "n_unknown", "acc")},
        "scores": scores, "origin": {key: _plain(record.get(key)) for key in ORIGIN},
        "chosen": " ".join(_texts(record.get("notes"))),
    }  # fmt: skip


def _metrics(values: dict[str, Any]) -> dict[str, Any]:
    rules = {}
    for rule in RULES:
        said = values.get(rule.key)
        if isinstance(said, dict):
            names = ("threshold", "ranked_threshold", "acc_k", "acc_u", "h")
            rules[rule.key] = {key: _number(said.get(key)) for key in names}
    return {key: _number(values.get(key)) for key in METRICS} | {"rules": rules}


def _number(value: Any) -> float | None:
    """A finite number, or none."""
    return value if is_number(value) else None


def _texts(values: Any) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def _plain(value: Any) -> Any:
    """Text, or names with texts: whatever it was, the page shows it as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) if isinstance(item, dict) else _said(item) for key, item in value.items()}
    return None if value is None else _said(value)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def name_variants(entries: Iterable[Entry]) -> None:
    """Give each entry its `variant` and its `group`.

    The variant is what sets it apart from the other entries of its method under its protocol, and a one-vs-all head
    that the method is without by default; the backbone is part of it where the protocol has several. A group is what a
    mean over targets and seeds may be taken of.
    """
    from opendg.bench.header import adds_head  # it knows the methods, and with them torch

    groups: dict[str, int] = {}
    protocols: dict[str, list[tuple[Entry, dict[str, str]]]] = {}
    for entry in entries:
        protocols.setdefault(entry["protocol"], []).append((entry, _facts(entry)))
    for own in protocols.values():
        several = len({entry["backbone"] for entry, _ in own}) > 1
        of_method = Counter(entry["method"] for entry, _ in own)
        having = Counter((entry["method"], fact) for entry, facts in own for fact in facts.items())
        for entry, facts in own:
            method = entry["method"]
            head = {"ova"} if adds_head(method, facts.get("ova") == "true") else set()
            differ = [fact for fact in facts.items() if fact[0] in head or having[method, fact] < of_method[method]]
            words = [value if key == "selection" else f"{key}={value}" for key, value in differ]
            entry["variant"] = ", ".join(words + ([entry["backbone"]] if several else []))
            whole = json.dumps([entry[key] for key in ("protocol", "method", "backbone")] + sorted(facts.items()))
            entry["group"] = groups.setdefault(whole, len(groups))


def _facts(entry: Entry) -> dict[str, str]:
    origin = entry["origin"]
    found = {"selection": entry["selection"], "from": str(origin["starting_weights"] or "not recorded")}
    for part, lacking in (("settings", {}), ("recipe", LATER)):
        if isinstance(origin[part], dict):
            found |= {key: str(value) for key, value in (lacking | origin[part]).items()}
    return found
