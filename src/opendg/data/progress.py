"""A bar on standard error for work on many images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What the work sees of its bar."""

    def advance(self, images: int) -> None: ...

    def say(self, text: str) -> None: ...


@contextmanager
def bar(text: str, total: int, show: bool = True) -> Iterator[Bar]:
    """A bar to be moved on. Nothing is shown of no work at all; without a terminal only the end is printed."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not (show and total)) as progress:
        task = progress.add_task(text, total=total)

        class Shown:
            def advance(self, images: int) -> None:
                progress.advance(task, images)

            def say(self, text: str) -> None:
                progress.update(task, description=text)

        yield Shown()
