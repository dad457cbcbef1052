"""What stands above every table: what its numbers have seen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from opendg.bench.records import Result
from opendg.evaluation.thresholds import RULES
from opendg.methods.registry import METHODS, make_method, settings

NAMES = {"acc": "Acc", "oscr": "OSCR", "auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95", "h@oracle10": "H-score"}
NAMES |= {rule.key: rule.name for rule in RULES if rule.key not in NAMES}


def describe(
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
    threshold = "; ".join(f"{NAMES[rule.key]} is {rule.name}, {rule.idea}; it saw {rule.saw}" for rule in rules)
    selections = _by_row({label: found[0].record["selection"] for label, found in rows.items()})
    facts = {
        "protocol": " ".join(_each(results, "protocol")),
        "selection": "; ".join(sorted({str(result.record["selection"]) for result in results})),
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
    return words + (f", averaged with decay {recipe['average']:g}" if recipe["average"] else "")


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
    return ", ".join(f"{key}={value}" for key, value in record["settings"].items() if usual.get(key) != value)


def differing(result: Result, others: Sequence[Result]) -> str:
    """What tells a result from others of its name: settings, recipe, backbone, what it started from, weights."""
    found = []
    for name in ("settings", "recipe"):
        mine = result.record[name]
        keys = [key for key in mine if any(other.record[name].get(key) != mine[key] for other in others)]
        found += [f"{key}={mine[key]}" for key in keys]
    if any(other.record["backbone"] != result.record["backbone"] for other in others):
        found.append(str(result.record["backbone"]))
    if any(other.start != result.start for other in others):
        found.append(result.start)
    if any(other.record["weights"] != result.record["weights"] for other in others):
        found.append(str(result.record["weights"]))
    return ", ".join(found)


def _by_row(said: Mapping[str, str]) -> str:
    """One text for all rows, or the most frequent one and the rows that say otherwise."""
    texts = list(said.values())
    if not texts:
        return "none"
    usual = max(dict.fromkeys(texts), key=texts.count)
    others = [f"{label}: {text}" for label, text in said.items() if text != usual]
    return "; ".join([usual, *others])


def _each(results: Sequence[Result], name: str) -> list[str]:
    return sorted({str(result.record.get(name) or "unknown") for result in results})


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:11])} ... {names[-1]}"
