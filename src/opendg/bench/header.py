"""What stands above every table: what its numbers have seen."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from opendg.bench.records import Result
from opendg.evaluation.thresholds import RULES
from opendg.methods.registry import METHODS, make_method, settings

NAMES = {"acc": "Acc", "oscr": "OSCR", "auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95", "h@oracle10": "H-score"}
NAMES |= {rule.key: rule.name for rule in RULES if rule.key not in NAMES}


def header_of(
    results: Sequence[Result],
    metrics: Sequence[str],
    rows: Mapping[str, Sequence[Result]],
    spread: str = "",
    said: Sequence[str] = (),
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The header as sentences, and as facts by name for machines. `spread` says what numbers the spread is over.

    A figure has none, and names the rules that it takes thresholds from alone. What `said` has, which the caller adds,
    is not noted again.
    """
    rules = [rule for rule in RULES if rule.key in metrics]
    names = {
        rule.key: rule.name if NAMES[rule.key] == rule.name else f"{NAMES[rule.key]} is {rule.name}" for rule in rules
    }
    threshold = "; ".join(f"{names[rule.key]}, {rule.idea}; it saw {rule.saw}" for rule in rules)
    selections = _by_row({label: _selection(found[0]) for label, found in rows.items()})
    facts = {
        "protocol": " ".join(_each(results, "protocol")),
        "selection": "; ".join(sorted(set(map(_selection, results)))),
        "threshold": " ".join(f"{NAMES[rule.key]}={rule.name}" for rule in rules) or "none",
        "seeds": " ".join(map(str, sorted({result.seed for result in results}))),
        "commit": " ".join(_each(results, "commit")),
    }
    lines = [
        f"Protocol: {_protocols(results)}. Each target is tested on all of its images and never trained on.",
        f"Selection: {selections}.",
        f"Threshold: {threshold}." if rules else "Threshold: none is needed.",
        f"Percent; mean ± standard deviation over {spread}. " * bool(spread) + f"Seeds: {_seeds(rows)}.",
        f"Backbone: {_backbones(rows)}. {_recipes(rows)}",
        *_settings(rows),
        *_notes(rows, said),
        f"Code: opendg {_list(_each(results, 'opendg'))}, commit {_list(_each(results, 'commit'))}; "
        f"{_list(_each(results, 'machine'))}.",
    ]
    return tuple(lines), facts


def _protocols(results: Sequence[Result]) -> str:
    """Each id with its classes."""
    divisions = {result.record["protocol"]: result.record for result in results}
    said = []
    for name, record in sorted(divisions.items()):
        unknown = f"unknown: {_list(record['unknown'])}" if record["unknown"] else "none unknown"
        known = f"known: {_list(record['known'])}, " if len(divisions) == 1 else ""
        said.append(f"{name} ({known}{unknown})")
    return "; ".join(said)


def _seeds(rows: Mapping[str, Sequence[Result]]) -> str:
    """The seeds, and the rows that have others."""
    by_row = {label: sorted({result.seed for result in found}) for label, found in rows.items()}
    return _by_row({label: ", ".join(map(str, seeds)) for label, seeds in by_row.items()})


def _backbones(rows: Mapping[str, Sequence[Result]]) -> str:
    """The backbone and what it starts from, and the rows that have others."""
    firsts = {label: found[0] for label, found in rows.items()}
    return _by_row({label: f"{one.record['backbone']}, {one.start}" for label, one in firsts.items()})


def _recipes(rows: Mapping[str, Sequence[Result]]) -> str:
    """The recipe in words, and where rows differ from the most frequent one."""
    said = {label: recipe_words(found[0].record["recipe"]) for label, found in rows.items()}
    return f"Recipe: {_by_row(said)}."


def recipe_words(recipe: Mapping[str, Any]) -> str:
    words = f"{recipe['iterations']} iterations, B = {recipe['batch']}, {recipe['optimizer']}, lr {recipe['lr']:g}, "
    words += f"weight decay {recipe['weight_decay']:g}, {recipe['schedule']} schedule, augmentation {recipe['augment']}"
    if over := recipe.get("average_over"):
        words += f", averaged over {over:g} of it"
    if decay := recipe.get("average"):
        words += f", averaged over the last tenth of it (a decay that warms up to {decay:g})"
    return words + (f", {share:g} of the start" if (share := recipe.get("average_start")) else "")


def _settings(rows: Mapping[str, Sequence[Result]]) -> list[str]:
    """Settings that are not the method's defaults, by row."""
    said = {label: own for label, found in rows.items() if (own := unusual(found[0].record))}
    words = "; ".join(f"{label}: {own}" for label, own in said.items())
    return [f"Settings: {words}. Others are the defaults."] if said else []


def _notes(rows: Mapping[str, Sequence[Result]], said: Sequence[str]) -> list[str]:
    """What configs say of their settings: each sentence once, with the rows that it is of."""
    owners: dict[str, list[str]] = {}
    for label, found in rows.items():
        for note in dict.fromkeys(note for result in found for note in result.notes):
            owners.setdefault(note, []).append(label)
    texts: dict[str, list[str]] = {}
    for note, labels in owners.items():
        if not any(note in text for text in said):
            whose = "all rows" if len(labels) == len(rows) else ", ".join(labels)
            texts.setdefault(whose, []).append(note)
    return [f"Settings of {whose}: {' '.join(notes)}" for whose, notes in texts.items()]


def unusual(record: Mapping[str, Any]) -> str:
    """The settings in which a record differs from its method's defaults."""
    usual = settings(make_method(record["method"])) if record["method"] in METHODS else {}
    usual = json.loads(json.dumps(usual))  # as a record has them: lists for tuples
    return ", ".join(f"{key}={short(value)}" for key, value in record["settings"].items() if usual.get(key) != value)


def adds_head(method: str, ova: object) -> bool:
    """Whether a run has a one-vs-all head that its method is without by default: no mere value of a setting."""
    return ova is True and method in METHODS and settings(make_method(method)).get("ova") is False


def differing(result: Result, others: Sequence[Result]) -> str:
    """What tells a result from others of its name: settings, recipe, backbone, what it started from, weights."""
    found = []
    for name in ("settings", "recipe"):
        mine = result.record[name]
        for key, value in mine.items():
            theirs = [other.record[name].get(key) for other in others]
            unlike = [short(one) for one in theirs if one != value]
            if unlike:
                found.append(f"{key}={value if short(value) in unlike else short(value)}")
    if any(other.record["backbone"] != result.record["backbone"] for other in others):
        found.append(str(result.record["backbone"]))
    if any(other.start != result.start for other in others):
        found.append(result.start)
    if any(other.record["weights"] != result.record["weights"] for other in others):
        found.append(str(result.record["weights"]))
    return ", ".join(found)


def short(value: Any) -> str:
    """A number with six digits at most; all else as it is."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _selection(result: Result) -> str:
    """The selection rule, the numbers in it made short."""
    return re.sub(r"\d+\.\d+", lambda number: short(float(number[0])), str(result.record["selection"]))


def _by_row(said: Mapping[str, str]) -> str:
    """One text for all rows, or the texts with their rows; the most frequent one comes last, for all others."""
    rows: dict[str, list[str]] = {}
    for label, text in said.items():
        rows.setdefault(text, []).append(label)
    if len(rows) < 2:
        return "".join(rows) or "none"
    usual = max(rows, key=lambda text: len(rows[text]))
    if len(rows[usual]) > 1:
        del rows[usual]
        rows[usual] = ["all others"]
    return "; ".join(f"{', '.join(labels)}: {text}" for text, labels in rows.items())


def _each(results: Sequence[Result], name: str) -> list[str]:
    return sorted({str(result.record.get(name) or "unknown") for result in results})


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:11])} ... {names[-1]}"
