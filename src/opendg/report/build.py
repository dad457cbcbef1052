"""Runs -> the page: read, count, shrink, write."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opendg.errors import OpenDGError
from opendg.evaluation.thresholds import RULES
from opendg.report.images import Images, read_images
from opendg.report.ladder import make_ladder, places, ranked_thresholds
from opendg.report.page import assemble
from opendg.report.records import Entry, Found, find_records, name_variants
from opendg.report.thumbnails import NONE, Thumbnails
from opendg.runs.files import disk_error, write_atomic
from opendg.scores.base import Floats
from opendg.scores.registry import SCORES, make_score

Watch = Callable[[int, int, dict[str, float]], None]


def write_report(
    runs: Sequence[str | Path], out: Path, *, root: Path | None = None, title: str = "OpenDG report",
    points: int = 500, mistakes: int = 12, watch: Watch | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write one HTML page of evaluated runs, and say what went into it.

    `runs` are run directories, folders of them, or folders of records (a table then, without what needs images). `root`
    is where the datasets lie now, `points` how many images of a run t-SNE places in the plane, `mistakes` how many of
    each kind the gallery shows; 0 leaves them out.
    """
    if points < 0 or mistakes < 0:
        raise OpenDGError(f"--points {points} and --mistakes {mistakes} must both be 0 or more.")
    if out.is_dir():
        raise OpenDGError(f"--out {str(out)!r} is a folder: name a file, such as {str(out / 'report.html')!r}.")
    found, left_out = find_records(runs)
    entries = [each.entry for each in found]
    name_variants(entries)
    images = _read_all(found, points, watch)
    ladders = _climb(entries, images)
    thumbnails = Thumbnails(root)
    for each, own in zip(found, images, strict=True):
        if own is not None:
            each.entry["images"] = _show(each, own, ladders, mistakes, thumbnails)
    data = _whole(title, entries, ladders, left_out) | {"thumbnails": thumbnails.images}
    page = assemble(title, data).encode()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, out) from error
    write_atomic(out, page)
    protocols = sorted({entry["protocol"] for entry in entries})
    live = sum(own is not None for own in images)
    return {
        "page": str(out), "bytes": len(page), "runs": len(entries), "with_predictions": live, "protocols": protocols,
        "thumbnails": len(thumbnails.images), "notes": left_out + _notes(entries),
    }  # fmt: skip


def _notes(entries: list[Entry]) -> list[str]:
    """What runs lack: each sentence once, with the runs it is said of."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        for note in entry["notes"]:
            said.setdefault(note, []).append(entry["name"])
    more = {note: f" and {len(names) - 3} more" if names[3:] else "" for note, names in said.items()}
    return [f"{', '.join(names[:3])}{more[note]}: {note}" for note, names in said.items()]


def _read_all(found: list[Found], points: int, watch: Watch | None) -> list[Images | None]:
    """The images of each run that has them; each entry gets `notes` that say what it lacks."""
    read: list[Images | None] = []
    for number, each in enumerate(found, 1):
        each.entry["notes"] = []
        read.append(None)
        try:
            if each.predictions is None:
                raise OpenDGError("A record without predictions beside it: no slider, curves or images.")
            read[-1] = read_images(each.predictions, each.entry, points)
        except OpenDGError as error:
            each.entry["notes"].append(str(error))
        if watch is not None:
            watch(number, len(found), {})
    return read


def _climb(entries: list[Entry], images: list[Images | None]) -> dict[str, Floats]:
    """A ladder for each score; the rules in the entries get the `rung` of their threshold."""
    scores: dict[str, list[Floats]] = {}
    chosen: dict[str, list[tuple[dict[str, Any], float]]] = {}
    for entry, own in zip(entries, images, strict=True):
        for name, values in ({} if own is None else own.scores).items():
            rules = entry["scores"][name]["rules"]
            scores.setdefault(name, []).append(values)
            for key, threshold in ranked_thresholds(make_score(name), values, rules).items():
                chosen.setdefault(name, []).append((rules[key], threshold))
    ladders = {}
    for name, pooled in scores.items():
        pairs = chosen.get(name, [])
        ladders[name] = make_ladder(pooled, [threshold for _, threshold in pairs])
        for rule, threshold in pairs:
            rule["rung"] = int(np.searchsorted(ladders[name], threshold))
    return ladders


def _show(
    each: Found, images: Images, ladders: dict[str, Floats], mistakes: int, thumbnails: Thumbnails
) -> dict[str, Any]:
    """What the page holds of a run's images: all of them as places on the ladders, some of them in full."""
    known = each.entry["known"]
    lists = {name: images.mistakes(name, mistakes) for name in images.scores}
    plane = images.plane[0] if images.plane else np.empty(0, np.int64)
    rows = np.unique(np.concatenate([plane, *(part for both in lists.values() for part in (both.unknown, both.known))]))
    keys = images.keys[rows].tolist()
    kind = np.where(images.known, 1 + (images.predicted == images.label), 0)
    return {
        "kind": base64_of(kind, "u1"),  # 0: unknown, 1: known, taken for another class, 2: known and right
        "places": {name: base64_of(places(ladders[name], values), "<u2") for name, values in images.scores.items()},
        "rows": rows.tolist(),
        "keys": keys,
        "classes": [_true_class(each.entry, int(images.label[row]), key) for row, key in zip(rows, keys, strict=True)],
        "predicted": [known[number] for number in images.predicted[rows]],
        "values": {name: base64_of(make_score(name).value(v[rows]), "<f4") for name, v in images.scores.items()},
        "thumbnails": _thumbnails(each, keys, thumbnails),
        "plane": None if images.plane is None else {
            "at": np.searchsorted(rows, plane).tolist(), "xy": base64_of(images.plane[1] * 65535, "<u2"),
        },
        "mistakes": {
            name: {part: np.searchsorted(rows, getattr(both, part)).tolist() for part in ("unknown", "known")}
            for name, both in lists.items()
        },
    }  # fmt: skip


def _thumbnails(each: Found, keys: list[str], thumbnails: Thumbnails) -> list[int]:
    try:
        return thumbnails.of(each.file.parent, keys) if keys else []
    except OpenDGError as error:
        each.entry["notes"].append(f"No thumbnails: {error}")
        return [NONE] * len(keys)


def _true_class(entry: Entry, label: int, key: str) -> str:
    """A class's name; that of an unknown image is the folder it lies in, by its key."""
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return entry["known"][label] if label >= 0 else folder if folder in entry["unknown"] else "unknown"


def _whole(title: str, entries: list[Entry], ladders: dict[str, Floats], left_out: list[str]) -> dict[str, Any]:
    names = [name for name in SCORES if any(name in entry["scores"] for entry in entries)]
    names += sorted({name for entry in entries for name in entry["scores"]} - set(names))
    scores = {
        name: {
            "title": SCORES[name].title if name in SCORES else name,
            "values": base64_of(make_score(name).value(ladders[name]), "<f8") if name in ladders else None,
        }
        for name in names
    }
    return {
        "title": title, "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "opendg": import_module("opendg").__version__,
        "rules": [{"key": rule.key, "name": rule.name, "idea": rule.idea, "saw": rule.saw} for rule in RULES],
        "scores": scores, "runs": entries, "left_out": left_out,
    }  # fmt: skip


def base64_of(values: NDArray[Any], kind: str) -> str:
    """An array as base64, little-endian."""
    return base64.b64encode(np.ascontiguousarray(values.astype(kind)).tobytes()).decode()
