"""The page as a reader has it: in a real browser, with mouse and keyboard, in the dark, on a phone and on paper."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opendg
from opendg.bench.records import load_records
from opendg.bench.tables import make_table
from opendg.evaluation import metrics
from opendg.predictions import Predictions
from opendg.report.build import write_report
from opendg.scores.registry import make_score
from tests.bench.results import record
from tests.report.pages import data_of, record_of, run_of, unpack
from tests.report.test_images import rewrite
from tests.report.test_page import NASTY
from tests.report.visits import PHONE, Visit, launched, visit
from tests.tiny import quick


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


@pytest.fixture
def seen(browser: Any, page: Path) -> Iterator[Visit]:
    with visit(browser, page) as found:
        yield found


@pytest.fixture(scope="module")
def ring(page: Path) -> str:
    """The protocol of most runs, in which `ring` is the unknown class."""
    return str(run_of(data_of(page), "erm-wood")["protocol"])


def single_runs(seen: Visit) -> None:
    seen.tab.check('input[name="rows"][value="runs"]')
    seen.settle()


def pick(seen: Visit, page: Path, name: str) -> None:
    numbers = [run["name"] for run in data_of(page)["runs"]]
    seen.choose("#pick", str(numbers.index(name)))


def test_two_protocols_have_two_tables_whose_headers_say_what_they_hold(seen: Visit, page: Path) -> None:
    protocols = sorted({run["protocol"] for run in data_of(page)["runs"]})
    tables = seen.tab.locator("#tables article")
    assert sorted(table.get_attribute("data-protocol") for table in tables.all()) == protocols
    for table, text in zip(tables.all(), seen.texts("#tables article"), strict=True):
        assert table.get_attribute("data-protocol") in text
        for words in ("the last iterate", "H@oracle10", "H@source95", "H@0.5", "Score cls", "convnet"):
            assert words in text
    assert "6 runs of 2 methods under 2 protocols" in seen.tab.inner_text("#summary")


def test_single_runs_show_the_numbers_of_their_records(seen: Visit, page: Path, runs: Path) -> None:
    single_runs(seen)
    seen.choose("#filter-target", "wood")
    seen.choose("#filter-method", "medic")
    record = record_of(runs / "medic-wood")
    for score in record["scores"]:
        seen.choose("#score", score)
        said = record["scores"][score]
        for key in ("oscr", "auroc", "fpr95"):
            assert seen.column(key) == [said[key]]
        assert seen.column("acc") == [record["acc"]]
        cells = seen.texts('#tables td[data-column="oscr"], #tables td[data-column="h@source95"]')
        assert cells == [f"{100 * said['oscr']:.2f}", f"{100 * said['h@source95']['h']:.2f}"]


@pytest.mark.parametrize("name", ["medic-wood", "erm-ink", "plain-wood", "other-wood"])
def test_the_slider_at_a_rules_threshold_gives_the_records_numbers(
    seen: Visit, page: Path, runs: Path, name: str
) -> None:
    pick(seen, page, name)
    for score, said in record_of(runs / name)["scores"].items():
        seen.choose("#score", score)
        for rule in ("h@source95", "h@oracle10", "h@0.5"):
            if said[rule] is None:
                continue
            seen.choose("#rule", rule)
            for mode in (rule, "hand"):  # by the rule; then the slider is left where the rule has put it
                seen.choose("#rule", mode)
                wanted = {"acc_k": said[rule]["acc_k"], "acc_u": said[rule]["acc_u"], "H": said[rule]["h"]}
                assert seen.now() == pytest.approx(wanted, abs=1e-12)
                assert seen.texts("#now [data-now]") == [f"{key} {100 * share:.2f}" for key, share in wanted.items()]


def test_the_slider_counts_as_the_metrics_do(seen: Visit, page: Path, runs: Path) -> None:
    single_runs(seen)
    seen.choose("#score", "bcls")
    pick(seen, page, "erm-wood")
    target = Predictions.load(runs / "erm-wood" / "target-selected.npz")
    score = make_score("bcls")
    values = score.value(score(target))
    thresholds = unpack(data_of(page)["scores"]["bcls"]["values"], "<f8")
    for share in (0.0, 0.2, 0.5, 0.9, 1.0):
        rung = round(share * (len(thresholds) - 1))
        seen.tab.locator("#slider").fill(str(rung))
        seen.settle()
        known = target.known
        curve = metrics.h_curve(values[known], target.correct[known], values[~known], [thresholds[rung]])
        assert seen.now() == pytest.approx({"acc_k": curve.acc_k[0], "acc_u": curve.acc_u[0], "H": curve.h[0]})
        assert seen.tab.input_value("#rule") == "hand"
        chosen = seen.tab.locator("tr[aria-current]")
        cells = [chosen.locator(f'td[data-column="{key}"]').inner_text() for key in ("acc_k", "acc_u", "h")]
        assert cells == [f"{100 * float(number):.2f}" for number in (curve.acc_k[0], curve.acc_u[0], curve.h[0])]
    assert set(seen.column("acc_u")) == {1, None}  # nothing is accepted at the end; one run has no bcls
    assert f"bcls ≥ {seen.tab.inner_text('#value')}" in seen.texts("#tables article")[0]


def test_headers_sort_and_say_how(seen: Visit, ring: str) -> None:
    single_runs(seen)
    seen.choose("#score", "bcls")

    def header(name: str) -> Any:
        return seen.table(ring).get_by_role("columnheader", name=name, exact=True)

    for key, name, down in (("auroc", "AUROC", True), ("oscr", "OSCR", True), ("fpr95", "FPR95", False)):
        for way in (down, not down):
            header(name).get_by_role("button").click()
            seen.settle()
            numbers = seen.column(key, ring)
            assert numbers.pop() is None  # the run without a one-vs-all head has no bcls, and comes last
            assert numbers == sorted(numbers, reverse=way)  # type: ignore[type-var]
            assert len(set(numbers)) > 1
            assert header(name).get_attribute("aria-sort") == ("descending" if way else "ascending")
            assert header("Acc").get_attribute("aria-sort") == "none"
    for way in (False, True):
        header("Target").get_by_role("button").click()
        seen.settle()
        targets = [text for text in seen.table(ring).locator("td.text").all_inner_texts() if not text.isdigit()]
        assert targets == sorted(targets, reverse=way)


def test_filters_narrow_everything(seen: Visit, page: Path) -> None:
    single_runs(seen)
    assert len(seen.column("oscr")) == 6
    seen.choose("#filter-target", "ink")
    assert seen.tab.inner_text("#count") == "Showing 2 of 6 runs."
    assert len(seen.texts("#tables article")) == 1
    assert len(seen.column("oscr")) == 2
    assert seen.texts("#panels figcaption") == ["ink\nknown accepted and right, %"]
    assert len(seen.texts("#command-list > li")) == 2
    assert all("→ ink" in text for text in seen.texts("#pick option"))
    seen.choose("#filter-method", "medic")
    assert len(seen.column("oscr")) == 1
    seen.choose("#filter-target", "")
    assert seen.tab.inner_text("#count") == "Showing 2 of 6 runs."
    for name, values in (("dataset", ["", "signs"]), ("backbone", ["", "convnet"])):
        options = seen.tab.locator(f"#filter-{name} option").all()
        assert [option.get_attribute("value") for option in options] == values


def test_means_are_over_targets_and_incomplete_rows_stand_last(seen: Visit, ring: str, runs: Path) -> None:
    each = [record_of(runs / name)["scores"]["cls"]["oscr"] for name in ("medic-wood", "medic-ink")]
    rows = seen.table(ring).locator("tbody .name")
    number = next(place for place, name in enumerate(rows.all_inner_texts()) if name.startswith("medic"))
    assert seen.column("oscr", ring)[number] == pytest.approx(np.mean(each))
    for column in ("Acc", "AUROC", "FPR95", "Method"):
        for _ in range(2):
            seen.table(ring).get_by_role("columnheader", name=column, exact=True).get_by_role("button").click()
            seen.settle()
            assert "ova=false" in rows.all_inner_texts()[-1]  # one target of two
    rows.filter(has_text="medic").click()  # from a mean to its runs
    seen.settle()
    assert seen.tab.input_value("#filter-method") == "medic"
    assert len(seen.column("oscr")) == 2


def test_means_are_those_of_the_tables(browser: Any, tmp_path: Path) -> None:
    """With uneven seeds, where one could average in several ways."""
    values = {("photo", 0): 0.91, ("photo", 1): 0.95, ("sketch", 0): 0.61, ("sketch", 1): 0.75, ("sketch", 2): 0.64}
    for (target, seed), value in values.items():
        (tmp_path / f"{target}-{seed}.json").write_text(json.dumps(record("erm", target, seed, value)))
    table = make_table("x", load_records(tmp_path), scores=("cls",))
    write_report([tmp_path], tmp_path / "page.html")
    with visit(browser, tmp_path / "page.html") as seen:
        for metric in ("acc", "oscr"):
            said = table.value(table.rows[0], None, metric)
            assert seen.column(metric) == [pytest.approx(said.mean / 100)]  # type: ignore[operator]
            (cell,) = seen.texts(f'#tables td[data-column="{metric}"]')
            assert cell.endswith(f"±{said.spread:.1f}")
        assert "± over the seeds that have every target" in seen.texts("#tables article")[0]


def test_curves_have_a_panel_for_each_target_and_a_line_for_each_run(seen: Visit, page: Path) -> None:
    assert len(seen.texts("#panels figure")) == 3  # ink and wood, and wood of the other protocol
    seen.choose("#filter-target", "wood")
    lines = [panel.locator("path.line").count() for panel in seen.tab.locator("#panels figure").all()]
    assert sorted(lines) == [1, 3]
    line = seen.tab.locator("#panels path.line").first.get_attribute("d")
    assert line.startswith("M34 232")  # (0, 0)
    assert line.endswith(f"L288 {line.split(' ')[-1]}")  # (1, Acc)
    classes = {path.get_attribute("class") for path in seen.tab.locator("#legend path").all()}
    assert len(classes) == 3  # colour and dash of their own, the same under both protocols


def test_the_keyboard_reaches_everything_in_order(browser: Any, page: Path) -> None:
    with visit(browser, page) as seen:
        order = []
        for _ in range(200):
            seen.tab.keyboard.press("Tab")
            order.append(seen.focused())
            if order[-1] == "Copy" or order[-1].startswith("copy"):
                break
        assert order[0] == "Skip to the leaderboard"
        wanted = ["filter-dataset", "filter-target", "score", "rule", "slider", "table 0", "sort 0 oscr", "pick"]
        wanted.append("plane")
        places = [order.index(name) for name in wanted]
        assert places == sorted(places)
        seen.tab.focus("#slider")
        before = int(seen.tab.input_value("#slider"))
        seen.press("ArrowRight", "ArrowRight", "ArrowRight")
        assert int(seen.tab.input_value("#slider")) == before + 3
        assert seen.focused() == "slider"
        said = seen.tab.get_attribute("#slider", "aria-valuetext")
        assert said == f"cls of {seen.tab.inner_text('#value')} or more"
        seen.press("End")
        assert seen.now()["acc_u"] == 1
        seen.press("Home")
        assert seen.now()["acc_u"] == 0


def test_focus_stays_where_it_was_when_the_table_is_drawn_anew(seen: Visit) -> None:
    single_runs(seen)
    seen.tab.locator('[data-focus="sort 0 auroc"]').focus()
    seen.press("Enter")
    assert seen.focused() == "sort 0 auroc"
    once = seen.column("auroc")
    seen.press("Space")
    assert seen.focused() == "sort 0 auroc"
    assert seen.column("auroc") != once


def test_the_skip_link_leads_past_the_controls(seen: Visit) -> None:
    seen.press("Tab", "Enter")
    assert seen.focused() == "leaderboard"


def test_pointing_at_the_plane_names_the_image(seen: Visit, page: Path) -> None:
    pick(seen, page, "erm-wood")
    tip, plane = seen.tab.locator("#plane-tip"), seen.tab.locator("#plane svg")
    assert tip.is_hidden()
    plane.scroll_into_view_if_needed()
    box = plane.bounding_box()
    x, y = seen.tab.evaluate(
        "() => { const m = document.querySelector('#plane .point').getAttribute('transform').match(/[\\d.]+/g);"
        " return m.map(Number); }"
    )
    seen.tab.mouse.move(box["x"] + x * box["width"] / 600, box["y"] + y * box["height"] / 600)
    assert tip.is_visible()
    shown = run_of(data_of(page), "erm-wood")["images"]
    first = shown["plane"]["at"][0]
    assert shown["keys"][first] in tip.inner_text()
    assert shown["classes"][first] in tip.inner_text()
    assert tip.locator("img").evaluate("(image) => image.naturalWidth") == 32
    seen.tab.mouse.move(5, 5)
    assert tip.is_hidden()
    plane.focus()
    keys = set()
    for key in ("ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown", "ArrowDown"):
        seen.press(key)
        keys.add(tip.inner_text())
    assert len(keys) > 2
    seen.press("Escape")
    assert tip.is_hidden()


def test_outcomes_and_gallery_follow_the_slider(seen: Visit, page: Path, runs: Path) -> None:
    pick(seen, page, "erm-wood")
    record = record_of(runs / "erm-wood")
    unknown, known = (seen.tab.locator(f'.mistakes[data-part="{part}"] li') for part in ("unknown", "known"))
    slider = seen.tab.locator("#slider")
    slider.fill("0")  # all accepted
    seen.settle()
    assert (unknown.count(), known.count()) == (6, 0)
    assert seen.tab.locator("#plane .point.rejected, #plane .point.out").count() == 0
    assert f"unknown, accepted: {record['n_unknown']}" in seen.tab.inner_text("#outcomes")
    assert unknown.locator("img").count() == 6
    assert "None at this threshold" in seen.tab.inner_text('.mistakes[data-part="known"]')
    slider.fill(slider.get_attribute("max"))  # all rejected
    seen.settle()
    assert (unknown.count(), known.count()) == (0, 6)
    assert f"known, rejected: {record['n_known']}" in seen.tab.inner_text("#outcomes")
    assert seen.tab.locator("#plane .point.right, #plane .point.in").count() == 0
    assert "ring" not in seen.tab.inner_text('.mistakes[data-part="known"]')


@pytest.mark.parametrize("rule", ["h@source95", "h@oracle10"])
def test_marks_of_the_plane_are_the_counts_of_the_bars(seen: Visit, page: Path, rule: str) -> None:
    pick(seen, page, "medic-wood")
    for score in ("cls", "bcls", "energy"):
        seen.choose("#score", score)
        seen.choose("#rule", rule)
        counts = [int(text.split(": ")[1].split()[0]) for text in seen.texts(".outcomes li")]
        names = ("right", "wrong", "rejected", "out", "in")
        assert [seen.tab.locator(f"#plane .point.{name}").count() for name in names] == counts
        assert sum(counts) == 64  # the plane holds every image here
        assert counts[0] / 48 == pytest.approx(seen.now()["acc_k"])


def test_commands_are_shown_as_they_were_recorded(seen: Visit, runs: Path) -> None:
    wanted = {record_of(run)["command"] for run in runs.iterdir()}
    assert {text.strip() for text in seen.texts("#command-list code")} == wanted
    seen.tab.locator("#command-list summary").first.click()
    text = seen.texts("#command-list details dl")[0]
    assert "iterations=25" in text
    assert "torch=" in text


def test_runs_of_one_command_share_it(seen: Visit) -> None:
    single = seen.tab.locator("#command-list > li").filter(has_text="medic 2 runs")
    assert single.count() == 1
    assert single.locator("code").count() == 1
    single.locator("summary").click()
    assert single.locator("h4").all_inner_texts() == [
        "medic → ink, seed 0 medic-ink",
        "medic → wood, seed 0 medic-wood",
    ]
    assert single.locator("dl").count() == 2


def test_of_many_classes_the_first_are_named(browser: Any, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run", ignore=shutil.ignore_patterns("*.npz")))
    classes = [f"class {number}" for number in range(65)]
    (run / "evaluation-selected.json").write_text(json.dumps(record_of(run) | {"known": classes}))
    write_report([run], tmp_path / "page.html")
    with visit(browser, tmp_path / "page.html") as seen:
        facts = seen.tab.locator("#tables .facts")
        assert "class 11 and 53 more" in facts.inner_text()
        assert "class 12" not in facts.inner_text()
        assert facts.get_by_title("class 64").count() == 1
        assert "Unknown ring" in facts.inner_text()


BROKEN_OPTIONS = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("#command-list"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode())
    for (const match of walker.currentNode.data.matchAll(/--[a-z-]+/g)) {
      const range = document.createRange();
      range.setStart(walker.currentNode, match.index);
      range.setEnd(walker.currentNode, match.index + match[0].length);
      found.push([match[0], new Set([...range.getClientRects()].map((box) => box.top)).size]);
    }
  return found;
}"""


def test_no_option_of_a_command_is_broken_over_two_lines(browser: Any, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))
    command = "opendg train erm --data pacs " + " ".join(f"--out r{'/long' * n} --each-target all" for n in range(9))
    (run / "evaluation-selected.json").write_text(json.dumps(record_of(run) | {"command": command}))
    write_report([run], tmp_path / "page.html", points=0, mistakes=0)
    with visit(browser, tmp_path / "page.html", **PHONE) as seen:
        assert seen.texts("#command-list code") == [command]
        lines = seen.tab.evaluate(BROKEN_OPTIONS)
        assert len(lines) == 19
        assert {option for option, number in lines if number != 1} == set()
        assert seen.tab.inner_text("#summary") == "1 run of 1 method under 1 protocol."


def grounds(seen: Visit) -> tuple[float, float]:
    """Lightness of ground and ink, 0 to 1."""
    colours = seen.tab.evaluate("() => ['backgroundColor', 'color'].map((n) => getComputedStyle(document.body)[n])")
    means = [np.mean([float(part) for part in colour[4:-1].split(",")]) / 255 for colour in colours]
    return float(means[0]), float(means[1])


def test_dark_is_dark_and_paper_is_white(browser: Any, page: Path) -> None:
    with visit(browser, page) as seen:
        ground, ink = grounds(seen)
        assert (ground > 0.9, ink < 0.2) == (True, True)
    with visit(browser, page, color_scheme="dark") as seen:
        ground, ink = grounds(seen)
        assert (ground < 0.2, ink > 0.8) == (True, True)
        seen.tab.emulate_media(media="print")
        assert grounds(seen)[0] == 1
        assert not seen.tab.locator("#filters").is_visible()
        assert seen.tab.locator("#command-list code").first.is_visible()
        assert seen.tab.pdf(format="A4").startswith(b"%PDF")


def test_runs_of_two_protocols_are_told_apart_by_their_titles(browser: Any, runs: Path, tmp_path: Path) -> None:
    names = ("erm-wood", "other-wood", "medic-wood")
    write_report([runs / name for name in names], tmp_path / "page.html", points=0, mistakes=0)
    with visit(browser, tmp_path / "page.html") as seen:
        first, second, alone = sorted(seen.texts("#pick option"), key=lambda title: ("medic" in title, title))
        assert alone == "medic → wood, seed 0", "no longer than it must be"
        assert first != second
        assert first.startswith("erm, ova=true → wood, seed 0 (signs:shared:3+1:")


OVERLAPS = """() => {
  const texts = [...document.querySelectorAll("#chart text")].filter((e) => e.textContent.trim());
  const boxes = texts.map((e) => [e.textContent, e.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2;
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([two]) => [one, two]));
}"""


@pytest.mark.parametrize("width", [320, 1280])
def test_no_word_of_the_chart_lies_upon_another(browser: Any, page: Path, width: int) -> None:
    with visit(browser, page, viewport={"width": width, "height": 800}) as seen:
        for option in seen.tab.locator("#pick option").all():
            seen.choose("#pick", option.get_attribute("value"))
            assert seen.tab.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("width", [320, 390, 820])
def test_a_narrow_screen_scrolls_tables_and_not_the_page(browser: Any, page: Path, width: int) -> None:
    with visit(browser, page, **(PHONE | {"viewport": {"width": width, "height": 800}})) as seen:
        for rows in ("methods", "runs"):
            seen.tab.check(f'input[name="rows"][value="{rows}"]')
            seen.settle()
            assert seen.tab.evaluate("() => document.documentElement.scrollWidth") == width
        wide = seen.tab.evaluate(
            "() => [...document.querySelectorAll('main *')]"
            ".filter((e) => !e.closest('.scroll, .tip, svg')"
            " && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"
        )
        assert wide == []
        seen.tab.locator("#slider").fill("40")
        seen.settle()
        assert seen.tab.input_value("#rule") == "hand"
        seen.tab.locator("#plane svg").tap()


@pytest.mark.parametrize("width", [320, 390, 820])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_bar_says_what_is_slid_and_whose_numbers_they_are(
    browser: Any, page: Path, width: int, scheme: str
) -> None:
    screen = PHONE | {"viewport": {"width": width, "height": 844}, "color_scheme": scheme}
    with visit(browser, page, **screen) as seen:
        seen.tab.evaluate("() => document.getElementById('run').scrollIntoView()")
        seen.settle()
        for words in ("Accept as known from", seen.tab.locator("#pick option:checked").inner_text()):
            box = seen.tab.locator("#bar").get_by_text(words, exact=True).bounding_box()
            assert box is not None
            assert box["width"] > 100
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
            assert box["height"] > 10
        bar, title = (seen.tab.locator(name).bounding_box() for name in ("#bar", "#run-title"))
        assert bar["y"] + bar["height"] <= title["y"] + 1, "the bar covers what a link leads to"
        assert bar["height"] < 844 / 4


def test_every_control_has_a_name(seen: Visit) -> None:
    nameless = seen.tab.evaluate(
        "() => [...document.querySelectorAll('button, select, input, [tabindex=\"0\"], svg[role], img')]"
        ".filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim() || e.alt"
        " || e.closest('.tip'))).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    levels = seen.tab.evaluate("() => [...document.querySelectorAll('h1, h2, h3')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1
    assert max(np.diff(levels)) <= 1
    ids = seen.tab.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def test_records_alone_make_a_leaderboard(browser: Any, runs: Path, tmp_path: Path) -> None:
    for name in ("erm-wood", "medic-wood"):
        shutil.copy(runs / name / "evaluation-selected.json", tmp_path / f"{name}.json")
    write_report([tmp_path], tmp_path / "page.html")
    record = record_of(runs / "erm-wood")["scores"]["bcls"]
    with visit(browser, tmp_path / "page.html") as seen:
        assert sorted(filter(None, seen.column("oscr")))
        assert record["h@source95"]["acc_k"] in seen.column("acc_k")  # as the record says, nothing is counted
        assert seen.tab.is_disabled("#slider")
        assert "No run shown here keeps per-image" in seen.tab.inner_text("#panels")
        assert "without predictions" in seen.tab.inner_text("#gallery")
        seen.choose("#rule", "h@oracle10")
        assert record["h@oracle10"]["h"] in seen.column("h")


def test_images_that_are_gone_leave_placeholders(browser: Any, runs: Path, signs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))
    (run / "run.json").write_text((run / "run.json").read_text().replace(str(signs), str(tmp_path / "gone")))
    rewrite(run, features=None)
    write_report([run], tmp_path / "page.html")
    with visit(browser, tmp_path / "page.html") as seen:
        seen.tab.locator("#slider").fill("0")
        seen.settle()
        assert set(seen.texts(".mistakes .no-image")) == {"image not at hand"}
        assert "--root" in seen.tab.inner_text("#gallery .note")
        assert "no features" in seen.tab.inner_text("#plane-note")
        assert seen.tab.locator("#plane svg").count() == 0
        assert seen.tab.locator("#chart path.line").count() == 3


def test_a_closed_set_run_has_no_unknown_and_no_h(browser: Any, signs: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", str(signs), out=tmp_path / "closed", **(quick() | {"unknown": None, "known": 4}))
    opendg.evaluate(run.path, device="cpu")
    write_report([tmp_path / "closed"], tmp_path / "page.html", points=20)
    with visit(browser, tmp_path / "page.html") as seen:
        assert seen.tab.input_value("#rule") == "hand"
        assert seen.column("acc") == [record_of(tmp_path / "closed")["acc"]]
        assert seen.column("h") == [None]
        assert seen.column("acc_k") == seen.column("acc")  # all accepted
        assert "None at this threshold" in seen.tab.inner_text('.mistakes[data-part="unknown"]')


def test_a_strangers_run_cannot_act(browser: Any, runs: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs / "erm-wood", tmp_path / "run"))
    record = record_of(run)
    names = dict.fromkeys(("dataset", "protocol", "target", "method", "backbone", "selection"), NASTY)
    origin = dict.fromkeys(("command", "commit", "created", "machine"), NASTY)
    lists = {"known": [NASTY, f"{NASTY}2", "__proto__"], "unknown": [NASTY], "sources": [NASTY]}
    scores = {"constructor": record["scores"]["cls"], NASTY: record["scores"]["cls"]}
    lists |= {"recipe": [NASTY], "notes": [NASTY]}
    changed = record | names | origin | lists | {"settings": {NASTY: {NASTY: NASTY}}}
    changed["scores"] = record["scores"] | scores
    (run / "evaluation-selected.json").write_text(json.dumps(changed))
    rewrite(run, keys=np.array([f"{NASTY}/{number}" for number in range(64)]))
    write_report([run, runs / "erm-ink"], tmp_path / "page.html", title=NASTY)
    with visit(browser, tmp_path / "page.html") as seen:
        assert seen.tab.title() == NASTY
        assert seen.tab.inner_text("h1") == NASTY
        single_runs(seen)
        for score in ("cls", "constructor", NASTY, "bcls"):
            seen.choose("#score", score)
        pick(seen, tmp_path / "page.html", "run")
        seen.tab.locator("#slider").fill("0")
        seen.settle()
        seen.tab.locator("#plane svg").focus()
        seen.press("ArrowRight")
        assert NASTY in seen.tab.inner_text("#plane-tip")
        slider = seen.tab.locator("#slider")
        slider.fill(slider.get_attribute("max"))
        seen.settle()
        assert NASTY in seen.tab.inner_text("#gallery")
        assert NASTY in seen.texts("#command-list code")
        facts = seen.tab.locator("#command-list li").filter(has_text=" run").locator("dl")
        assert f"chosen{NASTY}" in facts.first.text_content()
        assert seen.tab.evaluate("() => window.hacked") is None
        assert seen.tab.locator("script").count() == 2
        assert seen.tab.locator("img:not([src^='data:image/webp'])").count() == 0
