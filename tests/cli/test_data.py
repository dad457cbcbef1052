"""opendg data check on a terminal: counts that can be read at 80 columns."""

from __future__ import annotations

import pytest

from opendg.cli import data, show

DOMAINS = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def told(capsys: pytest.CaptureFixture[str], domains: dict[str, int], classes: tuple[str, ...], **more: object) -> str:
    counts = {domain: dict.fromkeys(classes, 1000) for domain in domains}
    data.show({"counts": counts, "expected": {}, "problems": [], "ok": True} | more)
    return capsys.readouterr().out


def test_no_count_is_folded_at_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(show, "width", lambda: 80)
    rows = [line.split() for line in told(capsys, DOMAINS, CLASSES, expected=DOMAINS).splitlines()]
    assert ["class", *DOMAINS] in rows
    assert all([name, *["1000"] * 4] in rows for name in CLASSES)
    assert ["images", *["7000"] * 4] in rows
    assert ["expected", *map(str, DOMAINS.values())] in rows


def test_many_sites_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    sites = {f"site{number}": 3000 for number in range(9)}
    text = told(capsys, sites, ("bolt", "nut", "washer"))
    assert ["domain", "bolt", "nut", "washer", "images"] in [line.split() for line in text.splitlines()]
    assert "expected" not in text


def test_many_classes_are_only_numbered(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, DOMAINS, tuple(f"class{number}" for number in range(65)))
    assert "65 classes" in text
    assert "class7" not in text


@pytest.mark.parametrize(("problems", "said"), [(["One."], "1 thing is off."), (["One.", "Two."], "2 things are off.")])
def test_what_is_off_is_counted(capsys: pytest.CaptureFixture[str], problems: list[str], said: str) -> None:
    assert said in told(capsys, DOMAINS, CLASSES, problems=problems, ok=False)


def test_a_class_may_be_called_domain(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split() for line in told(capsys, {"ink": 1, "wood": 1}, ("bolt", "domain", "nut")).splitlines()]
    assert ["domain", "1000", "1000"] in rows
