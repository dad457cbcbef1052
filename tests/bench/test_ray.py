"""The Ray runner, on a real cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import Future
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from opendg.bench.runners import Died
from opendg.bench.runners.choose import make_runner
from opendg.bench.runners.ray import answers, settle
from opendg.bench.work import Outcome
from opendg.errors import OpenDGError
from tests.bench.parts import refused, signs

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'opendg[ray]'")
LONG = "iterations = 400"


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_done_twice_when_a_worker_and_a_node_die(tree: Path, tmp_path: Path) -> None:
    plan, runs = tmp_path / "grid.toml", tmp_path / "runs"
    plan.write_text(signs(tree).replace("iterations = 4", LONG))
    words = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("ray_grid.py")), str(plan), str(runs)]
    quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DEDUP_LOGS": "0"}
    ended = subprocess.run(words, capture_output=True, text=True, env=os.environ | quiet, check=False, timeout=500)
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["told"] == "a Ray cluster of 2 CPUs and 2 GPUs"
    assert said["refused"][0] == "No node of the Ray cluster has 2 CPUs: give --cpus 1 or fewer."
    assert said["refused"][1].startswith("--jobs 2 would be without effect, as no GPU of the Ray cluster is used")
    assert len(said["disturbed"]) == 2
    assert said["disturbed"][1] == "node"
    assert list(said["states"].values()) == ["done"] * 4, "nothing is lost"
    ledgers = {path.stem: json.loads(path.read_text())["attempts"] for path in (runs / "ledger").glob("*.json")}
    for name, attempts in ledgers.items():
        assert [a.get("outcome") for a in attempts].count("done") == 1, "nothing is done twice"
        assert (runs / name / "evaluation-selected.json").exists()
    lost = [a for attempts in ledgers.values() for a in attempts if "outcome" not in a]
    assert len(lost) >= 1, "the worker; on the node a run may just have been about to begin"
    last = ledgers[said["disturbed"][0]][-1]
    assert 0 < last["iterations"] <= 350, "it went on from its checkpoint"


@pytest.mark.parametrize(
    ("error", "words"),
    [(RuntimeError(), "RuntimeError"), (ValueError("bad\nand more"), "ValueError: bad"), (OSError(" \n"), "OSError")],
)
def test_an_error_of_a_task_reaches_who_waits_whatever_its_text(error: Exception, words: str) -> None:
    answer, ended = Future[Outcome](), Future[dict[str, Any]]()
    ended.set_exception(error)
    settle(answer, ended)
    with pytest.raises(Died, match=f"^{words}$"):
        answer.result(timeout=0)


def test_without_ray_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(OpenDGError, match=r"pip install 'opendg\[ray\]'"):
        make_runner("ray", tmp_path)


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_an_address_where_nothing_listens_is_refused_at_once(prefix: str) -> None:
    """Ray would try for minutes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{prefix}127.0.0.1:{server.getsockname()[1]}"
        answers(address)
    with pytest.raises(OpenDGError, match="No Ray cluster answers at"):
        answers(address)


def test_an_unknown_runner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="choose here or ray"):
        make_runner("moon", tmp_path)
    assert "choose here or ray" in refused("bench", "run", "pacs-resnet18", "--on", "moon", "--runs", str(tmp_path))
