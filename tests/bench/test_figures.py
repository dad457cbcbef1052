"""Figures: drawn from finished runs, and again from what was kept of them; what cannot be drawn is told first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opendg.bench import figures
from opendg.bench.plan import Plan, Show, parse_plan
from opendg.bench.produce import produce
from opendg.bench.records import load_records, take_weights
from opendg.bench.reproduce import forecast, keep_records, results_of, run_plan, site_of
from opendg.bench.tables import measured_rows
from opendg.errors import OpenDGError
from opendg.evaluation.metrics import h_score
from opendg.predictions import Predictions
from tests.bench.parts import Inline, plan_of, signs
from tests.bench.results import result
from tests.tiny import CLASSES

Finished = tuple[Plan, Path]


def shown(plan: Plan, kind: str, **more: str) -> Plan:
    return replace(plan, show=Show(kind=kind, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("thresholds", ["thresholds-ink", "thresholds-wood"]),
        ("tsne", ["tsne-ink-erm", "tsne-ink-medic", "tsne-wood-erm", "tsne-wood-medic"]),
        ("oscr", ["oscr-ink", "oscr-wood"]),
        ("confusion", [f"confusion-{t}-{m}" for t in ("ink", "wood") for m in ("erm-cls", "medic-bcls")]),
    ],
)
def test_figures_come_from_finished_runs(finished: Finished, tmp_path: Path, kind: str, names: list[str]) -> None:
    plan, runs = finished
    made = produce(shown(plan, kind), results_of(plan, runs, None), tmp_path, device="cpu")
    drawn = sorted(path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".svg"))
    assert drawn == sorted(f"{name}{suffix}" for name in names for suffix in (".png", ".svg"))
    for name in names:  # a picture says what it shows also where it stands alone
        method = {"erm": "ERM", "medic": "MEDIC", "cls": "ERM-cls", "bcls": "MEDIC-bcls"}.get(name.split("-")[-1])
        title = f"{method} on {name.split('-')[1]}" if method else name.split("-")[1]
        assert f"<!-- {title} -->" in (tmp_path / f"{name}.svg").read_text()
    page = (tmp_path / "signs.md").read_text()
    assert all(f"]({name}.png)" in page for name in names)
    assert "Protocol: " in page
    caption = " ".join(made.caption)
    assert "Seeds: 0, 1" in caption
    rule = "Threshold: " + ("H@source95, largest " if kind in ("confusion", "thresholds") else "none is needed.")
    assert rule in caption, "no rule is named that the figure does not use"
    assert ("Means over seeds" in caption) == (kind == "thresholds")
    assert "standard deviation" not in caption


def test_the_source_curve_sees_unknown_classes_of_the_source_domains_alone(finished: Finished, tmp_path: Path) -> None:
    plan, runs = finished
    produce(shown(plan, "thresholds"), results_of(plan, runs, None), tmp_path, device="cpu")
    (run,) = runs.glob("medic-wood-0-*")
    seen = Predictions.load(run / "source-unknown-averaged.npz")
    assert set(seen.domain) == {"chalk", "ink", "neon"}
    assert not seen.known.any()
    assert {key.split("/")[1] for key in seen.keys} == {"ring"}
    assert len(seen) == 30


def test_the_curves_of_the_threshold_figure_are_h_scores(finished: Finished) -> None:
    """At one threshold, computed again from the predictions."""
    plan, runs = finished
    rows = measured_rows(take_weights(results_of(plan, runs, None)), plan.methods, ("own",), None)
    (medic,) = [row for row in rows if row.method == "medic"]
    sides = figures._both_sides(medic, "wood", None, "cpu")
    assert len(sides) == 4, "target and source of two seeds"
    at = np.array([0.4])
    assert figures._mean_h(sides[::2], at)[0] == np.mean([h_score(*side, 0.4) for side in sides[::2]])
    result = figures.of_target(medic, "wood")[0]
    seen = figures.beside(result)
    assert len(sides[0][0]) == seen.known.sum()
    assert len(sides[0][2]) == (~seen.known).sum()


def test_the_threshold_figure_is_told_in_numbers(finished: Finished, tmp_path: Path) -> None:
    plan, runs = finished
    made = produce(shown(plan, "thresholds"), results_of(plan, runs, None), tmp_path, device="cpu")
    assert made.numbers in (tmp_path / "signs.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.numbers.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"{on}: {row}" for on in ("ink", "wood") for row in ("ERM-cls", "MEDIC-bcls")]
    both = measured_rows(take_weights(results_of(plan, runs, None)), plan.methods, ("own",), None)
    _, seen, sources = figures._h_curves(both, "wood", None, "cpu")
    h, best = seen["MEDIC-bcls"], sources["MEDIC-bcls"].argmax()
    ruled = [one.record["scores"]["bcls"]["h@source95"]["h"] for one in figures.of_target(both[1], "wood")]
    assert [float(cell) for cell in rows[3][1:]] == pytest.approx(
        [100 * h.max(), 100 * h[best], 100 * np.mean(ruled)], abs=0.051
    )


def test_the_confusion_is_told_in_points_of_oscr(finished: Finished, tmp_path: Path) -> None:
    """By class what it loses to other classes and to unknown images; all of them make what OSCR lacks to 100."""
    plan, runs = finished
    results = results_of(plan, runs, None)
    made = produce(shown(plan, "confusion"), results, tmp_path, device="cpu")
    assert made.numbers in (tmp_path / "signs.md").read_text()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in made.numbers.splitlines()]
    known = sorted(set(CLASSES) - {"ring"})
    assert head == ["OSCR lost: mistaken + outranked", *known, "all"]
    assert [row[0] for row in rows] == [f"{on}: {row}" for on in ("ink", "wood") for row in ("ERM-cls", "MEDIC-bcls")]
    rows_of = measured_rows(take_weights(results), plan.methods, ("own",), None)
    (medic,) = [row for row in rows_of if row.score == "bcls"]
    first = figures.of_target(medic, "wood")[0]
    mistaken, outranked = zip(*([float(part) for part in cell.split("+")] for cell in rows[3][1:]), strict=True)
    assert sum(mistaken[:-1]) == pytest.approx(mistaken[-1], abs=0.05 * len(known))
    assert mistaken[-1] == pytest.approx(100 * (1 - first.record["acc"]), abs=0.051)
    assert mistaken[-1] + outranked[-1] == pytest.approx(100 * (1 - first.record["scores"]["bcls"]["oscr"]), abs=0.11)
    seen = figures.beside(first)
    number = first.record["known"].index(known[0])
    wrong = (seen.predicted != number)[seen.label == number].sum() / seen.known.sum()
    assert mistaken[0] == pytest.approx(100 * wrong, abs=0.051)


def test_thresholds_are_laid_where_the_scores_lie() -> None:
    """Probabilities that crowd near 1 are told apart; other scores are laid out as they are; a few at the ends go."""
    right, odds = np.ones(500, dtype=bool), np.random.default_rng(0).normal(12, 2, 500)
    near_one = figures._axis([(1 / (1 + np.exp(-odds)), right, np.array([0.2, 1.0, 0.0]))])
    assert 0 < near_one.min() < near_one.max() < 1
    assert np.ptp(np.diff(np.log(near_one / (1 - near_one)))) < 1e-4
    assert 5 < np.log(near_one / (1 - near_one)).min() < 9
    plain = figures._axis([(odds, right, np.array([-1000.0]))])
    assert np.ptp(np.diff(plain)) < 1e-9
    assert 5 < plain.min() < plain.max() < odds.max()


def test_figures_of_records_alone_say_what_they_need(finished: Finished, tmp_path: Path) -> None:
    plan, runs = finished
    keep_records(plan, results_of(plan, runs, None), tmp_path)
    with pytest.raises(OpenDGError, match="needs predictions"):
        produce(shown(plan, "tsne"), load_records(tmp_path / "records"), tmp_path)


@pytest.mark.parametrize("kind", ["thresholds", "tsne", "oscr", "confusion"])
def test_figures_are_drawn_again_without_the_runs(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """From the folder alone: weights, data and most of the predictions are elsewhere."""
    plan, runs = shown(finished[0], kind), finished[1]
    monkeypatch.setattr(figures, "POINTS", 20)
    results, folder = keep_records(plan, results_of(plan, runs, None), tmp_path, device="cpu")
    first = produce(plan, results, tmp_path / "first").files
    lone = folder.rename(tmp_path / "elsewhere")
    assert sum(path.stat().st_size for path in lone.rglob("*.npz")) < sum(
        path.stat().st_size for path in runs.glob("*/*-averaged.npz")
    )
    second = produce(plan, load_records(lone), tmp_path / "second").files
    assert [path.name for path in first] == [path.name for path in second]
    for one, other in zip(first, second, strict=True):
        assert one.suffix != ".png" or one.read_bytes() == other.read_bytes()


def test_fitted_scores_are_refused_in_figures() -> None:
    with pytest.raises(OpenDGError, match="fitted on source images"):
        figures.plain_score("mahalanobis")


@pytest.mark.slow
def test_openness_is_drawn_from_several_divisions(tree: Path, tmp_path: Path, inline: Inline) -> None:
    more = 'divisions = [{ known = 2 }, { known = 3 }]\nscores = ["own"]\n[show]\nkind = "openness"\nmetrics = ["oscr"]'
    plan = parse_plan("open", signs(tree, more).replace('unknown = ["ring"]\n', "\n", 1))
    assert set(run_plan(plan, site_of(tmp_path, None, device="cpu"), inline).values()) == {"done"}
    made = produce(plan, results_of(plan, tmp_path, None), tmp_path / "out")
    (table,) = made.tables
    assert table.columns == ("2:2", "3:1")
    assert [row.label for row in table.rows] == ["ERM-cls", "MEDIC-bcls"]
    assert {"open.png", "open.svg", "open.csv"} <= {path.name for path in made.files}


def closed(tree: Path, kind: str) -> Plan:
    """A plan of a closed set that asks for figures."""
    text = signs(tree, f'[show]\nkind = "{kind}"').replace('unknown = ["ring"]', "")
    return parse_plan("closed", text)


@pytest.mark.parametrize("kind", ["thresholds", "tsne", "oscr", "confusion", "openness", "rotating"])
def test_a_closed_set_is_refused_before_anything_is_trained(
    tree: Path, tmp_path: Path, inline: Inline, kind: str
) -> None:
    plan = closed(tree, kind)
    with pytest.raises(OpenDGError, match=f"'{kind}' needs unknown classes, and signs:shared:4"):
        run_plan(plan, site_of(tmp_path / "runs", None, device="cpu"), inline)
    with pytest.raises(OpenDGError, match="needs unknown classes"):
        forecast(plan, tmp_path / "runs", None)
    assert not inline.orders
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["thresholds", "tsne", "oscr", "confusion", "openness", "rotating"])
def test_records_of_a_closed_set_are_refused_in_figures(tmp_path: Path, kind: str) -> None:
    plan = parse_plan("mine", f'data = "pacs"\nmethods = [{{ method = "erm" }}]\n[show]\nkind = "{kind}"')
    with pytest.raises(OpenDGError, match="needs unknown classes, and pacs:shared:7"):
        produce(plan, [result("erm", unknown=())], tmp_path)


def test_two_divisions_are_not_drawn_into_one_figure(tree: Path, tmp_path: Path) -> None:
    """A curve is of one division: the mean over two would be called one over seeds."""
    turns = ", ".join(f'{{ unknown = ["{name}"] }}' for name in CLASSES)
    plan = plan_of(tree, f'divisions = [{turns}]\n[show]\nkind = "thresholds"')
    with pytest.raises(OpenDGError, match="one place for ink, and there are 4 protocols"):
        forecast(plan, tmp_path, None)
