"""What the commands share in showing things: progress on stderr, results on stdout, tables, JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import typer

from opendg.errors import counted

NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
FOLDED = 12  # columns of words are folded down to this; a table that needs more is wider than the terminal


def speaks() -> bool:
    """Whether this process is to be heard: of those of a data-parallel training the first alone."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))


class Progress:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere. Called with (step, of, losses)."""

    def __init__(self, title: str, quiet: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        console, quiet = Console(stderr=True), quiet or not speaks()
        self.title, self.live = title, console.is_terminal and not quiet
        # Losses have the room that title, count, time and a short bar leave: how far it is, is always seen.
        room = Column(no_wrap=True, overflow="ellipsis", max_width=max(10, console.width - len(title) - 30))
        columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}")]
        columns += [TimeRemainingColumn(), TextColumn("{task.fields[losses]}", table_column=room)]
        # Results that are written beside it go to stdout, wherever that leads, and not where the bar is.
        self.bar = Bar(*columns, console=console, disable=not self.live, redirect_stdout=False)
        self.task = self.bar.add_task(title, total=None, losses="preparing")
        self.quiet, self.said = quiet, time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, step: int, total: int, losses: dict[str, float]) -> None:
        text = "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
        self.bar.update(self.task, completed=step, total=total, losses=text)
        if not self.live and not self.quiet and (time.monotonic() - self.said > 10 or step == total):
            self.said = time.monotonic()
            typer.echo(f"{self.title}: {step}/{total}  {text}".rstrip(), err=True)

    def note(self, text: str) -> None:
        """A line above the bar."""
        if not self.quiet:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


def tell_left_out(keys: Iterable[str], of: str) -> None:
    """How many broken images were left out of something, on stderr; nothing where none was."""
    named = list(dict.fromkeys(keys))
    if named:
        some = counted(len(named), "broken image was", "broken images were")
        first = ", the first of them" if named[1:] else ":"
        typer.echo(f"{some} left out of {of}{first} {named[0]}.", err=True)


def say(values: Any, text: str = "", as_json: bool = True) -> None:
    """Results: JSON for machines, or in its place text for people."""
    typer.echo(json.dumps(values, indent=2) if as_json else text)


def table(title: str, columns: list[str], rows: list[list[str]], note: str = "") -> None:
    """A table on stdout, numbers to the right. Cells are text and no markup; long words are folded, never cut."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown, needed = Table(box=box.SIMPLE_HEAD), 1
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows]
        numeric = NUMBER.fullmatch(next((cell for cell in cells if cell != "-"), column)) is not None
        shown.add_column(Text(column), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
        longest = max(map(len, [column, *cells]))
        needed += 3 + (longest if numeric else min(longest, FOLDED))
    for row in rows:
        shown.add_row(*map(Text, row))
    console = Console(width=width())
    console.width = max(console.width, needed)
    console.print(Text(title, style="italic"), shown, sep="\n")  # not the table's own title, which has only its width
    if note:
        console.print(Text(note, style="dim italic"))


def width() -> int | None:
    """How wide tables may be: as the terminal, or 140 columns elsewhere."""
    return None if sys.stdout.isatty() else 140
