"""Tables on a terminal: what is in a cell is shown as it is, whole, and on the side where it is read."""

from __future__ import annotations

import re

import pytest

from opendg.cli import show
from opendg.errors import counted

WIDE = "protocol photos:shared:3+1; 60 known and 20 unknown images; weights: the last iterate."


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_names_in_brackets_are_names_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("[red]Title", ["[b]image"], [["[bold]x.jpg"], ["site[/2]/y.jpg"]], "[dim]note")
    text = capsys.readouterr().out
    for name in ("[red]Title", "[b]image", "[bold]x.jpg", "site[/2]/y.jpg", "[dim]note"):
        assert name in text


def test_what_is_longer_than_its_column_is_folded_and_not_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "width", lambda: 40)
    address = "https://example.org/" + "0123456789" * 6
    show.table("Papers", ["name", "paper"], [["one", address]])
    shown = lines(capsys)
    assert "".join(line.removeprefix("  one").strip() for line in shown[4:]) == address
    assert max(map(len, shown)) <= 40


def test_a_small_table_leaves_its_title_and_note_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("pacs-resnet18: what would run", ["method", "runs"], [["erm", "4"]], WIDE)
    shown = lines(capsys)
    assert shown[0] == "pacs-resnet18: what would run"
    assert shown[-1] == WIDE


@pytest.mark.parametrize("numbers", [["-", "30.23"], ["5e-05", "0.001"], ["-3.5", "-"]])
def test_numbers_stand_to_the_right_whatever_is_first(capsys: pytest.CaptureFixture[str], numbers: list[str]) -> None:
    show.table("Scores", ["a long header", "b"], [[number, "x"] for number in numbers])
    found = [line.index(f" {number} ") + len(number) for line, number in zip(lines(capsys)[4:], numbers, strict=False)]
    assert found[0] == found[1], "numbers end in one column"


def test_words_stand_to_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("Labels", ["label"], [["unknown"], ["3"]])
    assert lines(capsys)[-3:-1] == ["  unknown", "  3"]


def test_no_number_and_no_name_is_lost_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "width", lambda: 30)
    show.table("Run", ["score", *"abcdef"], [["max-logit", *["100.00"] * 6], ["mahalanobis", *["46.67"] * 6]])
    assert [line.split() for line in lines(capsys)[-3:-1]] == [
        ["max-logit", *["100.00"] * 6],
        ["mahalanobis", *["46.67"] * 6],
    ]


@pytest.mark.parametrize("columns", [60, 80])
def test_many_losses_leave_room_for_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(columns)}.items():
        monkeypatch.setenv(name, value)
    losses = dict.fromkeys(("ce", "ova", "distance", "entropy", "consistency"), 1.0)
    with show.Progress("crossmatch -> fabric") as progress:
        progress(50, 4000, losses)
        progress(4000, 4000, losses)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err).rsplit("\r", 1)[-1]
    assert "crossmatch -> fabric" in last
    assert "4000/4000 0:00:00 ce 1.000" in last


@pytest.mark.parametrize(("number", "said"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_one_of_a_thing_is_not_told_as_several(number: int, said: str) -> None:
    assert counted(number, "run") == said


def test_a_plural_of_another_form_is_given() -> None:
    assert [counted(number, "search is", "searches are") for number in (1, 2)] == ["1 search is", "2 searches are"]
