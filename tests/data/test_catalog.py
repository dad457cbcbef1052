from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from opendg.data import catalog
from opendg.data.catalog import open_dataset, recognise
from opendg.data.index import NO_PART, TRAIN, VAL
from opendg.errors import OpenDGError
from tests.data.trees import grid, pack, unreadable, write

PACS = catalog.get("pacs")


def pacs(root: Path, each: int = 2) -> Path:
    return write(root, grid(PACS.domains, PACS.classes, each=each))


def lists(**texts: str) -> dict[str, bytes]:
    return {f"{name}_kfold.txt": text.encode() for name, text in texts.items()}


@pytest.mark.parametrize("entry", catalog.DATASETS.values(), ids=catalog.names())
def test_entries_agree_with_themselves(entry: catalog.Dataset) -> None:
    assert list(entry.classes) == sorted(set(entry.classes))
    assert list(entry.domains) == sorted(set(entry.domains))
    assert len(entry.domains) >= 3
    assert 2 <= entry.known < len(entry.classes)
    assert entry.classes[: entry.known] + entry.unknown == entry.classes
    assert entry.input in ("photo", "digits")
    assert entry.citation
    assert entry.licence
    for counts in (entry.counts, *entry.editions):
        assert set(counts) in (set(entry.domains), set())
    for domain, row in entry.cells.items():
        assert len(row) == len(entry.classes)
        assert sum(row) == entry.counts[domain]
    assert recognise(entry.domains, entry.classes) == entry.name


@pytest.mark.parametrize(
    ("name", "images", "classes"),
    [
        ("pacs", 9991, 7),
        ("office-home", 15588, 65),
        ("digits-dg", 24000, 10),
        ("vlcs", 10729, 5),
        ("terra-incognita", 24330, 10),
        ("domainnet", 586575, 345),
    ],
)
def test_totals_are_those_of_the_literature(name: str, images: int, classes: int) -> None:
    entry = catalog.get(name)
    assert (sum(entry.counts.values()), len(entry.classes)) == (images, classes)


def test_unknown_classes_of_the_paper() -> None:
    assert PACS.unknown == ("person",)
    assert catalog.get("digits-dg").unknown == ("6", "7", "8", "9")
    assert len(catalog.get("office-home").unknown) == 25


@pytest.mark.parametrize("name", ["office-home", "Office_Home", "OfficeHome", "office home"])
def test_names_are_found_in_other_spellings(name: str) -> None:
    assert catalog.get(name).name == "office-home"


def test_an_unknown_name_has_near_ones() -> None:
    with pytest.raises(OpenDGError, match="no dataset 'digit-dg': did you mean 'digits-dg'"):
        catalog.get("digit-dg")


@pytest.mark.parametrize("spelling", ["Real World", "RealWorld", "Real_World", "real-world"])
def test_domains_are_recognised_in_other_spellings(spelling: str) -> None:
    classes = [name.replace("_", " ") for name in catalog.get("office-home").classes]
    assert recognise(["Art", "Clipart", "Product", spelling], classes) == "office-home"


def test_what_is_not_recognised() -> None:
    assert recognise(PACS.domains, PACS.classes[:-1]) is None
    assert recognise([*PACS.domains, "quickdraw"], PACS.classes) is None
    assert recognise(["photo"], PACS.classes) is None
    assert recognise(PACS.domains[:3], PACS.classes) == "pacs"


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    index = open_dataset(str(write(tmp_path / "mine", grid(["a", "b"], ["x", "y"]))))
    assert (index.dataset, index.domains) == ("mine", ("a", "b"))


def test_a_folder_of_a_known_dataset(tmp_path: Path) -> None:
    assert open_dataset(str(pacs(tmp_path / "any name"))).dataset == "pacs"


@pytest.mark.parametrize("below", [".", "pacs", "PACS", "PACS/kfold"])
def test_a_name_is_looked_for_under_the_root(tmp_path: Path, below: str) -> None:
    pacs(tmp_path / below)
    index = open_dataset("pacs", tmp_path)
    assert (index.dataset, len(index)) == ("pacs", 56)


@pytest.mark.parametrize("folder", ["digits_dg", "digits-dg", "DigitsDG"])
def test_a_name_is_looked_for_under_the_environment_variable(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = catalog.get("digits-dg")
    write(tmp_path / folder, grid([f"{name}/train" for name in entry.domains], entry.classes))
    monkeypatch.setenv("OPENDG_DATA", str(tmp_path))
    assert open_dataset("digits-dg").dataset == "digits-dg"


def test_a_root_goes_before_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDG_DATA", str(pacs(tmp_path / "theirs", each=1)))
    assert len(open_dataset("pacs", pacs(tmp_path / "mine", each=3))) == 3 * 28


def test_a_folder_may_be_of_ones_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pacs(tmp_path / "mine")
    assert open_dataset("~/mine").dataset == "pacs"
    assert open_dataset("pacs", Path("~/mine")).dataset == "pacs"


def test_a_part_of_a_named_dataset_keeps_its_name(tmp_path: Path) -> None:
    for domain in ("photo", "sketch"):
        pack(tmp_path / "pacs" / f"{domain}.tar", grid([domain], ["dog", "horse"]))
    assert open_dataset("pacs", tmp_path).dataset == "pacs"


def test_the_built_in_dataset_is_a_name_whatever_lies_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("glyphs", "pacs"):
        assert catalog.is_named(name)
        (tmp_path / name).mkdir()
    assert catalog.is_named("glyphs")
    assert not catalog.is_named("pacs"), "a folder of that name"


def refused(sentence: str, data: str, root: Path | None = None) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        open_dataset(data, root)


def test_the_built_in_dataset_needs_no_place() -> None:
    index = open_dataset("glyphs")
    entry = catalog.get("glyphs")
    assert (index.dataset, index.domains, index.classes) == ("glyphs", entry.domains, entry.classes)


def test_a_name_without_a_place() -> None:
    refused("Where PACS lies is not known.*--root.*OPENDG_DATA.*opendg data fetch pacs", "pacs")
    refused("Where VLCS lies is not known.*get it from https://", "vlcs")


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    refused(r"PACS is not under .*: expected its domains \(art_painting", "pacs", tmp_path)
    refused("There is no folder .*nowhere", "pacs", tmp_path / "nowhere")
    write(tmp_path, grid(["photo"], ["dog"]))
    refused("PACS is not under", "pacs", tmp_path)  # one domain is no dataset


@pytest.mark.parametrize("closed", [".", "pacs", "pacs/photo", "pacs/photo/dog"])
def test_a_folder_that_may_not_be_read(closed: str) -> None:
    with TemporaryDirectory() as folder:  # which others may look into, unlike tmp_path
        root = Path(folder)
        root.chmod(0o755)
        pacs(root / "pacs")
        with unreadable(root / closed):
            refused(f"{(root / closed).name} cannot be read .Permission denied.: see that you may", "pacs", root)


def test_neither_name_nor_folder(tmp_path: Path) -> None:
    refused("'pasc' is neither a folder nor a dataset of the catalogue: did you mean 'pacs'", "pasc", tmp_path)
    refused("neither a folder nor a dataset.*one of pacs, office-home", str(tmp_path / "zzz"))


@pytest.mark.parametrize("place", ["", "splits/", "Train val splits/"])
def test_official_lists(tmp_path: Path, place: str) -> None:
    pacs(tmp_path, each=3)
    texts = lists(
        photo_train="photo/dog/0.png 1\nphoto/person/1.png 7\n\nkfold/photo/house/2.png 6\n",
        photo_crossval="photo/dog/1.png 1\nphoto/dog/gone.png 1",
        photo_test="photo/dog/2.png 1",
    )
    write(tmp_path, {place + name: text for name, text in texts.items()})
    for index in (open_dataset(str(tmp_path)), open_dataset("pacs", tmp_path)):
        part = dict(zip(index.keys, index.part, strict=True))
        assert {key for key in part if part[key] == TRAIN} == {
            "photo/dog/0.png",
            "photo/person/1.png",
            "photo/house/2.png",
        }
        assert {key for key in part if part[key] == VAL} == {"photo/dog/1.png"}
        assert part["photo/dog/2.png"] == NO_PART


def test_official_lists_beside_the_folder_of_the_domains(tmp_path: Path) -> None:
    pacs(tmp_path / "PACS" / "kfold")
    write(tmp_path / "PACS" / "splits", lists(photo_train="photo/dog/0.png 1"))
    index = open_dataset("pacs", tmp_path)
    assert index.part[index.keys.index("photo/dog/0.png")] == TRAIN


def test_paths_with_blanks_in_a_list(tmp_path: Path) -> None:
    root = write(pacs(tmp_path), {"photo/dog/my dog 1.png": b"?"} | lists(photo_train="photo/dog/my dog 1.png 1"))
    index = open_dataset(str(root))
    assert index.part[index.keys.index("photo/dog/my dog 1.png")] == TRAIN


def test_a_list_knows_a_class_in_another_spelling(tmp_path: Path) -> None:
    root = write(tmp_path, grid(PACS.domains, [name.title() for name in PACS.classes]))
    index = open_dataset(str(write(root, lists(photo_train="photo/Person/0.png 7"))))
    assert index.part[index.keys.index("photo/Person/0.png")] == TRAIN


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("photo/dog/0.png 2", "line 1: label 2 does not agree with the folder of photo/dog/0.png, expected 1"),
        ("photo/dog/0.png 1\nphoto/dog/0.png 0", "line 2: label 0 does not agree"),
        ("photo/cow/0.png 1", "expected a class of PACS"),
        ("photo/dog/0.png", "line 1: expected 'domain/class/file label'"),
        ("dog/0.png 1", "line 1: expected 'domain/class/file label'"),
    ],
)
def test_a_wrong_list(tmp_path: Path, text: str, sentence: str) -> None:
    refused(sentence, str(write(pacs(tmp_path), lists(photo_train=text))))


def test_a_list_that_is_no_text(tmp_path: Path) -> None:
    write(pacs(tmp_path), {"photo_train_kfold.txt": "photo/dog/hündin.png 1".encode("latin-1")})
    refused("photo_train_kfold.txt cannot be read .it is not UTF-8.", str(tmp_path))


def test_lists_that_contradict_each_other(tmp_path: Path) -> None:
    both = lists(photo_train="photo/dog/0.png 1", photo_crossval="photo/dog/0.png 1")
    refused("photo/dog/0.png stands in .*photo_train.* and in .*photo_crossval", str(write(pacs(tmp_path), both)))


def test_real_pacs_has_its_official_split(shared: Path) -> None:
    index = open_dataset("pacs", shared / "data")
    per_domain = [np.bincount(index.part[index.domain == number]).tolist() for number in range(4)]
    assert per_domain == [[0, 1840, 208], [0, 2107, 237], [0, 1499, 171], [0, 3531, 398]]
    assert index.counts.tolist() == [list(PACS.cells[domain]) for domain in PACS.domains]


def test_real_digits(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDG_DATA", str(shared / "data"))
    index = open_dataset("digits-dg")
    assert (index.dataset, len(index)) == ("digits-dg", 24000)
