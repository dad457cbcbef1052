"""How long runs take, and where the estimate comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from opendg.bench.cells import Cell
from opendg.bench.estimate import AROUND, Clock, Estimate, duration, total
from opendg.bench.ledger import Ledger
from opendg.bench.plan import parse_plan, place
from opendg.bench.runners.local import gpu_names

TEXT = """
    data = "pacs"
    targets = ["photo"]
    recipe = { iterations = 1000, batch = 16 }
    methods = [{ method = "medic" }, { method = "medic", settings = { order = 2 } }, { method = "erm" }]
"""
ROW = {"backbone": "resnet18", "settings": "", "mode": "captured", "images": 48}


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    rows = [
        ROW | {"method": "medic", "ms": 7.0}, ROW | {"method": "medic", "settings": "order=2", "ms": 37.0},
        ROW | {"method": "medic", "mode": "compiled", "ms": 1.0}, ROW | {"method": "medic", "images": 144, "ms": 99.0},
        ROW | {"method": "erm", "backbone": "resnet50", "ms": 50.0},
    ]  # fmt: skip
    (tmp_path / "step.json").write_text(json.dumps({"machine": "a card", "rows": rows}))
    (tmp_path / "predict.json").write_text(json.dumps({"machine": "a card", "rows": [{"images/s": 5}]}))
    return Clock(benchmarks=tmp_path)


def test_the_benchmark_of_the_same_method_and_architecture_is_taken(clock: Clock) -> None:
    first, second, erm = (clock.run(*one) for one in place(parse_plan("x", TEXT).cells()).values())
    assert first == Estimate(AROUND + 1000 * 0.007 * 2, "the committed benchmark on a card"), "B = 16 is twice B = 8"
    assert second.seconds == AROUND + 1000 * 0.037 * 2
    assert erm.source.startswith("a guess: ERM in 6.3 ms")
    assert erm.seconds == pytest.approx(AROUND + 1000 * 0.0063 * 2)


def test_a_guess_knows_what_an_order_costs(tmp_path: Path) -> None:
    first, second, erm = (Clock(benchmarks=tmp_path).run(*one).seconds - AROUND for one in
                          place(parse_plan("x", TEXT).cells()).values())  # fmt: skip
    assert 1 < first / erm < second / erm < 20


def measured(tmp_path: Path, *attempts: tuple[float, int]) -> Clock:
    """A folder of runs of ERM with (seconds, iterations) of each."""
    ledger = Ledger(tmp_path)
    ledger.prepare()
    for number, (seconds, iterations) in enumerate(attempts):
        ledger.begin(f"run-{number}", Cell("erm", "pacs", "photo", recipe={"batch": 16}))
        ledger.end(f"run-{number}", outcome="done", scores=[], seconds=seconds, iterations=iterations)
    return Clock(ledger, benchmarks=tmp_path)


@pytest.mark.parametrize(
    ("attempts", "seconds"),
    [
        ([(30.0, 20)], None),  # a quick one: almost all of it is the start
        ([(30.0, 20), (30.0, 20), (57.0, 1000)], 57.0),
        ([(12.0, 900)], 12.0),
        ([(AROUND + 30, 4000)], AROUND + 30 / 4),
        ([(AROUND + 180, 20)], AROUND + 180 * 50),  # on a slow machine 20 iterations say enough
        ([(AROUND + 180, 20), (AROUND + 60, 600)], AROUND + 100),  # but one of similar length says more
    ],
)
def test_runs_of_similar_length_say_most_and_the_start_counts_once(
    tmp_path: Path, attempts: list[tuple[float, int]], seconds: float | None
) -> None:
    *_, erm = place(parse_plan("x", TEXT).cells()).values()
    found = measured(tmp_path, *attempts).run(*erm)
    assert (found.source == "runs of this folder") == (seconds is not None)
    assert found.seconds == pytest.approx(seconds or AROUND + 1000 * 0.0063 * 2)


@pytest.mark.parametrize("ahead", [1e9, 2e9], ids=["clock behind", "clock ahead"])
def test_a_run_at_work_tells_its_pace(ahead: float, tmp_path: Path) -> None:
    """100 iterations since its checkpoint in 80 s beside the start, whatever the clocks say; once nobody is at it, it
    says nothing."""
    ledger, cell = Ledger(tmp_path), Cell("erm", "pacs", "photo")
    ledger.prepare()
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step-00000500.json").touch()
    ledger.begin("run", cell)
    log = tmp_path / "run" / "log.jsonl"
    log.write_text('{"step": 600}\n')
    for path, seconds in ((ledger.folder / "run.json", 0), (log, AROUND + 80)):
        os.utime(path, (ahead + seconds, ahead + seconds))
    with ledger.hold("run"):
        seconds = Clock(ledger, benchmarks=tmp_path).of_kind(cell, 4000, -1.0)
    assert seconds == pytest.approx(AROUND + 80 * 40, rel=0.05)
    assert Clock(ledger, benchmarks=tmp_path).of_kind(cell, 4000, -1.0) == -1.0


def test_a_total_is_never_shorter_than_its_longest_run() -> None:
    runs = [10.0, 20.0, 90.0]
    assert total(runs, 1) == 120
    assert total(runs, 2) == 90
    assert total([], 4) == 0


@pytest.mark.parametrize(("seconds", "words"), [(59, "59 s"), (120, "2 min"), (7200, "2.0 h")])
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("said", "count", "names"),
    [(None, 2, ["0", "1"]), ("2,5", 2, ["2", "5"]), ("GPU-ab12, GPU-cd34", 2, ["GPU-ab12", "GPU-cd34"]), ("", 0, [])],
)
def test_gpus_are_named_as_the_scheduler_names_them(said: str | None, count: int, names: list[str]) -> None:
    assert gpu_names(said, count) == names
