from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opendg.data import catalog
from opendg.data.check import check
from opendg.data.index import Index, Place
from opendg.data.tree import scan
from opendg.data.workers import Workers
from opendg.errors import OpenDGError
from tests.data.trees import encoded, grid, noise, pack, png, write

VLCS = catalog.get("vlcs")


def test_a_sound_tree_of_ones_own(tmp_path: Path) -> None:
    report = check(write(tmp_path / "mine", grid(["a", "b"], ["x", "y"], each=2)), progress=False)
    assert report.ok
    assert (report.dataset, report.compared_with) == ("mine", None)
    assert report.counts == {"a": {"x": 2, "y": 2}, "b": {"x": 2, "y": 2}}
    assert json.loads(json.dumps(report.to_json()))["ok"] is True


def test_unreadable_images_are_named_with_the_reason(tmp_path: Path) -> None:
    jpg = encoded(noise(), "JPEG")
    files = grid(["a", "b"], ["x"]) | {"a/x/cut.jpg": jpg[:-40], "b/x/page.png": b"<html>", "b/x/empty.bmp": b""}
    report = check(write(tmp_path, files), progress=False)
    assert not report.ok
    assert list(report.unreadable) == ["a/x/cut.jpg", "b/x/empty.bmp", "b/x/page.png"]
    assert "truncated" in report.unreadable["a/x/cut.jpg"]
    assert any("b/x/page.png is unreadable: not an image" in problem for problem in report.problems)


def test_an_image_that_may_not_be_read_ends_in_one_full_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Place) -> bytes:
        raise OpenDGError(f"{self.key} may not be read.")

    monkeypatch.setattr(Place, "read", refuse)
    (problem, *_) = check(write(tmp_path, grid(["a", "b"], ["x", "y"])), progress=False).problems
    assert problem == "a/x/0.png is unreadable: a/x/0.png may not be read."


def test_an_image_that_has_gone_is_told_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scanned(root: Path) -> Index:
        index = scan(root)
        (root / "a/x/0.png").unlink()
        return index

    monkeypatch.setattr("opendg.data.check.scan", scanned)
    report = check(write(tmp_path, grid(["a", "b"], ["x"])), progress=False)
    assert list(report.unreadable) == ["a/x/0.png"]
    assert "No such file" in report.unreadable["a/x/0.png"]


def test_the_order_in_which_workers_are_done_does_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{domain}/x/{i}.png": png(i) for domain in "ab" for i in range(3)}
    write(tmp_path, files | {f"{domain}/x/cut.jpg": domain.encode() for domain in "ab"})
    report = check(tmp_path, progress=False)
    assert len(report.duplicates) == 3

    def backwards(self: Workers, function: Any, jobs: list[Any]) -> Iterator[tuple[int, Any]]:
        return ((number, function(jobs[number])) for number in reversed(range(len(jobs))))

    monkeypatch.setattr("opendg.data.check.JOB", 1)
    monkeypatch.setattr(Workers, "spread", backwards)
    again = check(tmp_path, progress=False)
    assert again == report
    assert list(again.unreadable) == list(report.unreadable)


def test_names_that_look_like_one_are_told(tmp_path: Path) -> None:
    files = {
        "north/Dog/1.png": png(1),
        "south/dog/1.png": png(2),
        "South/cat/1.png": png(3),
        "north/hot dog/1.png": png(4),
    }
    report = check(write(tmp_path, files | {"south/hot_dog/1.png": png(5)}), progress=False)
    assert report.problems == [
        "The domains 'South' and 'south' look like one: give their folders the same name, if they are.",
        "The classes 'Dog' and 'dog' look like one: give their folders the same name, if they are.",
        "The classes 'hot dog' and 'hot_dog' look like one: give their folders the same name, if they are.",
    ]


def test_duplicates_across_domains_and_classes(tmp_path: Path) -> None:
    files = grid(["a", "b"], ["x", "y"]) | {"a/x/p.png": png(90), "b/y/p.png": png(90), "a/x/q.png": png(91)}
    pack(tmp_path / "c.tar", {"c/x/q.png": png(91), "c/x/r1.png": png(92), "c/x/r2.png": png(92)})
    report = check(write(tmp_path, files), progress=False)
    assert report.duplicates == [["a/x/p.png", "b/y/p.png"], ["a/x/q.png", "c/x/q.png"]]
    assert report.repeats == [["c/x/r1.png", "c/x/r2.png"]]
    assert report.problems == [
        "The same image 2 times: a/x/p.png, b/y/p.png.",
        "The same image 2 times: a/x/q.png, c/x/q.png.",
        "The same image more than once in a class, so that copies may be trained on and validated with: "
        "c/x/r1.png, c/x/r2.png.",
    ]


def test_duplicates_of_two_classes_in_one_domain_and_of_two_parts(tmp_path: Path) -> None:
    """The second share a class, so that no label is in doubt."""
    files = {"a/train/x/1.png": png(1), "a/train/y/1.png": png(1), "a/train/x/2.png": png(2), "a/val/x/2.png": png(2)}
    report = check(write(tmp_path, files), progress=False)
    assert report.duplicates == [["a/train/x/1.png", "a/train/y/1.png"]]
    assert report.repeats == [["a/train/x/2.png", "a/val/x/2.png"]]
    assert "validated with: a/train/x/2.png, a/val/x/2.png." in report.problems[-1]


def test_copies_within_the_images_of_one_part_do_no_harm(tmp_path: Path) -> None:
    files = {"a/train/x/1.png": png(1), "a/train/x/2.png": png(1), "a/val/x/3.png": png(3)}
    files |= {"a/val/y/1.png": png(4), "a/val/y/2.png": png(4), "b/x/1.png": png(5)}
    report = check(write(tmp_path, files), progress=False)
    assert (report.repeats, report.problems) == (
        [["a/train/x/1.png", "a/train/x/2.png"], ["a/val/y/1.png", "a/val/y/2.png"]],
        [],
    )


def test_many_images_in_several_places_are_counted(tmp_path: Path) -> None:
    copied = {f"{domain}/x/{i}.png": png(i) for domain in "ab" for i in range(13)} | {"a/y/0.png": png(99)}
    problems = check(write(tmp_path, copied), progress=False).problems
    assert len(problems) == 11
    assert problems[-1] == "Images in several places beside these 10: 3 more."


def test_ten_images_in_several_places_are_all_told(tmp_path: Path) -> None:
    copied = {f"{domain}/x/{i}.png": png(i) for domain in "ab" for i in range(10)} | {"a/y/0.png": png(99)}
    assert len(check(write(tmp_path, copied), progress=False).problems) == 10


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    files = grid(["a", "b"], ["x", "y"]) | {"a/notes.txt": b"", "a/loose.png": png(70), "top.jpg": png(71)}
    files |= {f"b/x/{i}.HEIC": b"?" for i in range(5)}
    files |= dict.fromkeys(("c.tar.gz", "d.TAR", "e.zip", ".hidden.zip"), b"?")
    assert check(write(tmp_path, files), progress=False).problems == [
        "Left out, for they lie beside the class folders: a/loose.png, top.jpg.",
        "Left out, for only .jpg, .jpeg, .png, .webp, .bmp, .tif, .tiff, .gif are read: b/x/0.HEIC, b/x/1.HEIC, "
        "b/x/2.HEIC ... (5 in all).",
        "Left out, for a domain is a folder or an uncompressed .tar: c.tar.gz, d.TAR, e.zip.",
    ]


def test_names_with_a_comma_cannot_be_given(tmp_path: Path) -> None:
    (problem,) = check(write(tmp_path, grid(["a", "b"], ["nut, M6", "nut"])), progress=False).problems
    assert problem == "The class 'nut, M6' has a comma, which parts names in commands: rename its folder."


def test_a_single_domain_or_class_cannot_be_trained_on(tmp_path: Path) -> None:
    assert check(write(tmp_path, grid(["site"], ["nut"])), progress=False).problems == [
        "There is only one domain, site: one is held out as the target, so two or more are needed.",
        "There is only one class, nut: they are told apart, so two or more are needed.",
    ]


def test_one_name_written_in_two_ways(tmp_path: Path) -> None:
    """As a Mac and another machine do."""
    files = {"a/w\u00e4sher/1.png": png(1), "b/wa\u0308sher/1.png": png(2)}
    (problem,) = check(write(tmp_path, files), progress=False).problems
    assert problem.startswith("The classes 'wa\\u0308sher' and 'w\\xe4sher' look like one")


def test_the_same_broken_bytes_twice_are_broken_not_duplicates(tmp_path: Path) -> None:
    report = check(write(tmp_path, grid(["a"], ["x"]) | {"a/x/1.jpg": b"", "a/y/1.jpg": b""}), progress=False)
    assert (len(report.unreadable), report.duplicates) == (2, [])


def test_counts_against_the_catalogue(tmp_path: Path) -> None:
    report = check(write(tmp_path, grid(VLCS.domains, VLCS.classes, each=1)), progress=False)
    assert report.compared_with == "vlcs"
    assert report.expected["SUN09"] == 3282
    assert report.expected_cells["SUN09"]["bird"] == 20
    assert "The domain SUN09 has 5 images, expected 3282: bird 1 instead of 20, car 1 instead of 932" in "".join(
        report.problems
    )


@pytest.mark.parametrize(
    ("images", "expected", "problems"),
    [
        ({"a": 2, "b": 2}, {"a": 2, "b": 2}, []),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, []),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}, ["The domain b has 3 images, expected 2."]),
    ],
)
def test_of_several_editions_the_nearest_is_compared_with(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    images: dict[str, int],
    expected: dict[str, int],
    problems: list[str],
) -> None:
    """By the totals of domains, where no more is known of them."""
    newest, older = {"a": 2, "b": 2}, {"a": 1, "b": 2}
    entry = replace(VLCS, name="mine", domains=("a", "b"), classes=("x",), counts=newest, editions=(older,), cells={})
    monkeypatch.setitem(catalog.DATASETS, "mine", entry)
    seeds = iter(range(9))
    files = {f"{domain}/x/{n}.png": png(next(seeds)) for domain, count in images.items() for n in range(count)}
    report = check(write(tmp_path, files), "mine", progress=False)
    assert (report.expected, report.problems) == (expected, problems)


def test_a_dataset_is_compared_when_asked_for_though_not_recognised(tmp_path: Path) -> None:
    root = write(tmp_path, grid(["SUN09", "VOC2007", "Mine"], ["bird", "cow"]))
    assert check(root, progress=False).ok
    problems = check(root, "VLCS", progress=False).problems
    assert problems[:2] == ["The domain Caltech101 of VLCS is missing.", "The domain LabelMe of VLCS is missing."]
    assert "The domain Mine is none of VLCS." in problems
    assert "The class cow is none of VLCS." in problems
    assert "The class dog of VLCS is missing." in problems


def test_wrong_lists_are_a_problem(tmp_path: Path) -> None:
    pacs = catalog.get("pacs")
    files = grid(pacs.domains, pacs.classes) | {"splits/photo_train_kfold.txt": b"photo/dog/0.png 3"}
    assert any(
        "label 3 does not agree" in problem for problem in check(write(tmp_path, files), progress=False).problems
    )


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="no dataset 'pasc': did you mean 'pacs'"):
        check(tmp_path, "pasc")


@pytest.mark.slow
def test_real_pacs_is_sound(shared: Path) -> None:
    report = check(shared / "data" / "pacs", progress=False)
    assert report.ok
    assert (report.compared_with, report.repeats) == ("pacs", [])
    assert report.expected_cells == report.counts
    assert report.train == {"art_painting": 1840, "cartoon": 2107, "photo": 1499, "sketch": 3531}
