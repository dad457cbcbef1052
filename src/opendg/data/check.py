"""Is this tree what it should be? Counts against the catalogue, unreadable images, exact duplicates."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unicodedata import normalize

from opendg.data.decode import BrokenImage, decode
from opendg.data.entries import DATASETS, Dataset, get, plain
from opendg.data.index import TRAIN, VAL, Index, Place
from opendg.data.progress import bar
from opendg.data.splits import with_lists
from opendg.data.tree import SUFFIXES, is_image, scan, walk
from opendg.data.workers import Workers
from opendg.errors import OpenDGError

JOB = 64  # images a worker is given at a time
SHOWN = 10  # pictures that lie in several places, told one by one
UNREAD = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".raw", ".dng", ".cr2", ".cr3", ".nef", ".arw")
ARCHIVES = (".tar", ".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".rar", ".7z")


@dataclass(frozen=True)
class Report:
    """What was found. `counts[domain][class]` are the images there; a domain's row has every class."""

    root: str
    dataset: str  # as recognised, or the folder's name
    compared_with: str | None  # the catalogue entry
    counts: dict[str, dict[str, int]]
    expected: dict[str, int]  # images per domain by the catalogue, in the edition that fits best; empty without one
    expected_cells: dict[str, dict[str, int]]  # the same per domain and class, where the catalogue has it
    train: dict[str, int]  # images per domain that the layout or the official lists give to training ...
    val: dict[str, int]  # ... and to validation
    unreadable: dict[str, str]  # key -> why
    duplicates: list[list[str]]  # keys with the same bytes, in more than one domain or class
    repeats: list[list[str]]  # the same within one domain and class
    problems: list[str] = field(default_factory=list)  # a sentence each

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"ok": self.ok}


def check(root: Path, expected: str | None = None, progress: bool = True) -> Report:
    """Look at every image under `root`; compare with the catalogue entry `expected`, or with the one recognised."""
    entry = get(expected) if expected else None
    index = scan(Path(root))
    entry = entry or DATASETS.get(index.dataset)
    problems: list[str] = []
    if entry is not None:
        try:
            index = with_lists(index, entry, Path(root))
        except OpenDGError as error:
            problems.append(str(error))
    unreadable, groups = _contents(index, progress)
    duplicates = [group for group in groups if _spans_cells(group)]
    repeats = [group for group in groups if not _spans_cells(group)]
    counts = {
        domain: dict(zip(index.classes, map(int, row), strict=True))
        for domain, row in zip(index.domains, index.counts, strict=True)
    }
    totals, cells = _expectation(entry, counts) if entry else ({}, {})
    if entry:
        problems += _count_problems(entry, counts, totals, cells)
    else:
        problems += _too_few("domain", index.domains, "one is held out as the target")
        problems += _too_few("class", index.classes, "they are told apart")
    problems += _alike("domains", index.domains) + _alike("classes", index.classes)
    problems += _unsayable("domain", index.domains) + _unsayable("class", index.classes)
    problems += _passed_over(Path(root), index)
    problems += [f"{key} is unreadable: {why}." for key, why in unreadable.items()]
    problems += [f"The same image {len(group)} times: {', '.join(group)}." for group in duplicates[:SHOWN]]
    if len(duplicates) > SHOWN:
        problems.append(f"Images in several places beside these {SHOWN}: {len(duplicates) - SHOWN} more.")
    problems += _leaks(index, repeats)
    return Report(
        root=str(root),
        dataset=index.dataset,
        compared_with=entry.name if entry else None,
        counts=counts,
        expected=totals,
        expected_cells=cells,
        train=_part(index, TRAIN),
        val=_part(index, VAL),
        unreadable=unreadable,
        duplicates=duplicates,
        repeats=repeats,
        problems=problems,
    )


def _too_few(what: str, names: Sequence[str], why: str) -> list[str]:
    """One domain cannot be held out, and one class cannot be told from another."""
    return [f"There is only one {what}, {names[0]}: {why}, so two or more are needed."] if len(names) == 1 else []


def _alike(what: str, names: Sequence[str]) -> list[str]:
    """Names that differ in case, blanks, - and _ only, or in how an accent is written: two people made the folders."""
    groups = defaultdict[str, list[str]](list)
    for name in names:
        groups[plain(name)].append(name)
    return [
        f"The {what} {' and '.join(map(told, group))} look like one: give their folders the same name, if they are."
        for group in groups.values()
        if len(group) > 1
        for told in [ascii if len({normalize("NFC", name) for name in group}) == 1 else repr]
    ]


def _unsayable(what: str, names: Sequence[str]) -> list[str]:
    """Names that --target, --known and the like would take for two."""
    return [
        f"The {what} {name!r} has a comma, which parts names in commands: rename its folder."
        for name in names
        if "," in name
    ]


def _passed_over(root: Path, index: Index) -> list[str]:
    """What lies there and is not read, though somebody may think that it is: other kinds, other places, archives."""
    found = [key.removeprefix("/") for key, _ in walk(root, "")]
    loose = [key for key in found if is_image(key.rpartition("/")[2]) and key not in index.row_of]
    others = [key for key in found if key.lower().endswith(UNREAD)]
    packed = [key for key in found if "/" not in key and key.lower().endswith(ARCHIVES) and not key.endswith(".tar")]
    told = {
        "they lie beside the class folders": loose,
        f"only {', '.join(SUFFIXES)} are read": others,
        "a domain is a folder or an uncompressed .tar": packed,
    }
    return [f"Left out, for {why}: {_some(keys)}." for why, keys in told.items() if keys]


def _leaks(index: Index, repeats: list[list[str]]) -> list[str]:
    """Copies of an image that may be trained on and validated with."""
    parts = [{int(index.part[index.row_of[key]]) for key in group} for group in repeats]
    leaking = [group for group, of in zip(repeats, parts, strict=True) if of not in ({TRAIN}, {VAL})]
    if not leaking:
        return []
    return [
        "The same image more than once in a class, so that copies may be trained on and validated with: "
        f"{', '.join(leaking[0])}{f' ... ({len(leaking)} such images)' if len(leaking) > 1 else ''}."
    ]


def _some(keys: list[str]) -> str:
    """A few of them, and how many there are."""
    return ", ".join(sorted(keys)[:3]) + (f" ... ({len(keys)} in all)" if len(keys) > 3 else "")


def _contents(index: Index, progress: bool) -> tuple[dict[str, str], list[list[str]]]:
    """(unreadable images and why, groups of images with the same bytes), by opening every one."""
    places = [index.place(row) for row in range(len(index))]
    jobs = [places[start : start + JOB] for start in range(0, len(places), JOB)]
    unreadable, same = dict[str, str](), defaultdict[str, list[str]](list)
    with Workers() as workers, bar("Checking images", len(places), progress) as shown:
        for number, found in workers.spread(_look, jobs):
            for place, (digest, why) in zip(jobs[number], found, strict=True):
                same[digest].append(place.key)
                if why:
                    unreadable[place.key] = why
            shown.advance(len(found))
    groups = [sorted(keys) for keys in same.values() if len(keys) > 1 and keys[0] not in unreadable]
    return dict(sorted(unreadable.items())), sorted(groups)


def _spans_cells(keys: list[str]) -> bool:
    """Whether the images are of more than one domain or class."""
    return len({(key.split("/")[0], key.split("/")[-2]) for key in keys}) > 1


def _look(places: list[Place]) -> list[tuple[str, str]]:
    """(digest of the bytes, what is wrong with them) of each image."""
    found = []
    for place in places:
        data, why = b"", ""
        try:
            data = place.read()
            decode(data, None, place.key)
        except BrokenImage as error:
            why = error.reason
        except OpenDGError as error:
            why = str(error).removesuffix(".")
        found.append((hashlib.sha256(data).hexdigest(), why))
    return found


def _expectation(entry: Dataset, counts: dict[str, dict[str, int]]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Expected images per domain and per cell. Of several editions in use, the one most domains agree with."""
    found = {plain(domain): sum(row.values()) for domain, row in counts.items()}

    def agreeing(edition: Any) -> int:
        return sum(found.get(plain(domain)) == number for domain, number in edition.items())

    best = max((entry.counts, *entry.editions), key=agreeing)
    cells = {domain: dict(zip(entry.classes, row, strict=True)) for domain, row in entry.cells.items()}
    return dict(best), cells


def _count_problems(
    entry: Dataset, counts: dict[str, dict[str, int]], totals: dict[str, int], cells: dict[str, dict[str, int]]
) -> list[str]:
    problems = _names_amiss("domain", entry.title, entry.domains, list(counts))
    problems += _names_amiss("class", entry.title, entry.classes, list(next(iter(counts.values()))))
    spelled = {plain(domain): domain for domain in counts}
    for domain, total in totals.items():
        row = counts.get(spelled.get(plain(domain), ""))
        if row is None:
            continue  # said already
        by_class = {plain(name): number for name, number in row.items()}
        off = [
            f"{name} {by_class.get(plain(name), 0)} instead of {number}"
            for name, number in cells.get(domain, {}).items()
            if by_class.get(plain(name), 0) != number
        ]
        if off or sum(row.values()) != total:
            detail = f": {', '.join(off)}" if off else ""
            problems.append(f"The domain {domain} has {sum(row.values())} images, expected {total}{detail}.")
    return problems


def _names_amiss(what: str, title: str, expected: tuple[str, ...], found: list[str]) -> list[str]:
    theirs, here = {plain(name): name for name in expected}, {plain(name): name for name in found}
    missing = [f"The {what} {name} of {title} is missing." for key, name in theirs.items() if key not in here]
    return missing + [f"The {what} {name} is none of {title}." for key, name in here.items() if key not in theirs]


def _part(index: Index, part: int) -> dict[str, int]:
    return {
        domain: int((index.part[index.domain == number] == part).sum()) for number, domain in enumerate(index.domains)
    }
