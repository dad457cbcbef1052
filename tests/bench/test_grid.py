"""The grid: nothing done twice, failures noted, killed workers and killed runners survived, two runners at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from opendg.bench.grid import Grid
from opendg.bench.ledger import Ledger
from opendg.bench.plan import parse_plan, place
from opendg.bench.reproduce import run_plan, site_of
from opendg.bench.runners.choose import make_runner
from opendg.bench.runners.local import LocalRunner
from opendg.bench.status import status
from opendg.cli import app
from opendg.errors import OpenDGError
from tests.bench.parts import Inline, plan_of, signs
from tests.tiny import write_tree
from tests.waiting import wait_for


def attempts(runs: Path) -> dict[str, list[dict[str, Any]]]:
    return {path.stem: json.loads(path.read_text())["attempts"] for path in (runs / "ledger").glob("*.json")}


def test_every_run_is_trained_and_evaluated_once(tree: Path, tmp_path: Path, inline: Inline) -> None:
    plan, site = plan_of(tree), site_of(tmp_path, None, device="cpu")
    states = run_plan(plan, site, inline)
    assert list(states.values()) == ["done"] * 4
    for name in states:
        record = json.loads((tmp_path / name / "evaluation-selected.json").read_text())
        assert record["command"].startswith(f"opendg train {record['method']} --data signs --target {record['target']}")
    assert {len(found) for found in attempts(tmp_path).values()} == {1}
    assert run_plan(plan, site, inline) == states
    assert len(inline.orders) == 4, "the second time there was nothing to do"


def test_a_new_score_is_evaluated_without_training(tree: Path, tmp_path: Path, inline: Inline) -> None:
    site, one = site_of(tmp_path, None, device="cpu"), '[{ method = "erm" }]'
    run_plan(plan_of(tree, methods=one), site, inline)
    name = inline.orders[0]
    trained = (tmp_path / name / "weights.safetensors").stat().st_mtime_ns
    run_plan(plan_of(tree, 'scores = ["entropy"]', methods=one), site, inline)
    assert "entropy" in json.loads((tmp_path / name / "evaluation-selected.json").read_text())["scores"]
    assert (tmp_path / name / "weights.safetensors").stat().st_mtime_ns == trained


def test_a_failure_is_noted_and_does_not_stop_the_rest(tree: Path, tmp_path: Path, inline: Inline) -> None:
    methods = '[{ method = "erm", recipe = { lr = 1e30 } }, { method = "erm" }]'
    plan, site = plan_of(tree, methods=methods), site_of(tmp_path, None, device="cpu")
    states = run_plan(plan, site, inline)
    failed = [name for name, state in states.items() if state == "failed"]
    assert sorted(states.values()) == ["done", "done", "failed", "failed"]
    (found,) = status(tmp_path)
    assert (found.count("done"), found.count("failed"), found.count("left")) == (2, 2, 0)
    assert all("try a smaller --lr" in str(run.error) for run in found.runs if run.name in failed)
    assert "Diverged" in attempts(tmp_path)[failed[0]][0]["traceback"]
    assert run_plan(plan, site, inline) == states
    assert len(inline.orders) == 4, "failed runs are left alone"
    assert run_plan(plan, site, inline, retry_failed=True) == states
    assert sorted(inline.orders[4:]) == sorted(failed)
    assert len(attempts(tmp_path)[failed[0]]) == 2


def test_a_failed_run_that_is_tried_again_can_succeed(tree: Path, tmp_path: Path, inline: Inline) -> None:
    """The cause, here an image that cannot be read, has been put right."""
    data = write_tree(tmp_path / "data" / "signs", each=4)
    image = data / "ink" / "bar" / "000.png"
    good = image.read_bytes()
    image.write_bytes(b"no image" + bytes(len(good) - 8))
    plan = plan_of(data, methods='[{ method = "erm" }]').override(targets=("wood",))
    site = site_of(tmp_path / "runs", None, device="cpu")
    assert set(run_plan(plan, site, inline).values()) == {"failed"}
    image.write_bytes(good)
    assert set(run_plan(plan, site, inline, retry_failed=True).values()) == {"done"}


LONG = 'recipe = { iterations = 400, batch = 2, augment = "digits" }'


def long_plan(tree: Path, methods: str = '[{ method = "erm" }]', targets: str = '["wood"]') -> str:
    """Runs of some seconds, so that there is time to kill them."""
    text = signs(tree, methods=methods).replace('targets = ["ink", "wood"]', f"targets = {targets}")
    return text.replace('recipe = { iterations = 4, batch = 2, augment = "digits" }', LONG)


def metrics(runs: Path, name: str) -> Any:
    record = json.loads((runs / name / "evaluation-selected.json").read_text())
    return record["acc"], record["scores"]


@pytest.mark.slow
def test_a_killed_worker_costs_nothing(tree: Path, tmp_path: Path, inline: Inline) -> None:
    """It is started anew, goes on from the checkpoint, and ends where an undisturbed run ends."""
    plan, runs = parse_plan("long", long_plan(tree)), tmp_path / "killed"
    site, ledger = site_of(runs, None, device="cpu", checkpoint_every=50), Ledger(runs)
    (name,) = place(plan.cells())

    def kill() -> None:
        wait_for(lambda: ledger.checkpoint(name) >= 100)  # a thread writes it, some iterations later
        os.kill(attempts(runs)[name][0]["pid"], signal.SIGKILL)

    ledger.prepare()
    killer, runner = threading.Thread(target=kill), LocalRunner(runs, device="cpu")
    killer.start()
    states = run_plan(plan, site, runner)
    killer.join()
    runner.close()
    assert states == {name: "done"}
    first, second = attempts(runs)[name]
    assert "outcome" not in first
    assert second["outcome"] == "done"
    assert 0 < second["iterations"] <= 300, "the second attempt went on from a checkpoint"
    untouched = tmp_path / "untouched"
    run_plan(plan, site_of(untouched, None, device="cpu"), inline)
    assert metrics(runs, name) == metrics(untouched, name)


@pytest.mark.slow
def test_a_run_whose_worker_always_dies_is_given_up_and_the_others_are_not(tree: Path, tmp_path: Path) -> None:
    methods = '[{ method = "medic" }, { method = "erm", recipe = { iterations = 4 } }]'
    plan = parse_plan("long", long_plan(tree, methods))
    placed = place(plan.cells())
    doomed, spared = list(placed)
    ledger, stop = Ledger(tmp_path), threading.Event()
    ledger.prepare()

    def kill() -> None:
        killed: set[int] = set()
        while not stop.wait(0.02):
            for attempt in ledger.read(doomed).attempts:
                if "ended" not in attempt and attempt["pid"] not in killed:
                    killed.add(attempt["pid"])
                    os.kill(attempt["pid"], signal.SIGKILL)

    killer, runner = threading.Thread(target=kill), LocalRunner(tmp_path, device="cpu")
    killer.start()
    cells = {name: cell for name, (cell, _) in placed.items()}
    states = Grid(cells, site_of(tmp_path, None, device="cpu"), runner).run()
    stop.set()
    killer.join()
    runner.close()
    assert states == {doomed: "failed", spared: "done"}
    assert ledger.read(doomed).error is not None
    assert "Given up after 3 attempts: the process was killed by signal 9" in str(ledger.read(doomed).error)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def bench_run() -> Iterator[Start]:
    """Starts `opendg bench run` as a user does; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(plan: Path, runs: Path, *more: str) -> subprocess.Popen[str]:
        words = ["bench", "run", str(plan), "--runs", str(runs), "--device", "cpu", *more]
        command = [sys.executable, "-m", "opendg", *words]
        started.append(subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for runner in started:
        runner.kill()
        runner.communicate()


@pytest.mark.slow
def test_a_killed_runner_takes_its_workers_along_and_the_next_one_goes_on(
    tree: Path, tmp_path: Path, inline: Inline, bench_run: Start
) -> None:
    plan, runs = tmp_path / "long.toml", tmp_path / "runs"
    plan.write_text(long_plan(tree))
    runner = bench_run(plan, runs, "--checkpoint-every", "50")
    (name,) = wait_for(lambda: [path.stem for path in (runs / "ledger").glob("*.json")])
    ledger = Ledger(runs)
    wait_for(lambda: ledger.steps(name) >= 100)
    assert ledger.state(name) == "running"
    runner.kill()
    runner.communicate()
    wait_for(lambda: ledger.state(name) == "interrupted", 10)
    (found,) = status(runs)
    assert found.count("interrupted") == 1
    assert found.seconds > 0
    run_plan(parse_plan("long", long_plan(tree)), site_of(runs, None, device="cpu"), inline)
    first, last = attempts(runs)[name]
    assert (first.get("outcome"), last["outcome"]) == (None, "done")
    assert 0 < last["iterations"] <= 300, "it went on from a checkpoint"


@pytest.mark.slow
def test_two_runners_share_a_folder(tree: Path, tmp_path: Path, bench_run: Start) -> None:
    plan, runs = tmp_path / "shared.toml", tmp_path / "runs"
    plan.write_text(signs(tree).replace("iterations = 4", "iterations = 30"))
    both = [bench_run(plan, runs) for _ in range(2)]
    for runner in both:
        said, noise = runner.communicate(timeout=170)
        assert runner.returncode == 0, noise
        assert "4 of 4 runs are done" in said
    found = attempts(runs)
    assert len(found) == 4
    assert {len(one) for one in found.values()} == {1}, "no run was done twice"
    assert {one[0]["outcome"] for one in found.values()} == {"done"}


def test_a_runner_ends_with_1_when_a_run_failed(tree: Path, tmp_path: Path) -> None:
    plan = tmp_path / "bad.toml"
    plan.write_text(signs(tree, methods='[{ method = "erm", recipe = { lr = 1e30 } }]'))
    words = ["bench", "run", str(plan), "--runs", str(tmp_path / "runs"), "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert set(json.loads(result.stdout)["states"].values()) == {"failed"}
    forecast = CliRunner().invoke(app, [*words[:-1], "--dry-run"])
    assert "2 runs in the plan: 2 failed.\n" in forecast.stdout
    assert "nothing would run." in forecast.stdout
    assert "About" not in forecast.stdout
    for named in ([str(tmp_path / "runs")], ["--runs", str(tmp_path / "runs")]):
        shown = CliRunner().invoke(app, ["bench", "status", *named])
        assert shown.output.count("try a smaller --lr") == 2


def test_a_folder_of_runs_is_named_once(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["bench", "status", str(tmp_path / "a"), "--runs", str(tmp_path / "b")]).exception
    assert isinstance(said, OpenDGError)
    assert "Give RUNS or --runs, not both" in str(said)


@pytest.mark.parametrize("words", [["--jobs", "2"], ["--dry-run"], ["--runs", "here"], ["--config", "a.toml"]])
def test_what_is_run_is_not_asked_for_beside_records(words: list[str], tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["reproduce", "pacs-resnet18", "--records", str(tmp_path), *words]).exception
    assert isinstance(said, OpenDGError)
    assert f"{words[0]} would be without effect: with --records nothing is run" in str(said)


@pytest.mark.parametrize("command", [["bench", "run"], ["reproduce"]], ids=" ".join)
def test_what_a_cluster_needs_is_not_asked_for_without_one(command: list[str], tmp_path: Path) -> None:
    words = ["pacs-resnet18", "--runs", str(tmp_path), "--address", "auto", "--cpus", "2", "--dry-run"]
    said = CliRunner().invoke(app, [*command, *words]).exception
    assert isinstance(said, OpenDGError)
    assert "--address and --cpus would be without effect: without --on ray there is no cluster" in str(said)
    assert CliRunner().invoke(app, [*command, *words, "--on", "ray"]).exit_code == 0


@pytest.mark.parametrize("on", ["here", "ray"])
@pytest.mark.parametrize(("name", "count"), [("jobs", 0), ("jobs", -1), ("cpus", 0)])
def test_no_jobs_at_once_are_refused(tmp_path: Path, on: str, name: str, count: int) -> None:
    options: dict[str, Any] = {name: count}
    with pytest.raises(OpenDGError, match=f"--{name} {count} is out of range"):
        make_runner(on, tmp_path, **options)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--device", "tpu"], "There is no device 'tpu': choose auto, cpu or cuda"),
        (["--device", "cuda"], "No CUDA device was found: use --device cpu"),
        (["--checkpoint-every", "0"], "--checkpoint-every 0 is out of range: give 1 or more"),
    ],
)
def test_what_would_fail_in_every_run_is_refused_before_the_first(
    tree: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (tmp_path / "signs.toml").write_text(signs(tree))
    asked = ["bench", "run", str(tmp_path / "signs.toml"), "--runs", str(tmp_path / "runs"), *words]
    said = CliRunner().invoke(app, asked).exception
    assert isinstance(said, OpenDGError)
    assert sentence in str(said)
    assert not (tmp_path / "runs").exists()


def test_a_folder_of_runs_that_cannot_be_made_is_named_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpenDGError, match=r"could not be written .*: choose another place\."):
        Ledger(tmp_path / "file").prepare()
