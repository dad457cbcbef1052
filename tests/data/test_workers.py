from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opendg.data.workers import Workers
from opendg.errors import OpenDGError


@pytest.mark.parametrize("count", [1, 3])
def test_every_job_is_done_once(count: int) -> None:
    with Workers(count) as workers:
        done = dict(workers.spread(math.factorial, range(50)))
        again = dict(workers.spread(abs, [-1, -2]))
    assert done == {number: math.factorial(number) for number in range(50)}
    assert again == {0: 1, 1: 2}


def test_no_more_processes_than_jobs_are_started() -> None:
    with Workers(3) as workers:
        list(workers.spread(abs, [-1, -2]))
        assert len(workers._started) == 2


@pytest.mark.parametrize("count", [1, 2])
def test_errors_come_through(count: int) -> None:
    with Workers(count) as workers, pytest.raises(ZeroDivisionError):
        list(workers.spread(_divide_by, [1, 2, 0, 3]))


def _divide_by(number: int) -> float:
    return 1 / number


def test_the_work_is_done_elsewhere_and_ends_with_the_block() -> None:
    with Workers(2) as workers:
        pids = {pid for _, pid in workers.spread(_pid, range(20))}
    assert os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _pid(_: int) -> int:
    return os.getpid()


def test_a_worker_that_dies_is_an_error_and_no_wait() -> None:
    with Workers(2) as workers, pytest.raises(OpenDGError, match="ended unexpectedly .exit code 3."):
        list(workers.spread(os._exit, [3, 3, 3]))


def test_control_c_is_not_for_the_workers() -> None:
    """A terminal sends it to them too; their parent decides what becomes of the work."""
    with Workers(2) as workers:
        assert dict(workers.spread(_interrupt, [os.getpid()] * 4)) == dict.fromkeys(range(4), "still here")


def _interrupt(parent: int) -> str:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def test_what_a_job_prints_does_not_disturb() -> None:
    with Workers(2) as workers:
        assert dict(workers.spread(print, ["a", "b", "c"])) == {0: None, 1: None, 2: None}


def test_a_script_without_a_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import math\n"
        "from opendg.data.workers import Workers\n"
        "with Workers(2) as workers:\n"
        "    print(sorted(workers.spread(math.factorial, range(5))))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[(0, 1), (1, 1), (2, 2), (3, 6), (4, 24)]\n", done.stderr
