"""docs/methods.md from the registry: `python -m opendg.methods.table > docs/methods.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields

from opendg.methods.base import Method
from opendg.methods.registry import METHODS

HEADER = """# Methods

Every method is trained with `opendg train NAME` and described, with its formula, in `src/opendg/methods/`. The recipe
is the same for all unless `--recipe authors` asks for the original one, where that is known.

"Extra cost" is the time of an iteration, with ERM as 1x. An iteration sees 6 B images unless the table says otherwise;
B is `--batch`. "Read with" is the [score](predict.md#what-decides) that tells known from unknown images by default.

This page is made from the code: `python -m opendg.methods.table > docs/methods.md`.
"""
OPTIONS = """
## Options

An option is set with `--set option=value`; the value shown is its default.
"""
COLUMNS = ("name", "paper", "year", "kind", "key idea", "extra cost", "read with")
MORE = ("name", "options", "authors' recipe")


def page() -> str:
    """The whole page, methods in the order of their names."""
    methods = [METHODS[name] for name in sorted(METHODS)]
    return "\n".join([HEADER, *_table(COLUMNS, map(row, methods)), OPTIONS, *_table(MORE, map(more, methods))]) + "\n"


def row(method: type[Method]) -> list[str]:
    """What a method is, a text for each of COLUMNS."""
    citation, _, link = method.paper.rpartition("https://")
    return [
        f"`{method.name}`",
        f"[{citation.strip(' ,')}](https://{link})",
        year(method),
        method.kind,
        method.idea,
        method.cost,
        f"`{method.score}`",
    ]


def more(method: type[Method]) -> list[str]:
    """What can be set, a text for each of MORE."""
    options = {field.name: field.default for field in fields(method.Config)}
    authors = {} if method.authors is None else method.authors.recipe | method.authors.settings
    return [f"`{method.name}`", _settings(options), _settings(authors)]


def year(method: type[Method]) -> str:
    """The first year in the citation; the numbers of arXiv look like years, so links and such numbers do not count."""
    found = re.search(r"\b(19|20)\d\d\b(?!\.\d)", method.paper.split("https://")[0])
    return found.group() if found else ""


def _settings(values: Mapping[str, object]) -> str:
    return " ".join(f"`{name}={_plain(value)}`" for name, value in values.items())


def _plain(value: object) -> str:
    """As `--set` takes it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(cells) for cells in (columns, ["---"] * len(columns), *rows)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
