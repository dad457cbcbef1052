from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opendg.data.catalog import DATASETS, open_dataset
from opendg.data.index import NO_PART, TRAIN, VAL, Index
from opendg.data.tree import scan
from opendg.errors import OpenDGError
from opendg.protocol import Protocol, file_hash, make_protocol, manifest
from tests.tiny import write_tree

PACS = DATASETS["pacs"]


def make_index(
    domains: tuple[str, ...] = PACS.domains, classes: tuple[str, ...] = PACS.classes, each: int | np.ndarray = 20,
    dataset: str = "pacs",
) -> Index:  # fmt: skip
    """An Index without files: `each` images a cell, or a table of them by domain and class."""
    counts = np.broadcast_to(each, (len(domains), len(classes)))
    cells = [(d, c, i) for d in range(len(domains)) for c in range(len(classes)) for i in range(counts[d, c])]
    keys = tuple(f"{domains[d]}/{classes[c]}/{i:04d}.png" for d, c, i in cells)
    domain, label, number = np.array(cells, dtype=np.int64).reshape(-1, 3).T.copy()
    blank = np.zeros(len(keys), dtype=np.int64)
    return Index(
        dataset, domains, classes, keys, files=[Path(key) for key in keys], offset=blank, size=100 + number,
        modified=blank, domain=domain, label=label, part=blank + NO_PART,
    )  # fmt: skip


INDEX = make_index()


@pytest.mark.parametrize(
    ("asked", "known"),
    [
        ({"known": 6}, PACS.classes[:6]),
        ({"unknown": ["person"]}, PACS.classes[:6]),
        ({"known": list(PACS.classes[:6])}, PACS.classes[:6]),
        ({"known": ["house", "dog"]}, ("dog", "house")),
        ({"known": ["dog", "house"], "unknown": ["person"]}, ("dog", "house")),
        ({}, PACS.classes),
    ],
)
def test_known_and_unknown_can_be_said_in_several_ways(asked: dict[str, Any], known: tuple[str, ...]) -> None:
    protocol = make_protocol(INDEX, ["sketch"], **asked)
    rest = tuple(name for name in PACS.classes if name not in known)
    assert protocol.known == protocol.tested == known
    assert protocol.unknown == tuple(asked.get("unknown", rest))
    assert protocol.sources == ("art_painting", "cartoon", "photo")
    assert protocol.taught == (known,) * 3


@pytest.mark.parametrize(
    ("targets", "asked", "sentence"),
    [
        (["sketsh"], {}, "no domain 'sketsh' in pacs: did you mean 'sketch'"),
        ([], {}, "No target domain was named: give one or more of art_painting"),
        (["sketch"], {"sources": ["foto"]}, "no domain 'foto' in pacs: did you mean 'photo'"),
        (["sketch"], {"sources": ["photo", "sketch"]}, "'sketch' is both source and target"),
        (list(PACS.domains), {}, "none is left to train on"),
        (["sketch", "sketch"], {}, "domain 'sketch' is named twice"),
        (["sketch"], {"sources": ["photo", "photo"]}, "'photo' is named twice"),
        (["sketch"], {"known": ["dog", "dog"]}, "'dog' is named twice"),
        (["sketch"], {"unknown": ["dog", "dog"]}, "'dog' is named twice"),
        (["sketch"], {"unknown": ["persom"]}, "no class 'persom' in pacs: did you mean 'person'"),
        (["sketch"], {"known": ["dog", "hose"]}, "no class 'hose' in pacs: did you mean 'house' or 'horse'"),
        (["sketch"], {"known": ["dog", "house"], "unknown": ["dog"]}, "'dog' is both known and unknown"),
        (["sketch"], {"known": 1}, "--known 1 is out of range: .* 2 to 7"),
        (["sketch"], {"known": 8}, "--known 8 is out of range"),
        (["sketch"], {"unknown": list(PACS.classes[:6])}, "needs two or more known classes, and 1 is left"),
        (["sketch"], {"unknown": list(PACS.classes)}, "two or more known classes, and none is left"),
        (["sketch"], {"kind": "dmal"}, "no protocol 'dmal': did you mean 'daml'"),
        (
            ["sketch"],
            {"kind": "daml", "sources": ["photo", "cartoon"]},
            "exactly three source domains, and there are 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(targets: list[str], asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        make_protocol(INDEX, targets, **asked)


@pytest.mark.parametrize("name", ["unknown", "error"])
def test_no_known_class_is_called_as_what_is_said_of_the_others(name: str) -> None:
    index = make_index(classes=("dog", "house", name, "zebra"))
    with pytest.raises(OpenDGError, match=f"called '{name}'.*: name it in --unknown, or rename"):
        make_protocol(index, ["sketch"])
    assert make_protocol(index, ["sketch"], unknown=[name]).known == ("dog", "house", "zebra")


def test_daml_is_for_datasets_that_it_is_defined_for() -> None:
    with pytest.raises(OpenDGError, match="defined for pacs and office-home, not for 'mine'"):
        make_protocol(make_index(dataset="mine"), ["sketch"], kind="daml")


def test_ids_are_of_the_protocol_and_not_of_the_target() -> None:
    ids = {make_protocol(INDEX, [target], known=6).id for target in PACS.domains}
    assert ids == {make_protocol(INDEX, ["sketch"], unknown=["person"]).id}
    assert ids.pop().startswith("pacs:shared:6+1:")


def test_ids_differ_where_results_must_not_be_mixed() -> None:
    others = [
        make_protocol(INDEX, ["sketch"], known=6),
        make_protocol(INDEX, ["sketch"], known=5),
        make_protocol(INDEX, ["sketch"], unknown=["dog"]),
        make_protocol(INDEX, ["sketch"], known=list(PACS.classes[:5]), unknown=["person"]),
        make_protocol(INDEX, ["sketch"], kind="daml"),
        make_protocol(INDEX, ["sketch"], known=6, split_seed=1),
        make_protocol(make_index(dataset="other"), ["sketch"], known=6),
    ]
    assert len({protocol.id for protocol in others}) == len(others)


def test_ids_tell_sets_of_sources_apart() -> None:
    every, few = make_protocol(INDEX, ["sketch"], known=6), {}
    for sources in (["cartoon", "photo"], ["art_painting", "photo"], ["photo"]):
        few[tuple(sources)] = make_protocol(INDEX, ["sketch"], known=6, sources=sources)
    assert len({every.id, *(protocol.id for protocol in few.values())}) == 4
    assert few["cartoon", "photo"].id == f"{every.id}:without-art_painting"
    named = make_protocol(INDEX, ["sketch"], known=6, sources=["photo", "cartoon", "art_painting"])
    assert named.id == every.id, "all other domains, whether they are named or not"
    assert make_protocol(INDEX, ["photo"], known=6, sources=["cartoon", "sketch"]).id == few["cartoon", "photo"].id
    assert make_protocol(INDEX, ["photo", "sketch"], known=6).id == every.id


def test_the_ids_of_committed_records_are_those_of_today() -> None:
    assert make_protocol(INDEX, ["sketch"], known=6).id == "pacs:shared:6+1:eebcff"


def test_what_a_protocol_leaves_out_is_said_where_there_is_some() -> None:
    every = make_protocol(INDEX, ["sketch"], known=6)
    few = make_protocol(INDEX, ["sketch"], known=6, sources=["cartoon", "photo"])
    assert "left_out" not in every.to_json(), "what names a run stays as it was"
    assert Protocol.from_json(json.loads(json.dumps(few.to_json()))) == few


def test_the_number_of_known_classes_may_be_numpys() -> None:
    assert make_protocol(INDEX, ["sketch"], known=np.int64(6)) == make_protocol(INDEX, ["sketch"], known=6)
    with pytest.raises(OpenDGError, match="--known 8 is out of range: pacs has 7 classes"):
        make_protocol(INDEX, ["sketch"], known=np.int64(8))


def test_names_alone_make_a_protocol() -> None:
    names = SimpleNamespace(dataset=INDEX.dataset, domains=INDEX.domains, classes=INDEX.classes)
    assert make_protocol(names, ["sketch"], known=6) == make_protocol(INDEX, ["sketch"], known=6)


def test_daml_ids_agree_between_targets() -> None:
    assert len({make_protocol(INDEX, [target], kind="daml").id for target in PACS.domains}) == 1


def test_daml_deals_the_classes_of_pacs_as_the_authors_do() -> None:
    protocol = make_protocol(INDEX, ["sketch"], kind="daml")
    number = {name: position for position, name in enumerate(PACS.classes)}
    assert [{number[name] for name in classes} for classes in protocol.taught] == [{3, 0, 1}, {4, 0, 2}, {5, 1, 2}]
    assert protocol.known == protocol.tested == PACS.classes[:6]
    assert protocol.unknown == ("person",)


def test_which_daml_source_is_first_is_the_order_asked_for() -> None:
    protocol = make_protocol(INDEX, ["sketch"], kind="daml", sources=["photo", "cartoon", "art_painting"])
    assert dict(zip(protocol.sources, protocol.taught, strict=True))["photo"] == ("dog", "elephant", "guitar")


def test_ids_tell_orders_apart_in_which_daml_deals_its_classes() -> None:
    """Other classes are taught by each source, so that the results must not be mixed."""
    usual = make_protocol(INDEX, ["sketch"], kind="daml")
    other = make_protocol(INDEX, ["sketch"], kind="daml", sources=["photo", "cartoon", "art_painting"])
    assert other.id == f"{usual.id}:dealt-photo+cartoon+art_painting"
    assert make_protocol(INDEX, ["sketch"], kind="daml", sources=["art_painting", "cartoon", "photo"]) == usual
    five = make_index(domains=(*PACS.domains, "woodcut"))
    without = make_protocol(five, ["sketch"], kind="daml", sources=["art_painting", "cartoon", "photo"])
    assert without.id == f"{usual.id}:without-woodcut"


def test_daml_deals_office_home() -> None:
    entry = DATASETS["office-home"]
    index = make_index(entry.domains, entry.classes, each=3, dataset="office-home")
    protocol = make_protocol(index, ["Art"], kind="daml")
    assert [len(classes) for classes in protocol.taught] == [3 + 2 * 6 + 11] * 3
    assert len(set().union(*protocol.taught)) == len(protocol.known) == 54
    assert (len(protocol.tested), len(protocol.unknown)) == (16, 11)
    first, second, third = map(set, protocol.taught)
    assert len(first & second & third) == 3
    assert len((first & second) - third) == len((first & third) - second) == len((second & third) - first) == 6
    assert set(protocol.tested) <= set(protocol.known)
    assert not set(protocol.unknown) & set(protocol.known)
    shown = index.label[protocol.apply(index).test_known]
    assert {index.classes[c] for c in shown} == set(protocol.tested)


def test_daml_sources_show_their_own_classes_only() -> None:
    protocol = make_protocol(INDEX, ["sketch"], kind="daml")
    split = protocol.apply(INDEX)
    for domain, classes in zip(protocol.sources, protocol.taught, strict=True):
        rows = np.concatenate([split.train, split.val])
        here = rows[INDEX.domain[rows] == INDEX.domains.index(domain)]
        assert {INDEX.classes[c] for c in INDEX.label[here]} == set(classes)


@pytest.mark.parametrize("kind", ["shared", "daml"])
def test_json_brings_back_the_protocol(kind: str) -> None:
    protocol = make_protocol(INDEX, ["sketch"], kind=kind, split_seed=3)
    assert Protocol.from_json(json.loads(json.dumps(protocol.to_json()))) == protocol


def test_the_parts_of_a_split() -> None:
    protocol = make_protocol(INDEX, ["photo", "sketch"], known=["dog", "guitar"], unknown=["person"])
    split = protocol.apply(INDEX)
    domains, classes = np.array(INDEX.domains)[INDEX.domain], np.array(INDEX.classes)[INDEX.label]
    sources, targets = ("art_painting", "cartoon"), ("photo", "sketch")
    expected = {
        "test_known": (targets, ("dog", "guitar"), 80), "test_unknown": (targets, ("person",), 40),
        "val_unknown": (sources, ("person",), 40), "train": (sources, ("dog", "guitar"), 72),
        "val": (sources, ("dog", "guitar"), 8),
    }  # fmt: skip
    for name, (where, which, count) in expected.items():
        rows = getattr(split, name)
        assert len(rows) == len(set(rows.tolist())) == count
        assert set(domains[rows]) == set(where)
        assert set(classes[rows]) == set(which)
    assert not set(split.train) & set(split.val)
    assert split.test.tolist() == [*split.test_known, *split.test_unknown]
    labels = {str(name): set(split.labels[classes == name].tolist()) for name in INDEX.classes}
    assert labels == {name: {-1} for name in INDEX.classes} | {"dog": {0}, "guitar": {1}}


def test_within_some_rows_only_training_and_validation_shrink() -> None:
    split = make_protocol(INDEX, ["sketch"], known=6).apply(INDEX)
    some = split.within(np.concatenate([split.train[::2], split.val[:3]]))
    assert some.train.tolist() == split.train[::2].tolist()
    assert some.val.tolist() == split.val[:3].tolist()
    assert np.array_equal(some.test, split.test)


@given(table=st.lists(st.integers(1, 45), min_size=4, max_size=4), seed=st.integers(0, 99))
def test_a_tenth_of_each_cell_validates(table: list[int], seed: int) -> None:
    assume(max(table) > 1)  # else nothing is left to validate on
    index = make_index(("a", "b", "c"), ("x", "y"), np.array([[5, 7], table[:2], table[2:]]))
    split = make_protocol(index, ["a"], split_seed=seed).apply(index)
    for d in (1, 2):
        for c in (0, 1):
            n = table[2 * (d - 1) + c]
            held = int(((index.domain[split.val] == d) & (index.label[split.val] == c)).sum())
            kept = int(((index.domain[split.train] == d) & (index.label[split.train] == c)).sum())
            assert held + kept == n
            assert held == (round(n / 10) if n >= 10 else min(1, n - 1))


def test_the_seeded_split_is_stable() -> None:
    """An image stays in its part whatever other classes or domains there are, and moves with the seed."""

    def held(index: Index, seed: int = 0) -> set[str]:
        split = make_protocol(index, ["sketch"], known=["dog", "house"], split_seed=seed).apply(index)
        return {index.keys[row] for row in split.val}

    small = make_index(("art_painting", "photo", "sketch"), ("dog", "house"))
    large = make_index(classes=("ant", *PACS.classes, "zebra"))
    assert held(small) == {key for key in held(large) if not key.startswith("cartoon")}
    assert held(small) != held(small, seed=1)


def test_parts_that_the_data_bring_are_kept() -> None:
    part = np.where(np.arange(len(INDEX)) % 4 == 0, VAL, TRAIN)
    index = replace(INDEX, part=part)
    split = make_protocol(index, ["sketch"], known=6).apply(index)
    assert set(part[split.val]) == {VAL}
    assert set(part[split.train]) == {TRAIN}


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        ({("photo", name): 0 for name in PACS.classes[:6]}, "Source domain 'photo' has no training image of a known"),
        (
            {(name, "dog"): 0 for name in ("art_painting", "cartoon", "photo")},
            "With target sketch no source .* known class 'dog': .* --unknown person,dog",
        ),
        ({("sketch", name): 0 for name in PACS.classes[:6]}, "Target sketch has no image of a known class"),
        ({(d, c): 1 for d in PACS.domains for c in PACS.classes}, "No source domain has a validation image"),
    ],
)
def test_gaps_in_the_data_are_named(cells: dict[tuple[str, str], int], sentence: str) -> None:
    counts = np.full((4, 7), 20)
    for (domain, name), count in cells.items():
        counts[PACS.domains.index(domain), PACS.classes.index(name)] = count
    index = make_index(each=counts)
    with pytest.raises(OpenDGError, match=sentence):
        make_protocol(index, ["sketch"], known=6).apply(index)


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (make_index(domains=("art_painting", "cartoon", "photo")), "domain 'sketch' .* pacs"),
        (make_index(classes=PACS.classes[1:]), "class 'dog' .* pacs"),
    ],
)
def test_data_that_have_lost_a_part_are_refused(index: Index, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        make_protocol(INDEX, ["sketch"], known=6).apply(index)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"taught": (("dog", "unicorn"),) * 3}, "no known class 'unicorn'"),
        ({"taught": (("dog", "person"),) * 3}, "no known class 'person'"),
        ({"taught": (PACS.classes[:6],) * 2}, "Of 3 source domains 2 are said to teach classes"),
        ({"tested": ("dog", "person")}, "no known class 'person'"),
        ({"unknown": ("dog",)}, "class 'dog' is named twice"),
        ({"targets": ("photo",)}, "domain 'photo' is named twice"),
    ],
)
def test_a_strangers_protocol_is_checked_where_it_is_applied(damage: dict[str, Any], sentence: str) -> None:
    protocol = Protocol.from_json(make_protocol(INDEX, ["sketch"], known=6).to_json() | damage)
    with pytest.raises(OpenDGError, match=sentence):
        protocol.apply(INDEX)


def test_the_official_split_of_pacs(shared: Path) -> None:
    index = open_dataset("pacs", shared / "data")
    expected = {  # target: train, val, known and unknown images of the target
        "art_painting": (1743 + 1111 + 3388, 196 + 127 + 381, 1599, 449),
        "cartoon": (1436 + 1111 + 3388, 163 + 127 + 381, 1939, 405),
        "photo": (1436 + 1743 + 3388, 163 + 196 + 381, 1238, 432),
        "sketch": (1436 + 1743 + 1111, 163 + 196 + 127, 3769, 160),
    }
    for target, counts in expected.items():
        split = make_protocol(index, [target], known=6).apply(index)
        assert (len(split.train), len(split.val), len(split.test_known), len(split.test_unknown)) == counts
    official = (shared / "data/pacs/splits/photo_crossval_kfold.txt").read_text().splitlines()
    listed = {line.rpartition(" ")[0].strip() for line in official if not line.endswith(" 7")}
    held = {index.keys[row] for row in make_protocol(index, ["sketch"], known=6).apply(index).val}
    assert {key for key in held if key.startswith("photo/")} == listed


def test_a_hash_of_files_does_not_depend_on_their_order() -> None:
    assert file_hash(INDEX, np.array([2, 5])) == file_hash(INDEX, np.array([5, 2]))
    assert file_hash(INDEX, np.array([2, 5])) != file_hash(INDEX, np.array([2, 6]))


def test_the_manifest_tells_when_a_file_changes(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "tree", each=3)
    protocol = make_protocol(scan(root), ["wood"], unknown=["ring"])

    def hashes(folder: Path) -> dict[str, str]:
        index = scan(folder)
        files: dict[str, str] = manifest(protocol, index, protocol.apply(index))["files"]
        return files

    before = hashes(root)
    assert hashes(write_tree(tmp_path / "elsewhere", each=3)) == before
    (root / "wood/ring/000.png").write_bytes((root / "wood/ring/000.png").read_bytes() + b"0")
    (root / "ink/ring/000.png").unlink()  # an unknown class of a source domain is in no part that counts
    changed = hashes(root)
    assert {part for part in before if before[part] != changed[part]} == {"test-unknown"}
    (root / "chalk/bar/000.png").rename(root / "chalk/bar/renamed.png")
    assert hashes(root)["train"] != before["train"] or hashes(root)["val"] != before["val"]
