"""The Protocol: who is source and target, which classes are known, and the Split of an Index that follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any
from typing import Protocol as Shape

import numpy as np
from numpy.typing import NDArray

from opendg.data.index import NO_PART, TRAIN, VAL, Index, Rows
from opendg.errors import OpenDGError, refuse_doubles, typed, unknown_name

ANSWERS = ("unknown", "error")  # of `opendg predict`, beside the known classes
KINDS = {
    "shared": "every source domain holds all known classes (MEDIC)",
    "daml": "every source domain has its own set of known classes (DAML)",
}

# DAML's division, n1..n7: classes shared by all three sources, by each pair, own to each source; how many of each
# block the target keeps; classes that no source has.
DAML_BLOCKS = {"pacs": (0, 1, 1, 0, 1, 1, 1), "office-home": (3, 6, 11, 1, 2, 3, 11)}


@dataclass(frozen=True)
class Protocol:
    """What is trained on and what is tested. `known` gives the order of the classifier's outputs."""

    dataset: str
    kind: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    known: tuple[str, ...]
    unknown: tuple[str, ...]
    taught: tuple[tuple[str, ...], ...]  # the known classes that each source domain shows, in the order of `sources`
    tested: tuple[str, ...]  # the known classes that the target domains are tested on
    split_seed: int = 0
    left_out: tuple[str, ...] = ()  # domains that are neither source nor target

    @property
    def id(self) -> str:
        """The same for every target of one protocol: `pacs:shared:6+1:3f9a12`. Tables never mix two ids.

        Where not all other domains are sources it ends in those left out: `pacs:shared:6+1:3f9a12:without-photo`;
        where DAML's classes are dealt in another order than that of the names, in that order.
        """
        fixed = [self.dataset, self.kind, self.known, self.unknown, self.tested, self.split_seed]
        digest = hashlib.sha256(json.dumps(fixed).encode()).hexdigest()[:6]
        parts = [self.dataset, self.kind, f"{len(self.tested)}+{len(self.unknown)}", digest]
        if self.left_out:
            parts.append(f"without-{'+'.join(self.left_out)}")
        if self.kind == "daml" and list(self.sources) != sorted(self.sources):
            parts.append(f"dealt-{'+'.join(self.sources)}")
        return ":".join(parts)

    def to_json(self) -> dict[str, Any]:
        """`left_out` is said where there is some: what a run is named by stays the same for all others."""
        return {name: value for name, value in vars(self).items() if value or name != "left_out"}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Protocol:
        values = {"left_out": ()} | values
        lists = ("sources", "targets", "known", "unknown", "tested", "left_out")
        tuples: dict[str, Any] = {name: tuple(map(str, values[name])) for name in lists}
        return cls(**(values | tuples | {"taught": tuple(tuple(map(str, classes)) for classes in values["taught"])}))

    def apply(self, index: Index) -> Split:
        """The rows of the Index that train, validate and test."""
        split = _split(self, index)
        self.check(index, split)
        return split

    def check(self, index: Index, split: Split) -> None:
        """Refuse a split with a gap that nothing can be trained or tested on."""
        train = index.domain[split.train]
        for name in self.sources:
            if not np.any(train == index.domains.index(name)):
                raise OpenDGError(
                    f"Source domain {name!r} has no training image of a known class: leave it out of --sources."
                )
        shown = set(split.labels[split.train].tolist())
        if missing := [name for number, name in enumerate(self.known) if number not in shown]:
            raise OpenDGError(
                f"With target {', '.join(self.targets)} no source domain has a training image of the known class "
                f"{missing[0]!r}: make it unknown, with --unknown {typed(','.join([*self.unknown, *missing]))}."
            )
        if not len(split.val):
            raise OpenDGError("No source domain has a validation image: give a domain and class two images or more.")
        if not len(split.test_known):
            raise OpenDGError(f"Target {', '.join(self.targets)} has no image of a known class: choose other classes.")


@dataclass(frozen=True)
class Split:
    """Rows of an Index. `labels` gives for every row its number among the known classes, or -1."""

    train: Rows
    val: Rows  # source domains, known classes
    val_unknown: Rows  # unknown classes in the source domains: for the threshold figure alone
    test_known: Rows
    test_unknown: Rows
    labels: NDArray[np.int64]

    @property
    def test(self) -> Rows:
        return np.concatenate([self.test_known, self.test_unknown])

    def within(self, rows: Rows) -> Split:
        """The same, but training and validating on no other rows than these."""
        return replace(self, train=self.train[np.isin(self.train, rows)], val=self.val[np.isin(self.val, rows)])


class Names(Shape):
    """What a Protocol is made for: an Index, or the names alone where the images are not at hand."""

    @property
    def dataset(self) -> str: ...
    @property
    def domains(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


def make_protocol(
    index: Names,
    targets: Sequence[str],
    *,
    known: int | np.integer[Any] | Sequence[str] | None = None,
    unknown: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    kind: str = "shared",
    split_seed: int = 0,
) -> Protocol:
    """A Protocol for this Index, or an error that says what does not fit.

    `known` is a number (the first so many classes by name) or a list; `unknown` a list. With neither, all classes
    are known (a closed set). Sources default to all other domains.
    """
    if kind not in KINDS:
        raise unknown_name("protocol", kind, KINDS)
    if not targets:
        raise OpenDGError(f"No target domain was named: give one or more of {', '.join(index.domains)}.")
    for named in (targets, sources or ()):
        _check_names("domain", named, index.domains, index.dataset)
    chosen = tuple(sources) if sources else tuple(d for d in index.domains if d not in targets)
    if shared := set(chosen) & set(targets):
        raise OpenDGError(f"{sorted(shared)[0]!r} is both source and target: name it in one of the two only.")
    if not chosen:
        raise OpenDGError("Every domain is a target and none is left to train on: leave at least two as sources.")
    left_out = tuple(name for name in index.domains if name not in (*chosen, *targets))
    if kind == "daml":
        if known is not None or unknown is not None:
            raise OpenDGError("DAML's protocol chooses its classes itself: leave --known and --unknown out.")
        return _daml(index, chosen, tuple(targets), split_seed, left_out)
    known_classes, unknown_classes = _classes(index, known, unknown)
    return Protocol(
        index.dataset, kind, chosen, tuple(targets), known_classes, unknown_classes,
        taught=(known_classes,) * len(chosen), tested=known_classes, split_seed=split_seed, left_out=left_out,
    )  # fmt: skip


def _check_names(what: str, named: Sequence[str], there: Sequence[str], dataset: str) -> None:
    """Each of them is there, and named once."""
    for name in named:
        if name not in there:
            raise unknown_name(what, name, there, where=f" in {dataset}")
    refuse_doubles(what, named)


def _classes(
    index: Names, known: int | np.integer[Any] | Sequence[str] | None, unknown: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    for named in (known if isinstance(known, Sequence) else (), unknown or ()):
        _check_names("class", named, index.classes, index.dataset)
    said = f"--known {known} (the first by name)" if isinstance(known, int | np.integer) else "--known"
    if isinstance(known, int | np.integer):
        if not 2 <= known <= len(index.classes):
            raise OpenDGError(
                f"--known {known} is out of range: {index.dataset} has {len(index.classes)} classes, give a number "
                f"from 2 to {len(index.classes)}."
            )
        known = index.classes[:known]
    if known is None:
        known = [name for name in index.classes if name not in (unknown or [])]
    if unknown is None:
        unknown = [name for name in index.classes if name not in known]
    if both := set(known) & set(unknown):
        raise OpenDGError(
            f"{sorted(both)[0]!r} is both known and unknown, by {said} and --unknown: name it in one of the two only."
        )
    if len(known) < 2:
        raise OpenDGError(
            f"A classifier needs two or more known classes, and {len(known) or 'none'} is left: name more in "
            "--known or fewer in --unknown."
        )
    if taken := [name for name in ANSWERS if name in known]:
        raise OpenDGError(
            f"A known class cannot be called {taken[0]!r}, which is said of images that are of none: name it in "
            "--unknown, or rename its folder."
        )
    return tuple(sorted(known)), tuple(sorted(unknown))


def _daml(
    index: Names, sources: tuple[str, ...], targets: tuple[str, ...], split_seed: int, left_out: tuple[str, ...]
) -> Protocol:
    """DAML's blocks (Shu et al., CVPR 2021): classes in alphabetical order are dealt to all, to pairs, to one each.

    The authors number Office-Home's classes in an order of their own; here it is alphabetical for every dataset.
    """
    if index.dataset not in DAML_BLOCKS:
        raise OpenDGError(f"DAML's protocol is defined for {' and '.join(DAML_BLOCKS)}, not for {index.dataset!r}.")
    if len(sources) != 3:
        raise OpenDGError(f"DAML's protocol needs exactly three source domains, and there are {len(sources)}.")
    to_all, to_pair, to_one, keep_all, keep_pair, keep_one, new = DAML_BLOCKS[index.dataset]
    deck = list(index.classes)
    blocks: list[tuple[tuple[int, ...], int, list[str]]]
    blocks = [((0, 1, 2), keep_all, [deck.pop(0) for _ in range(to_all)])]
    blocks += [(pair, keep_pair, [deck.pop(0) for _ in range(to_pair)]) for pair in combinations(range(3), 2)]
    blocks += [((one,), keep_one, [deck.pop(0) for _ in range(to_one)]) for one in range(3)]
    known = sorted(name for _, _, names in blocks for name in names)
    taught = tuple(tuple(sorted(c for who, _, names in blocks if d in who for c in names)) for d in range(3))
    tested = sorted(name for _, keep, names in blocks for name in names[:keep])
    return Protocol(
        index.dataset, "daml", sources, targets, tuple(known), tuple(deck[:new]), taught, tuple(tested), split_seed,
        left_out,
    )  # fmt: skip


def _split(protocol: Protocol, index: Index) -> Split:
    _check_names("domain", protocol.sources + protocol.targets, index.domains, index.dataset)
    _check_names("class", protocol.known + protocol.unknown, index.classes, index.dataset)
    for classes in (*protocol.taught, protocol.tested):
        _check_names("known class", classes, protocol.known, index.dataset)
    if len(protocol.taught) != len(protocol.sources):
        raise OpenDGError(
            f"Of {len(protocol.sources)} source domains {len(protocol.taught)} are said to teach classes."
        )
    number = {name: position for position, name in enumerate(protocol.known)}
    labels = np.array([number.get(name, -1) for name in index.classes], dtype=np.int64)[index.label]
    domain_number = {name: position for position, name in enumerate(index.domains)}
    class_number = {name: position for position, name in enumerate(index.classes)}

    def rows(domain: str, classes: Sequence[str]) -> Rows:
        wanted = np.isin(index.label, [class_number[name] for name in classes])
        return np.flatnonzero(wanted & (index.domain == domain_number[domain]))

    source = np.concatenate([rows(d, c) for d, c in zip(protocol.sources, protocol.taught, strict=True)])
    part = _parts(index, source, protocol.split_seed)
    return Split(
        train=source[part == TRAIN],
        val=source[part == VAL],
        val_unknown=np.concatenate([rows(domain, protocol.unknown) for domain in protocol.sources]),
        test_known=np.concatenate([rows(domain, protocol.tested) for domain in protocol.targets]),
        test_unknown=np.concatenate([rows(domain, protocol.unknown) for domain in protocol.targets]),
        labels=labels,
    )


def _parts(index: Index, rows: Rows, seed: int) -> NDArray[np.int64]:
    """TRAIN or VAL for each row: as the data say, else 90/10 for each domain and class, by the hash of the key."""
    part = index.part[rows].copy()
    free = np.flatnonzero(part == NO_PART)
    tickets = [hashlib.sha256(f"{seed}:{index.keys[row]}".encode()).hexdigest() for row in rows[free]]
    cell = index.domain[rows[free]] * len(index.classes) + index.label[rows[free]]
    ends = np.cumsum(np.unique(cell, return_counts=True)[1])
    for drawn in np.split(free[np.lexsort((np.array(tickets, dtype="S64"), cell))], ends[:-1]):
        held = round(0.1 * len(drawn)) if len(drawn) >= 10 else int(len(drawn) > 1)
        part[drawn[:held]], part[drawn[held:]] = VAL, TRAIN
    return part


def file_hash(index: Index, rows: Rows) -> str:
    """One hash of a list of files (keys and sizes), whatever folder or machine they lie on."""
    digest = hashlib.sha256()
    for row in np.sort(rows):
        digest.update(f"{index.keys[row]}\0{int(index.size[row])}\n".encode())
    return digest.hexdigest()


def manifest(protocol: Protocol, index: Index, split: Split) -> dict[str, Any]:
    """What a run keeps of its data, so that evaluation can tell whether it meets the same files."""
    parts = {"train": split.train, "val": split.val, "test-known": split.test_known, "test-unknown": split.test_unknown}
    return {
        "protocol": protocol.to_json(),
        "protocol_id": protocol.id,
        "images": {name: len(rows) for name, rows in parts.items()},
        "files": {name: file_hash(index, rows) for name, rows in parts.items()},
    }
