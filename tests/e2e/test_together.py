"""Two processes that want the same run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from opendg.runs.directory import Run
from tests.e2e.conftest import Command
from tests.tiny import flags


def test_a_run_in_training_is_not_resumed_by_another_process(tree: Path, tmp_path: Path, opendg: Command) -> None:
    out = tmp_path / "run"
    asked = flags(iterations=1_000_000, checkpoint_every=2, batch=1)
    words = [sys.executable, "-m", "opendg", "train", "erm", "--data", str(tree), *asked, "--out", str(out)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        while not any((out / "checkpoints").glob("*.json")):
            assert training.poll() is None
            time.sleep(0.05)
        said = opendg("train", "--resume", out)
        assert said.code == 2
        assert said.err.count("\n") == 1, said.err
        assert f"Another process is training '{out}'" in said.err
        assert training.poll() is None, "and is not disturbed"
        training.kill()
    with Run.open(out).hold():  # a dead process holds nothing
        pass
