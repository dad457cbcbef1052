"""Tables: means, spreads, published numbers, headers, and what is refused."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import subprocess
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opendg.bench.plan import Entry
from opendg.bench.published import published
from opendg.bench.records import load_records, take_weights
from opendg.bench.render import comma_separated, latex, markdown, markdown_table, write_table
from opendg.bench.tables import Table, make_table
from opendg.errors import OpenDGError
from tests.bench.results import record, result

PHOTO = {0: 0.90, 1: 0.92, 2: 0.97}
PACS = published("pacs-resnet18")


def pacs(**more: object) -> Table:
    """ERM over four targets and three seeds, on the paper's protocol."""
    found = [
        result("erm", target, seed, value - 0.1 * number)
        for number, target in enumerate(("photo", "art_painting", "cartoon", "sketch"))
        for seed, value in PHOTO.items()
    ]
    return make_table("pacs", found, reference=PACS, scores=("cls",), **more)  # type: ignore[arg-type]


def test_mean_and_spread_are_over_seeds() -> None:
    table = pacs()
    (erm,) = [row for row in table.rows if row.results]
    value = table.value(erm, "photo", "oscr")
    assert value.mean == pytest.approx(93.0)
    assert value.spread == pytest.approx(100 * statistics.stdev(PHOTO.values()))
    assert value.count == 3
    assert value.published == 95.11
    assert value.difference == pytest.approx(93.0 - 95.11)
    average = table.value(erm, None, "oscr")
    assert average.mean == pytest.approx(93.0 - 15.0)
    assert average.spread == pytest.approx(value.spread), "seeds move all targets alike"
    assert table.value(erm, "photo", "acc").mean == pytest.approx(103.0)
    assert table.value(erm, "photo", "h@oracle10").mean == pytest.approx(98.0)


@given(st.lists(st.lists(st.floats(0.01, 0.9), min_size=3, max_size=3), min_size=1, max_size=4))
def test_the_average_is_that_of_the_seeds_means(values: list[list[float]]) -> None:
    targets = ("cartoon", "photo", "sketch")
    found = [result("erm", t, s, v) for s, row in enumerate(values) for t, v in zip(targets, row, strict=True)]
    table = make_table("x", found, scores=("cls",))
    value = table.value(table.rows[0], None, "oscr")
    means = [100 * statistics.fmean(row) for row in values]
    assert value.mean == pytest.approx(statistics.fmean(means))
    assert value.spread == (pytest.approx(statistics.stdev(means), abs=1e-9) if len(means) > 1 else None)


@given(st.dictionaries(st.tuples(st.sampled_from("pcs"), st.integers(0, 3)), st.floats(0.01, 0.9), min_size=1))
def test_the_average_is_the_mean_of_its_row(found: dict[tuple[str, int], float]) -> None:
    """However many seeds a target has. The spread is over the seeds that have every target."""
    table = make_table("x", [result("erm", target, seed, value) for (target, seed), value in found.items()])
    (row,) = [row for row in table.rows if row.score == "cls"]
    columns = [table.value(row, target, "oscr") for target in table.columns]
    average = table.value(row, None, "oscr")
    assert average.mean == pytest.approx(statistics.fmean(value.mean for value in columns if value.mean is not None))
    whole = [s for s in range(4) if all((target, s) in found for target in table.columns)]
    means = [statistics.fmean(100 * found[target, seed] for target in table.columns) for seed in whole]
    assert average.count == len(whole)
    assert average.spread == (pytest.approx(statistics.stdev(means), abs=1e-9) if len(means) > 1 else None)


def test_the_average_wants_every_target() -> None:
    found = [result("erm", "photo", 0), result("erm", "sketch", 0), result("erm", "photo", 1)]
    table = make_table("x", found, scores=("cls",))
    assert table.value(table.rows[0], None, "oscr").count == 1
    assert table.value(table.rows[0], "photo", "oscr").count == 2
    fewer = make_table("x", [*found[:1], *found[2:], result("medic", "sketch")], scores=("cls",))
    erm = fewer.value(fewer.rows[0], None, "oscr")
    assert (fewer.rows[0].method, erm.mean, erm.count) == ("erm", None, 0), "sketch is a target of the table"
    alone = make_table("x", [result("erm", "photo"), result("medic", "sketch")], scores=("cls",))
    assert alone.value(alone.rows[0], None, "oscr").mean is None


def test_rows_follow_the_paper_and_what_it_does_not_have_comes_last() -> None:
    found = [
        result("erm"), result("medic", scores={"bcls": 0.7, "energy": 0.8}), result("erm", chosen={"ova": True}),
    ]  # fmt: skip
    table = make_table("x", found, reference=PACS, entries=[Entry("erm", "ERM+", {"ova": True}), Entry("medic")])
    labels = [row.label for row in table.rows]
    assert labels[: len(PACS.rows)] == [row.name for row in PACS.rows]
    assert labels[len(PACS.rows) :] == ["ERM+-cls", "MEDIC-energy"]
    assert [row.label for row in table.rows if row.results] == [
        "ERM",
        "MEDIC-cls",
        "MEDIC-bcls",
        "ERM+-cls",
        "MEDIC-energy",
    ]


def test_a_run_of_two_entries_is_shown_with_the_scores_of_both() -> None:
    """Two entries of a plan that are one run: the second's scores were asked for too."""
    found = [result("erm", scores={"energy": 0.6, "bcls": 0.7, "vim": 0.8}), result("medic", scores={"bcls": 0.7})]
    entries = [Entry("erm", scores=("vim", "own")), Entry("medic"), Entry("erm", scores=("energy", "cls"))]
    labels = [row.label for row in make_table("x", found, entries=entries, scores=("bcls",)).rows]
    assert labels == ["ERM-vim", "ERM-cls", "ERM-energy", "MEDIC-bcls"]
    plain = make_table("x", found[:1], entries=[Entry("erm", scores=("vim",)), Entry("erm")])
    assert [row.label for row in plain.rows] == ["ERM-vim", "ERM-cls", "ERM-bcls", "ERM-energy"]


def test_entries_that_differ_in_their_recipe_keep_their_names() -> None:
    entries = [Entry("erm", "short"), Entry("erm", "long", recipe={"iterations": 9, "lr": 0.1})]
    asked, other = result("erm", iterations=9, lr=0.1), result("erm", iterations=9, lr=0.2)
    rows = {row.label: row.results for row in make_table("x", [other, asked], entries=entries, scores=("cls",)).rows}
    assert rows == {"short-cls": (other,), "long-cls": (asked,)}


def test_the_ablation_tells_heads_apart() -> None:
    variants = [{"ova": False}, {"ova": True}, {"ova": True, "shared": True}]
    found = [result("medic", chosen=v, scores={"bcls": 0.6} if v["ova"] else {}, backbone="resnet50") for v in variants]
    table = make_table("x", found, reference=published("ablation"), scores=("cls", "bcls"))
    measured = {row.label: row.results[0].record["settings"] for row in table.rows if row.results and row.published}
    assert set(measured) == {"MEDIC", "MEDIC-cls", "MEDIC-bcls", "MEDIC-share"}
    assert measured["MEDIC-share"]["shared"] is True
    assert measured["MEDIC"]["ova"] is False


@pytest.mark.parametrize("other", [{"backbone": "resnet50"}, {"unknown": ("house", "person")}])
def test_published_numbers_stand_beside_their_like_only(other: dict[str, object]) -> None:
    table = make_table("x", [result("erm", **other)], reference=PACS)
    assert table.reference is None
    assert "Published numbers are left out" in table.header[-1]
    assert [row.label for row in table.rows] == ["ERM-cls"]


def test_in_a_mixed_folder_each_row_is_beside_its_like() -> None:
    """Of two architectures one is the paper's: the other's rows have no published number, and say which they are."""
    found = [result(method, backbone=b) for method in ("erm", "mldg") for b in ("resnet18.tv_in1k", "resnet50.tv_in1k")]
    table = make_table("x", [*found, result("medic", backbone="resnet50.a1_in1k")], reference=PACS, scores=("cls",))
    beside = {
        row.label: (row.results[0].architecture, table.value(row, "photo", "oscr").published)
        for row in table.rows
        if row.results
    }
    assert beside == {
        "ERM": ("resnet18", 95.11), "MLDG": ("resnet18", 93.7), "ERM-cls (resnet50.tv_in1k)": ("resnet50", None),
        "MLDG-cls (resnet50.tv_in1k)": ("resnet50", None), "MEDIC-cls (resnet50.a1_in1k)": ("resnet50", None),
    }  # fmt: skip
    assert f"Published numbers stand beside runs of {PACS.title} only." in table.header
    (untouched,) = [row for row in table.rows if row.label == "MEDIC-cls"]
    assert not untouched.results, "what the paper has and the folder has not is still shown"
    assert "only" not in pacs().header[-1]


def test_two_protocols_are_refused() -> None:
    with pytest.raises(OpenDGError, match="of 2 protocols .* cannot stand in one table"):
        make_table("x", [result("erm"), result("erm", unknown=("dog",))])


def test_the_header_says_what_the_numbers_saw() -> None:
    table = pacs(notes=["A sample."])
    text = " ".join(table.header)
    for needed in ("pacs:shared:6+1:person", "unknown: person", "the last iterate", "H-score is H@oracle10",
                   "it saw target scores", "over seeds; Avg is the mean of its row", "Seeds: 0, 1, 2",
                   "4000 iterations", "commit abc123", "a machine", "Table 2", "A sample.",
                   "resnet18.tv_in1k"):  # fmt: skip
        assert needed in text, needed
    assert text in " ".join(line.removeprefix("- ") for line in markdown(table).splitlines())
    assert all(f"% {line}" in latex(table).splitlines() for line in table.header)


def test_rows_of_other_recipes_seeds_and_settings_are_named() -> None:
    found = [result("erm", seed=0), result("erm", seed=1), result("medic", seed=0, chosen={"alpha": 0.2}, iterations=9)]
    text = " ".join(make_table("x", found, scores=("cls",)).header)
    assert "Seeds: ERM: 0, 1; MEDIC: 0." in text
    assert "MEDIC: 9 iterations" in text
    assert "MEDIC: alpha=0.2" in text


def test_each_recipe_of_a_header_has_its_rows() -> None:
    methods = ("erm", "medic", "mldg", "mixstyle", "rsc")
    most = [result(method, iterations=n) for method, n in zip(methods, (9, 7, 9, 9, 7), strict=True)]
    (line,) = [line for line in make_table("x", most, scores=("cls",)).header if "Recipe" in line]
    assert re.search("Recipe: MEDIC, RSC: 7 iterations, [^;]*; all others: 9 iterations, [^;]*$", line)
    each = [result(method, iterations=n) for method, n in zip(methods[:3], (9, 7, 8), strict=True)]
    (line,) = [line for line in make_table("x", each, scores=("cls",)).header if "Recipe" in line]
    assert re.search("Recipe: ERM: 9 iterations[^;]*; MEDIC: 7 iterations[^;]*; MLDG: 8 iterations[^;]*$", line)


def test_numbers_in_headers_and_names_are_short() -> None:
    over, alphas = 0.49980014995000627, (1 / 3, 1 / 3 + 1e-9, 0.1 + 0.2)
    found = [result("medic", weights="averaged", average_over=over, chosen={"alpha": alpha}) for alpha in alphas]
    for one in found:
        one.record["selection"] = f"averaged weights (over {over} of the run)"
    table = make_table("x", found, scores=("cls",))
    names = [row.label for row in table.rows]
    assert names == [f"MEDIC-cls (alpha={told})" for told in (alphas[0], alphas[1], "0.3")], "still told apart"
    text = " ".join(table.header)
    assert "Selection: averaged weights (over 0.4998 of the run)." in text
    assert table.facts["selection"] == "averaged weights (over 0.4998 of the run)"
    assert "MEDIC (alpha=0.3): alpha=0.3" in text


def test_rows_of_one_name_are_told_apart() -> None:
    table = make_table("x", [result("erm"), result("erm", lr=0.5), result("erm", iterations=7)], scores=("cls",))
    assert [row.label.removeprefix("ERM-cls ") for row in table.rows] == [
        "(iterations=4000, lr=0.0001)", "(iterations=4000, lr=0.5)", "(iterations=7, lr=0.0001)",
    ]  # fmt: skip


def test_a_head_that_the_plan_does_not_ask_for_is_in_the_name() -> None:
    found = [result("erm", chosen={"ova": True}), result("medic")]
    for entries in ([], [Entry("erm", "ERM"), Entry("medic")], [Entry("erm", "ERM+ova", {"ova": True})]):
        table = make_table("x", found, scores=("cls",), entries=entries)
        assert {row.label for row in table.rows} == {"ERM+ova-cls", "MEDIC-cls"}
        assert "Settings: ERM+ova: ova=True." in " ".join(table.header)
    varied = make_table("x", found[:1], scores=("cls",), entries=[Entry("erm", "ERM", vary={"ova": [False, True]})])
    assert [row.label for row in varied.rows] == ["ERM-cls"]


def test_runs_from_other_weights_are_other_rows_and_named() -> None:
    found = [result("erm", seed=seed, start=start) for seed, start in enumerate(("aaaa", "aaaa", "bbbb", None))]
    table = make_table("x", [*found, result("medic", start="aaaa")], scores=("cls",))
    assert {row.label: sorted({result.seed for result in row.results}) for row in table.rows} == {
        "ERM-cls (from weights aaaa)": [0, 1], "ERM-cls (from weights bbbb)": [2],
        "ERM-cls (from weights not recorded)": [3], "MEDIC-cls": [0],
    }  # fmt: skip
    (line,) = [line for line in table.header if line.startswith("Backbone")]
    assert "Backbone: ERM (from weights bbbb): resnet18.tv_in1k, from weights bbbb; " in line
    assert "; all others: resnet18.tv_in1k, from weights aaaa. " in line
    new = make_table("x", [result("erm", backbone="convnet", start="none")])
    assert "convnet, from scratch" in " ".join(new.header)


def test_records_from_before_weights_were_recorded_are_read() -> None:
    old = result("erm")
    del old.record["starting_weights"]
    table = make_table("x", [old], scores=("cls",))
    assert [row.label for row in table.rows] == ["ERM-cls"]
    assert "from weights not recorded" in " ".join(table.header)


def test_markdown_shows_measured_published_and_difference() -> None:
    lines = markdown(pacs()).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| ERM ") and i > lines.index("## OSCR"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + 3]]
    assert cells[0] == ["ERM", "93.00 ± 3.61", "83.00 ± 3.61", "73.00 ± 3.61", "63.00 ± 3.61", "78.00 ± 3.61"]
    assert cells[1] == ["*published*", "95.11", "71.89", "62.57", "51.75", "70.33"]
    assert cells[2] == ["*difference*", "-2.11", "+11.11", "+10.43", "+11.25", "+7.67"]
    assert any(line.startswith("| OpenMax (published)") for line in lines)
    assert len({len(line) for line in lines if line.startswith("|")}) <= 3, "columns line up in each of three tables"


def test_a_pipe_in_a_label_stays_in_its_cell() -> None:
    table = markdown_table(["", "a|b"], [["mine | theirs", "1"]])
    assert [len(re.split(r"(?<!\\)\|", line)) for line in table.splitlines()] == [4, 4, 4]


def test_comma_separated_numbers_carry_what_they_saw() -> None:
    rows = list(csv.DictReader(StringIO(comma_separated(pacs()))))
    assert len(rows) == len(PACS.rows) * 5 * 3
    (one,) = [r for r in rows if (r["row"], r["column"], r["metric"]) == ("ERM", "photo", "oscr")]
    assert float(one["mean"]) == pytest.approx(93.0)
    assert float(one["difference"]) == pytest.approx(-2.11)
    expected = {"protocol": "pacs:shared:6+1:person", "selection": "the last iterate", "seeds": "0 1 2"}
    expected |= {"commit": "abc123", "threshold": "H-score=H@oracle10"}
    assert {name: one[name] for name in expected} == expected


def test_latex_has_the_papers_layout_and_is_balanced() -> None:
    text = latex(pacs())
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    widths = [line.count("&") for line in rows[1:]]
    assert set(widths) == {15}
    assert r"\multicolumn{3}{c}{art\_painting}" in rows[0]
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert "_" not in "".join(body).replace(r"\_", "")
    assert sum(line.count("{") - line.count("}") for line in body) == 0


def test_latex_writes_a_minus_and_a_dash() -> None:
    text = latex(pacs())
    (erm,) = [line for line in text.splitlines() if line.startswith(r"\quad difference") and "2.11" in line]
    assert " $-$2.11 " in erm
    assert " & -- & " in text
    assert not re.search(r"& -", text.replace("& --", ""))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_compiles(tmp_path: Path) -> None:
    lines = [r"\documentclass{article}\usepackage{booktabs}", r"\begin{document}", latex(pacs()), r"\end{document}"]
    (tmp_path / "page.tex").write_text("\n".join(lines))
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]


def test_a_label_is_plain_text_in_latex() -> None:
    entries = [Entry("erm", label=r"A^2 ~ {b} $c$ | \d < e_f+")]
    text = latex(make_table("t", [result("erm", "photo")], entries=entries))
    row = next(line for line in text.splitlines() if line.startswith("A"))
    assert row.startswith(
        r"A\textasciicircum{}2 \textasciitilde{} \{b\} \$c\$ $|$ \textbackslash{}d $<$ e\_f$+$-cls & "
    )


def test_records_are_read_back_and_make_the_same_table(tmp_path: Path) -> None:
    for number, one in enumerate([record("erm", "photo"), record("erm", "sketch")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "evaluation-selected.json").write_text(json.dumps(one))
        (folder / "run.json").write_text("{}")
    found = load_records(tmp_path)
    assert [r.target for r in found] == ["photo", "sketch"]
    write_table(make_table("t", found, reference=PACS), tmp_path / "one")
    write_table(make_table("t", load_records(tmp_path), reference=PACS), tmp_path / "two")
    for name in ("t.md", "t.tex", "t.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_averaged_weights_are_taken_where_there_are_some() -> None:
    found = [result("erm", "photo", weights=w, value=v) for w, v in (("averaged", 0.6), ("selected", 0.5))]
    found.append(result("erm", "sketch"))
    assert [r.record["weights"] for r in take_weights(found)] == ["averaged", "selected"]
    assert [r.metric("cls", "oscr") for r in take_weights(found, "selected")] == [50.0, 50.0]
    assert len(take_weights(found, "averaged")) == 1
    with pytest.raises(OpenDGError, match="No run has averaged weights"):
        take_weights(found[1:], "averaged")


def test_folders_without_records_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="There is no folder of records"):
        load_records(tmp_path / "none")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(OpenDGError, match="holds no records"):
        load_records(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(OpenDGError, match="cannot be read as JSON"):
        load_records(tmp_path)


def test_a_difference_of_nothing_has_no_sign_of_loss() -> None:
    erm = {"photo": 95.11, "art_painting": 71.89, "cartoon": 62.57, "sketch": 51.75}
    found = [result("erm", target, value=value / 100 - 1e-7) for target, value in erm.items()]
    assert "-0.00" not in markdown(make_table("x", found, reference=PACS, metrics=("oscr",), scores=("cls",)))


def test_settings_that_json_has_changed_into_lists_are_still_the_defaults() -> None:
    one = result("mixstyle")
    read = json.loads(json.dumps(one.record))
    assert "Settings" not in " ".join(make_table("x", [replace(one, record=read)]).header)


def test_what_was_noted_of_the_settings_is_said_once_with_its_rows() -> None:
    common = "Each target domain was a source in the searches of the others."
    found = [
        result("medic", notes=("Trial 3 of 8.", common)), result("erm", notes=("Trial 0 of 8.", common)),
        result("erm", "sketch", notes=("Trial 0 of 8.", common)), result("mldg"),
    ]  # fmt: skip
    lines = make_table("x", found, scores=("cls",)).header
    assert [line for line in lines if line.startswith("Settings of")] == [
        "Settings of MEDIC: Trial 3 of 8.", f"Settings of MEDIC, ERM: {common}", "Settings of ERM: Trial 0 of 8.",
    ]  # fmt: skip
    tuned = make_table("x", found[:3], scores=("cls",), notes=["Settings of medic: Trial 3 of 8."])
    assert [line for line in tuned.header if "Trial 3" in line] == ["Settings of medic: Trial 3 of 8."]
    assert f"Settings of all rows: {common}" in tuned.header


def test_a_note_stays_on_its_line() -> None:
    (line,) = [x for x in make_table("x", [result("erm", notes=("a\n- Made with `b`",))]).header if "Made" in x]
    assert line == "Settings of all rows: a - Made with `b`"


def test_rows_stand_in_the_order_of_the_plan() -> None:
    """Also those of one entry, whatever the order of the records."""
    vary = {"alpha": [0.3, 0.01, 0.1], "beta": [2.0, 1.0]}
    entries = [Entry("medic", vary=vary), Entry("erm")]
    wanted = list(entries[0].variants())
    found = [result("medic", target, chosen=chosen) for target in ("photo", "sketch") for chosen in reversed(wanted)]
    rows = make_table("x", [result("erm"), *found[1:], found[0]], entries=entries, scores=("cls",)).rows
    settings = [row.results[0].record["settings"] for row in rows]
    assert [{key: one[key] for key in vary} for one in settings[:-1]] == wanted
    assert rows[-1].method == "erm"
