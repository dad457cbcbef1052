"""opendg methods, datasets, scores: what there is, one line each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from opendg.cli.options import Json
from opendg.cli.show import say, table
from opendg.errors import unknown_name

Pattern = Annotated[str, typer.Argument(help="A wildcard, e.g. 'm*'.")]


def methods(pattern: Pattern = "*", json_: Json = False) -> None:
    """List the methods.

    Example: opendg methods 'm*' --json
    """
    from dataclasses import fields

    from opendg.methods.registry import METHODS, list_methods

    rows: list[dict[str, Any]] = []
    for name in list_methods(pattern):
        method = METHODS[name]
        options = {field.name: field.default for field in fields(method.Config)}
        told = {key: getattr(method, key) for key in ("name", "title", "kind", "idea", "paper", "cost", "score")}
        rows.append(told | {"settings": options})
    _list("method", METHODS, pattern, rows, ["name", "idea", "paper"], json_)


def datasets(pattern: Pattern = "*", json_: Json = False) -> None:
    """List the datasets of the catalogue.

    Example: opendg datasets --json
    """
    from opendg.data.catalog import DATASETS, list_datasets

    chosen = [DATASETS[name] for name in list_datasets(pattern)]
    rows: list[dict[str, Any]] = [
        {"name": entry.name, "title": entry.title, "domains": list(entry.domains), "classes": len(entry.classes),
         "known": entry.known, "licence": entry.licence, "paper": entry.citation, "url": entry.url,
         "fetch": entry.hub is not None}
        for entry in chosen
    ]  # fmt: skip
    shown = [row | {"domains": ", ".join(row["domains"]), "classes": str(row["classes"])} for row in rows]
    fetched = ", ".join(entry.name for entry in chosen if entry.hub)
    note = f"`opendg data fetch NAME --to DIR` downloads: {fetched}." if fetched else ""
    columns = ["name", "domains", "classes", "paper"]
    _list("dataset", DATASETS, pattern, shown if not json_ else rows, columns, json_, note)


def scores(pattern: Pattern = "*", json_: Json = False) -> None:
    """List the scores: from outputs to how known an image is.

    Example: opendg scores
    """
    from opendg.scores.registry import SCORES, list_scores

    rows = [
        {"name": name, "title": SCORES[name].title, "idea": SCORES[name].idea, "paper": SCORES[name].paper,
         "needs": list(SCORES[name].needs), "fitted": bool(SCORES[name].fitted)}
        for name in list_scores(pattern)
    ]  # fmt: skip
    _list("score", SCORES, pattern, rows, ["name", "idea", "paper"], json_)


def _list(
    what: str, there: Iterable[str], pattern: str, rows: list[dict[str, Any]], columns: list[str], json_: bool,
    note: str = "",
) -> None:  # fmt: skip
    """The rows of those that match the pattern; one that nothing matches is refused."""
    if not rows:
        raise unknown_name(what, pattern, there)
    if json_:
        say(rows)
    else:
        table(f"{what.capitalize()}s", columns, [[str(row[column]) for column in columns] for row in rows], note)
