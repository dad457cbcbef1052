"""Checkpoints, written while training goes on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from torch import Tensor

from opendg.runs.directory import Run


class Writer:
    """A thread that writes the checkpoints of a run, one at a time.

    Training waits for the copy of the tensors only, not for hash and disk. What could not be written is raised by the
    next checkpoint or at the end of the `with` block, which waits for the last one.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._last: Future[None] | None = None

    def checkpoint(self, step: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self._wait()
        copies = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        self._last = self._thread.submit(self.run.checkpoint, step, copies, facts)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._thread.shutdown()
        if error is None:  # else that is the one to tell
            self._wait()
