"""A bar on standard error for work on many images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]


@contextmanager
def bar(text: str, total: int, show: bool = True) -> Iterator[Advance]:
    """A function that moves the bar on by so many images. Without a terminal only its end is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show) as progress:
        task = progress.add_task(text, total=total)
        yield lambda count: progress.advance(task, count)
