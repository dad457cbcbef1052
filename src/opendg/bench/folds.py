"""Folds: the source domains and known classes play target and unknown classes in turn. The target takes no part."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from opendg.data.index import Index
from opendg.errors import OpenDGError, counted, typed
from opendg.protocol import Protocol, make_protocol
from opendg.seeds import generator


@dataclass(frozen=True)
class Fold:
    held: str  # the source domain that plays the target
    sources: tuple[str, ...]  # those that are trained on
    known: tuple[str, ...]
    unknown: tuple[str, ...]  # the known classes that play the unknown ones

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_folds(protocol: Protocol, count: int | None, seed: int) -> list[Fold]:
    """A fold for each source domain, or for `count` of them: those that follow the target by name, then the first ones.

    The known classes are shuffled once and dealt round: each fold holds out the next third of them (rounded down, one
    at least), so that with three sources every class is unknown once, but for one or two that the rounding leaves.
    Searches for several targets begin at different places of both rounds: with one fold each, four targets still hold
    out four domains.
    """
    every = sorted((*protocol.sources, *protocol.targets))
    turn = every.index(protocol.targets[0])
    held = [name for name in every[turn:] + every[:turn] if name in protocol.sources]
    classes = generator(seed, "folds").permutation(protocol.known).tolist()
    share = max(1, len(classes) // 3)
    if protocol.kind != "shared":
        raise OpenDGError(f"Tuning is defined for the protocol 'shared', not for {protocol.kind!r}: leave it out.")
    if len(held) < 2 or len(classes) < 3:
        raise OpenDGError(
            f"Tuning holds out a source domain and a known class, and has {counted(len(held), 'source')} and "
            f"{len(classes)} known classes: two or more and three or more are needed."
        )
    if count is not None and not 1 <= count <= len(held):
        raise OpenDGError(f"--folds {count} is out of range: there are {len(held)} source domains to hold out.")
    folds = []
    for number, domain in enumerate(held[:count]):
        first = (turn + number) * share
        out = [classes[(first + i) % len(classes)] for i in range(share)]
        folds.append(
            Fold(
                domain, tuple(name for name in protocol.sources if name != domain),
                tuple(name for name in protocol.known if name not in out), tuple(sorted(out)),
            )
        )  # fmt: skip
    return folds


def check_folds(folds: list[Fold], index: Index, protocol: Protocol) -> None:
    """Refuse a fold that the images cannot fill, before any is trained."""
    there = index.counts > 0
    gone = {
        name: fold.held
        for fold in folds
        for name in fold.known
        if not there[[index.domains.index(source) for source in fold.sources], index.classes.index(name)].any()
    }
    if gone:
        name, held = next(iter(gone.items()))
        raise OpenDGError(
            f"Tuning holds out {held!r}, and no other source domain has an image of the known class {name!r}: make it "
            f"unknown, with --unknown {typed(','.join([*protocol.unknown, *gone]))}."
        )
    for fold in folds:
        rule = make_protocol(
            index, [fold.held], known=fold.known, unknown=fold.unknown, sources=fold.sources,
            split_seed=protocol.split_seed,
        )  # fmt: skip
        if not len(rule.apply(index).test_unknown):
            raise OpenDGError(
                f"The source domain {fold.held!r} has no image of {' or '.join(fold.unknown)}, which would play the "
                "unknown classes: choose another --seed, or leave the domain out of --sources."
            )
