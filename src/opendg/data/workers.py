"""Work spread over all cores, in processes of our own.

Small images cost more time in Python than in the decoder, so threads would wait for one another. The processes are
plain children that are given jobs on their standard input: unlike `multiprocessing` they do not run the user's script a
second time, copy no threads or CUDA state of the parent, and end by themselves when the parent is killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, TypeVar

from opendg.errors import OpenDGError

Job = TypeVar("Job")
Result = TypeVar("Result")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """A context manager; the processes start when there is work for more than one, and end with the block."""

    def __init__(self, count: int | None = None) -> None:
        self.count = cores() if count is None else count
        self._started: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def spread(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[tuple[int, Result]]:
        """(number of the job, `function(job)`) for every job, as they are done. `function` is one of a module."""
        if self.count < 2 or len(jobs) < 2:
            yield from ((number, function(job)) for number, job in enumerate(jobs))
            return
        while len(self._started) < min(self.count, len(jobs)):
            self._start()
        threads = ThreadPoolExecutor(len(self._started))
        try:
            numbers = {threads.submit(self._ask, function, job): number for number, job in enumerate(jobs)}
            for done in as_completed(numbers):
                yield numbers[done], done.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()  # so that no thread waits for an answer any more
            raise
        finally:
            threads.shutdown()

    def _start(self) -> None:
        # The same interpreter with the same path; warnings of a decoder about single files are not for the user.
        command = [sys.executable, "-P", "-W", "ignore", "-m", "opendg.data.workers"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self._started.append(worker)
        self._idle.put(worker)

    def _ask(self, function: Callable[[Job], Result], job: Job) -> Result:
        worker = self._idle.get()
        assert worker.stdin is not None
        assert worker.stdout is not None
        try:
            pickle.dump((function, job), worker.stdin)
            worker.stdin.flush()
            answer, error = pickle.load(worker.stdout)
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as lost:
            raise OpenDGError(
                f"A process that read images ended unexpectedly (exit code {worker.wait()}): it may have been short of "
                "memory; try again."
            ) from lost
        finally:
            self._idle.put(worker)
        if error is not None:
            raise error
        result: Result = answer
        return result

    def close(self) -> None:
        for worker in self._started:
            worker.kill()
        for worker in self._started:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                _close(pipe)
        self._started.clear()
        self._idle = queue.SimpleQueue()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(pipe: IO[bytes] | None) -> None:
    with suppress(OSError):  # what was still to be written to a process that is gone
        if pipe is not None:
            pipe.close()


def main() -> None:
    """The loop of a worker: job in, answer out, until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
    jobs = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not print into the answers
    while True:
        try:
            function, job = pickle.load(jobs)
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = function(job), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
