"""Many runs in one process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from opendg.runs.directory import Run
from opendg.training.many import room, side_by_side


def counted(number: int, seen: list[str]) -> tuple[Run, Iterator[int]]:
    def iterations() -> Iterator[int]:
        for step in range(1, 3):
            seen.append(f"{number}.{step}")
            yield step

    return Run(Path(str(number)), {}, {}), iterations()


def test_on_the_cpu_runs_train_one_after_another() -> None:
    seen: list[str] = []
    runs = list(side_by_side([partial(counted, number, seen) for number in range(3)], lanes=2, device="cpu"))
    assert [run.path.name for run in runs] == ["0", "1", "2"]
    assert seen == ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]


@pytest.mark.parametrize(("free", "expected"), [(48, True), (47, False)])
def test_a_further_run_needs_two_thirds_of_the_memory(monkeypatch: Any, free: int, expected: bool) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 72))
    assert room() is expected
