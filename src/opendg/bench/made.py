"""How a table was made: the command that makes it again from the records beside it.

The command stands in the table's header and is read from there, so that a folder of results explains itself, and a
table that is no longer what its records say can be found (`stale`) and made anew (`remake`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from opendg.bench.plan import Plan
from opendg.bench.produce import FIGURES, Product, caption_of, figure_page, figure_rows, numbers_of, produce, titled
from opendg.bench.records import Result, load_records, take_weights
from opendg.bench.reproduce import asked_for
from opendg.errors import OpenDGError
from opendg.runs.files import make_folder, write_atomic
from opendg.training.config import read_config
from opendg.training.lists import as_options

LINE = re.compile(r"^- Made with `(opendg reproduce .*)`, in this folder\.$", re.MULTILINE)
PICTURE = re.compile(r"^!\[.*\]\((.*)\)$", re.MULTILINE)
TEXTS = (".md", ".tex", ".csv", ".json")  # pictures may differ in their bytes from machine to machine
FLAG = "--quick"


@dataclass(frozen=True)
class Made:
    """What a table is made with. Paths are as seen from the folder of the table."""

    name: str  # of a plan, or its file
    records: str
    plan: str | None = None
    take: str | None = None
    score: str | None = None
    notes: tuple[str, ...] = ()
    quick: bool = False

    def command(self) -> str:
        given = {"records": self.records, "out": ".", "plan": self.plan, "take": self.take, "score": self.score}
        words = ["opendg", "reproduce", self.name, *as_options(given)]
        words += [word for note in self.notes for word in ("--note", _line(note))]
        return shlex.join(words + [FLAG] * self.quick)

    @property
    def sentence(self) -> str:
        """For the header."""
        return f"Made with `{self.command()}`, in this folder."

    @classmethod
    def read(cls, page: Path) -> Made:
        """From the header of a table or of a page of figures."""
        found = LINE.search(page.read_text())
        try:
            _, _, name, *words = shlex.split(found[1] if found else "")
        except ValueError as error:  # it says nothing, or nothing that can be read
            raise OpenDGError(
                f"{str(page)!r} does not say how it was made: make it with `opendg reproduce`."
            ) from error
        said: dict[str, list[str]] = {"--note": []}
        options = iter(words)
        for option in options:
            said.setdefault(option, []).append("" if option == FLAG else next(options, ""))
        single = {key: said[f"--{key}"][0] for key in ("plan", "take", "score") if f"--{key}" in said}
        records = said.get("--records", ["."])[0]
        return cls(name, records, notes=tuple(said["--note"]), quick=FLAG in said, **single)

    def plan_of(self, home: Path) -> Plan:
        """The plan; `home` is the folder of the table."""
        name, plan = (None if file is None else _path(file, home) for file in (self.name, self.plan))
        return asked_for(str(name), None if plan is None else Path(plan), self.quick, score=self.score)

    @property
    def said(self) -> tuple[str, ...]:
        """What the header says beside the plan."""
        return (*map(_line, self.notes), self.sentence)

    def make(
        self, results: Sequence[Result], home: Path, out: Path, root: Path | None = None, device: str = "auto"
    ) -> Product:
        """The table or figure, into `out`."""
        return produce(self.plan_of(home), results, out, take=self.take, notes=self.said, root=root, device=device)


def make_into(
    folder: Path, name: str, records: Path, results: Sequence[Result], *, plan: Path | None = None,
    root: Path | None = None, device: str = "auto", **more: Any,
) -> Product:  # fmt: skip
    """The table or figure in a folder, with a copy of each plan that is a file: all of it, or nothing on an error."""
    where = Path(os.path.relpath(records.resolve(), folder.resolve())).as_posix()
    with TemporaryDirectory() as apart:
        home = Path(apart)
        kept = None if plan is None else _lay_beside(str(plan), home)
        made = Made(_lay_beside(name, home), where, kept, **more)
        product = made.make(results, home, home, root, device)
        make_folder(folder)
        for path in sorted(home.iterdir()):
            write_atomic(folder / path.name, path.read_bytes())
    return replace(product, files=[folder / path.name for path in product.files])


def about_configs(files: Sequence[Path]) -> list[str]:
    """For the header: what `opendg tune` wrote above the settings that it found, each sentence once."""
    notes, before = [], set[str]()
    for file in files:
        config = read_config(file)
        new = [note for note in config.notes if note not in before]
        before.update(new)
        if new:
            notes.append(f"Settings of {config.method}: {' '.join(new)}")
    return notes


def _lay_beside(plan: str, folder: Path) -> str:
    """What a table in the folder calls a plan: a shipped one by its name, a file by that of its copy there."""
    path = Path(plan)
    if path.suffix != ".toml":
        return plan
    copy, said = folder / path.name, path.read_bytes()
    if copy.exists() and copy.read_bytes() != said:
        raise OpenDGError(f"Two plans are called {path.name!r}, and both are to lie beside the table: rename one.")
    write_atomic(copy, said)
    return path.name


def _line(note: str) -> str:
    """A note as it can stand in a header and in a command."""
    return " ".join(note.split())


def _path(name: str, home: Path) -> str:
    return str(home / name) if name.endswith(".toml") else name


def pages_of(folder: Path) -> list[Path]:
    """The tables and pages of figures under a folder. A README is written by hand."""
    if not folder.is_dir():
        raise OpenDGError(f"There is no folder {str(folder)!r}: give one that holds tables of `opendg reproduce`.")
    return [page for page in sorted(folder.rglob("*.md")) if page.name != "README.md"]


def remake(page: Path) -> list[Path]:
    """Make a table or figures anew where they lie, from the records and predictions beside them; what was written."""
    made = Made.read(page)
    return made.make(load_records(page.parent / made.records), page.parent, page.parent).files


def stale(folder: Path) -> list[str]:
    """A sentence for each table under a folder that is not what its command makes of its records."""
    pages = pages_of(folder)
    tables = [path for path in sorted(folder.rglob("*")) if path.suffix in (".tex", ".csv")]
    orphans = [path for path in tables if path.with_suffix(".md") not in pages]
    found = [f"{str(path)!r} has no page {path.stem}.md beside it that says how it was made." for path in orphans]
    for page in pages:
        try:
            found += _differing(page)
        except OpenDGError as error:
            found.append(str(error))
    return list(dict.fromkeys(found))  # each page of a plan of several tables tells of all


def _differing(page: Path) -> list[str]:
    wanted = {page: b""} | {page.parent / name: text for name, text in _texts(page).items()}
    return [
        f"{str(path)!r} is not what its records make: run `opendg bench tables {page.parent}`."
        for path, text in wanted.items()
        if not path.is_file() or path.read_bytes() != text
    ]


def _texts(page: Path) -> dict[str, bytes]:
    """The files that the command in a page makes, but for pictures."""
    made = Made.read(page)
    results = load_records(page.parent / made.records)
    plan = made.plan_of(page.parent)
    if plan.show.kind in FIGURES:
        pictures = [name for name in PICTURE.findall(page.read_text()) if (page.parent / name).is_file()]
        taken = take_weights(results, made.take)
        rows = figure_rows(plan, taken)
        caption, numbers = caption_of(plan, taken, rows, made.said), numbers_of(plan, rows)
        return {page.name: figure_page(titled(plan, results), pictures, caption, numbers).encode()}
    with TemporaryDirectory() as folder:
        files = made.make(results, page.parent, Path(folder)).files
        return {path.name: path.read_bytes() for path in files if path.suffix in TEXTS}
