from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from opendg.data.index import NO_PART, TRAIN, VAL
from opendg.data.tree import scan
from opendg.errors import OpenDGError
from tests.data.trees import encoded, grid, noise, pack, png, write


def test_domain_class_image(tmp_path: Path) -> None:
    root = write(tmp_path / "Birds", grid(["sea", "land"], ["tern", "Auk"], each=2))
    index = scan(root)
    assert index.dataset == "Birds"
    assert index.domains == ("land", "sea")
    assert index.classes == ("Auk", "tern")  # as Python sorts: upper case first
    assert index.keys == tuple(sorted(index.keys))
    assert index.counts.tolist() == [[2, 2], [2, 2]]
    assert (index.part == NO_PART).all()
    for row, key in enumerate(index.keys):
        assert key.split("/")[:2] == [index.domains[index.domain[row]], index.classes[index.label[row]]]
        assert index.read(row) == (root / key).read_bytes()


def test_train_and_val_folders(tmp_path: Path) -> None:
    cells = {"a/train": TRAIN, "a/val": VAL, "b/Train": TRAIN, "b/crossval": VAL}
    index = scan(write(tmp_path, grid(cells, ["0", "1"], each=3)))
    assert index.classes == ("0", "1")
    assert index.part.tolist() == [cells[key.rsplit("/", 2)[0]] for key in index.keys]


@pytest.mark.parametrize("domain", ["a", "a/train"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_index_knows_where_its_domains_lie(tmp_path: Path, domain: str, packed: bool) -> None:
    files = grid([domain], ["x"])
    if packed:
        pack(tmp_path / "a.tar", files)
    else:
        write(tmp_path, files)
    assert scan(tmp_path).root == tmp_path


def test_names_are_sorted_and_a_folder_may_be_named_like_a_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "Mine", grid([*"hgfedcba", "i.tar"], [*"zyxwvuts"]))
    monkeypatch.chdir(tmp_path / "Mine")
    index = scan(Path("."))
    assert index.dataset == "Mine"
    assert index.domains == (*"abcdefgh", "i.tar")
    assert index.classes == tuple("stuvwxyz")
    assert index.files[1:9:3] == [index.files[row] for row in (1, 4, 7)]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    index = scan(write(tmp_path, grid(["real", "sketch"], ["train", "van"])))
    assert index.classes == ("train", "van")
    assert (index.part == NO_PART).all()


@pytest.mark.parametrize("packed", [False, True])
def test_an_image_beside_the_classes_of_train_is_left_out(tmp_path: Path, packed: bool) -> None:
    files = grid(["a/train", "a/val"], ["x", "y"]) | {"a/train/cover.png": png()}
    if packed:
        pack(tmp_path / "a.tar", files)
    else:
        write(tmp_path, files)
    index = scan(tmp_path)
    assert (index.classes, len(index)) == (("x", "y"), 4)


def test_a_tar_is_as_good_as_a_folder(tmp_path: Path) -> None:
    files = grid(["a", "b/train", "b/val"], ["x", "y"], each=3)
    folder = scan(write(tmp_path / "folders", files))
    write(tmp_path / "mixed", {name: data for name, data in files.items() if name.startswith("a/")})
    pack(tmp_path / "mixed" / "b.tar", {f"./{name}": data for name, data in files.items() if name.startswith("b/")})
    mixed = scan(tmp_path / "mixed")
    assert mixed.keys == folder.keys
    for name in ("domain", "label", "part", "size"):
        assert np.array_equal(getattr(mixed, name), getattr(folder, name))
    assert [mixed.read(row) for row in range(len(mixed))] == [folder.read(row) for row in range(len(folder))]


def test_a_folder_with_images_goes_before_its_tar_and_an_empty_one_behind(tmp_path: Path) -> None:
    write(tmp_path, {"a/x/1.png": png(1)})
    (tmp_path / "b").mkdir()
    pack(tmp_path / "a.tar", {"a/x/1.png": png(2), "a/x/2.png": png(3)})
    pack(tmp_path / "b.tar", {"b/x/1.png": png(4)})
    index = scan(tmp_path)
    assert index.keys == ("a/x/1.png", "b/x/1.png")
    assert index.read(0) == png(1)


def test_a_changed_tar_is_listed_anew(tmp_path: Path) -> None:
    write(tmp_path, {"a/x/1.png": png()})
    pack(tmp_path / "b.tar", {"b/x/1.png": png(1)})
    assert len(scan(tmp_path)) == 2
    pack(tmp_path / "b.tar", {"b/x/1.png": png(1), "b/x/2.png": png(2)})
    assert len(scan(tmp_path)) == 3


def test_what_counts_as_an_image(tmp_path: Path) -> None:
    taken = ["1.jpg", "2.JPEG", "3.Png", "4.webp", "5.BMP", "6.tif", "7.TIFF", "ein Bild.jpg", "grüße 图.png"]
    left = [".8.png", "Thumbs.db", "notes.txt", "9.png.part", "10"]
    write(tmp_path, {f"a/x/{name}": b"?" for name in taken + left})
    write(tmp_path, {"a/.cache/1.png": b"?", ".git/x/1.png": b"?", "README.md": b"?", "a/cover.png": b"?"})
    assert [key.split("/")[2] for key in scan(tmp_path).keys] == sorted(taken)


def test_folders_that_hold_only_texts_are_no_domains(tmp_path: Path) -> None:
    write(tmp_path, grid(["a", "b"], ["x"]) | {"splits/a_train_kfold.txt": b"", "splits/b.txt": b""})
    assert scan(tmp_path).domains == ("a", "b")


def test_a_link_to_nothing_is_an_image_without_bytes(tmp_path: Path) -> None:
    write(tmp_path, grid(["a"], ["x"]))
    (tmp_path / "a" / "x" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    index = scan(tmp_path)
    assert index.keys == ("a/x/0.png", "a/x/gone.png")
    assert index.read(1) == b""


def test_pipes_are_not_opened(tmp_path: Path) -> None:
    write(tmp_path, grid(["a"], ["x"]))
    os.mkfifo(tmp_path / "a" / "x" / "pipe.png")
    assert len(scan(tmp_path)) == 1


def refused(root: Path, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        scan(root)


def test_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "There is no folder .*nowhere: expected one that holds")


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, "holds no images: expected DOMAIN/CLASS/IMAGE.*; give the folder that holds the domains")


@pytest.mark.parametrize("empty", ["empty", "empty/dog", "empty/train/dog"])
def test_a_domain_without_images_is_named(tmp_path: Path, empty: str) -> None:
    write(tmp_path, grid(["a", "b"], ["x"]))
    (tmp_path / empty).mkdir(parents=True)
    refused(tmp_path, "The domain empty under .* has no images in class folders.*; give the folder that holds the dom")


def test_images_without_class_folders(tmp_path: Path) -> None:
    refused(write(tmp_path, {"dog/1.png": png(), "cat/1.png": png()}), "The domain (dog|cat) under .* has no images in")


@pytest.mark.parametrize("deep", ["a/x/more/1.png", "a/test/x/1.png", "a/train/x/more/1.png", "a/x/2023/05/12/1.png"])
def test_images_too_deep_are_not_passed_over_in_silence(tmp_path: Path, deep: str) -> None:
    sentence = f"The image {deep} in .* lies too deep.*; move it up, or give the folder that holds the domains"
    refused(write(tmp_path, grid(["a", "b"], ["x"]) | {deep: png()}), sentence)


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", {"x/1.png": png(1), "x/2.gif": png(2)})
    root = write(tmp_path / "root", grid(["a"], ["x"], each=1))
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "x" / "up").symlink_to(tmp_path / "elsewhere")
    (root / "a" / "x" / "self.png").symlink_to("self.png")
    index = scan(root)
    assert [key for key in index.keys if key.startswith("b")] == ["b/x/1.png", "b/x/2.gif"]
    assert index.size[index.keys.index("a/x/self.png")] == 0


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    write(tmp_path, grid(["a"], ["x"]))
    with open(os.fsencode(tmp_path / "a" / "x") + b"/\xff.png", "wb"):
        pass
    refused(tmp_path, r"'a/x/\\udcff\.png' is not valid UTF-8")


@pytest.mark.parametrize("name", ["/etc/x/1.png", "a/../../x/1.png", "../a/x/1.png", "a/x\\..\\1.png"])
def test_a_tar_whose_names_lead_out_is_refused(tmp_path: Path, name: str) -> None:
    pack(tmp_path / "a.tar", {"a/x/0.png": png(), name: png()})
    refused(tmp_path, r"a\.tar is refused, for its member .* leads out of the folder")


def test_a_tar_of_something_else(tmp_path: Path) -> None:
    write(tmp_path, grid(["a", "b"], ["x"]))
    pack(tmp_path / "download.tar", {"PACS/x/1.png": png()})
    refused(tmp_path, r"download\.tar holds 'PACS/x/1\.png': expected download/CLASS/IMAGE")


def test_of_two_members_of_one_name_the_later_counts(tmp_path: Path) -> None:
    pack(tmp_path / "a.tar", {"./a/x/1.png": png(1), "a/x/1.png": png(2)})
    index = scan(tmp_path)
    assert (index.keys, index.read(0)) == (("a/x/1.png",), png(2))


def add_member(tar: Path, name: str, kind: bytes) -> None:
    with tarfile.open(tar, "a") as file:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "a/x/1.png"
        file.addfile(member)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE])
def test_images_that_a_tar_only_names_are_not_passed_over_in_silence(tmp_path: Path, kind: bytes) -> None:
    add_member(pack(tmp_path / "a.tar", {"a/x/1.png": png()}), "a/x/2.png", kind)
    refused(tmp_path, r"its member 'a/x/2\.png' is a link .* pack it again, with `tar --dereference")


def test_other_members_of_a_tar_are_passed_over(tmp_path: Path) -> None:
    tar = pack(tmp_path / "a.tar", {"a/x/1.png": png(), "a/x/notes.txt": b"?", "a/.git/x/2.png": b"?"})
    add_member(tar, "a/x/3.png", tarfile.DIRTYPE)
    add_member(tar, "a/latest", tarfile.SYMTYPE)
    assert scan(tmp_path).keys == ("a/x/1.png",)


@pytest.mark.parametrize("damage", ["compressed", "noise", "empty"])
def test_what_is_no_tar(tmp_path: Path, damage: str) -> None:
    whole = pack(tmp_path / "a.tar", {"a/x/1.png": png()}).read_bytes()
    damaged = {"compressed": gzip.compress(whole), "noise": b"\1" * 2000, "empty": b""}[damage]
    (tmp_path / "a.tar").write_bytes(damaged)
    refused(tmp_path, r"a\.tar cannot be read as a tar")


def test_a_tar_cut_anywhere_is_not_taken_for_a_small_one(tmp_path: Path) -> None:
    tar = pack(tmp_path / "a.tar", {f"a/x/{n}.png": png(n) for n in range(5)})
    with tarfile.open(tar) as file:
        last = file.getmembers()[-1]
    whole = tar.read_bytes()
    for cut in range(0, last.offset_data + 1024, 64):  # also between two members, and in a header
        tar.write_bytes(whole[:cut])
        refused(tmp_path, r"a\.tar cannot be read as a tar")


def test_a_damaged_header_does_not_end_a_tar(tmp_path: Path) -> None:
    tar = pack(tmp_path / "a.tar", {f"a/x/{n}.png": png(n) for n in range(5)})
    with tarfile.open(tar) as file:
        header = file.getmembers()[2].offset
    data = bytearray(tar.read_bytes())
    data[header + 150] ^= 255  # in its checksum
    tar.write_bytes(data)
    refused(tmp_path, r"a\.tar cannot be read as a tar \(it has no end, or a damaged member\)")


def test_a_file_that_vanishes_after_the_scan(tmp_path: Path) -> None:
    index = scan(write(tmp_path, grid(["a"], ["x"])))
    (tmp_path / index.keys[0]).unlink()
    with pytest.raises(OpenDGError, match=r"a/x/0\.png cannot be read from .*No such file"):
        index.read(0)


def test_real_pacs(shared: Path) -> None:
    index = scan(shared / "data" / "pacs")
    assert index.dataset == "pacs"
    assert index.counts.sum(axis=1).tolist() == [2048, 2344, 1670, 3929]
    with tarfile.open(shared / "data" / "pacs" / "sketch.tar") as tar:
        for key in index.keys[-3:]:
            member = tar.extractfile(key)
            assert member is not None
            assert index.read(index.keys.index(key)) == member.read()


def test_real_digits(shared: Path) -> None:
    index = scan(shared / "data" / "digits_dg")
    assert index.dataset == "digits-dg"
    assert (index.counts == 600).all()
    assert np.bincount(index.part).tolist() == [0, 19200, 4800]


def test_the_scan_opens_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a/x/1.jpg": encoded(noise(), "PNG"), "a/x/2.jpg": b"no image"})
    assert scan(tmp_path).size.tolist() == [len(encoded(noise(), "PNG")), 8]
