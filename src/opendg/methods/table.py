"""docs/methods.md from the registry: `python -m opendg.methods.table > docs/methods.md`."""

from __future__ import annotations

import re
from dataclasses import fields

from opendg.methods.base import Method
from opendg.methods.registry import METHODS

HEADER = """# Methods

Every method is trained with `opendg train NAME` and described, with its formula, in `src/opendg/methods/`. The recipe
is the same for all unless `--recipe authors` asks for the original one, where that is known (last column). An option is
set with `--set option=value`; the value shown is its default. The cost is that of an iteration beside one of ERM.

This page is made from the code: `python -m opendg.methods.table > docs/methods.md`.
"""
COLUMNS = ("name", "paper", "year", "kind", "key idea", "extra cost", "read with", "options", "authors' recipe")


def page() -> str:
    """The whole page, methods in the order of their names."""
    lines = [HEADER, _line(COLUMNS), _line(["---"] * len(COLUMNS))]
    lines += [_line(row(METHODS[name])) for name in sorted(METHODS)]
    return "\n".join(lines) + "\n"


def row(method: type[Method]) -> list[str]:
    """One method, a text for each of COLUMNS."""
    citation, _, link = method.paper.rpartition("https://")
    options = [f"{field.name}={_plain(field.default)}" for field in fields(method.Config)]
    authors = "" if method.authors is None else _settings(method.authors.recipe | method.authors.settings)
    return [
        f"`{method.name}`",
        f"[{citation.strip(' ,')}](https://{link})",
        year(method),
        method.kind,
        method.idea,
        method.cost,
        f"`{method.score}`",
        _code(options),
        authors,
    ]


def year(method: type[Method]) -> str:
    """The first year in the citation; the numbers of arXiv look like years, so links and such numbers do not count."""
    found = re.search(r"\b(19|20)\d\d\b(?!\.\d)", method.paper.split("https://")[0])
    return found.group() if found else ""


def _settings(values: dict[str, object]) -> str:
    return _code([f"{name}={_plain(value)}" for name, value in values.items()])


def _plain(value: object) -> str:
    """As `--set` takes it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _code(options: list[str]) -> str:
    return " ".join(f"`{option}`" for option in options)


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
