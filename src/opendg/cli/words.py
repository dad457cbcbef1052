"""What the commands share in reading their words."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from opendg.errors import OpenDGError, refuse_doubles
from opendg.training.lists import names_in, option

if TYPE_CHECKING:
    from opendg.data.index import Index

AGAIN = "the same command goes on"  # after Ctrl-C


def names(text: str | None) -> list[str] | None:
    """Names joined by commas."""
    return names_in(text) if text else None


def known_classes(text: str | None) -> int | list[str] | None:
    """What --known says: how many, or which."""
    return int(text) if text and text.isdecimal() else names(text)


def domains(each: str, index: Index) -> list[str]:
    """The domains of --each-target: all of them, or those named, each once."""
    found = list(index.domains) if each == "all" else names_in(each)
    refuse_doubles("target", found)
    return found


def numbers(text: str | None) -> list[int] | None:
    """The whole numbers of --seeds, joined by commas."""
    try:
        return None if text is None else [int(word) for word in names_in(text)]
    except ValueError as error:
        raise OpenDGError(f"--seeds {text} is not a list of whole numbers: try --seeds 0,1,2.") from error


def settings(pairs: list[str]) -> dict[str, str]:
    """key=value pairs of --set."""
    for pair in pairs:
        if "=" not in pair:
            raise OpenDGError(f"--set {pair} is not of the form key=value: try --set order=2.")
    return dict(pair.split("=", 1) for pair in pairs)


def refuse_all_but(context: typer.Context, heeded: tuple[str, ...], why: str) -> None:
    """Refuse what was given on the command line beside the parameters that are heeded: it would be without effect."""
    refuse_idle(context, [str(p.name) for p in context.command.params if p.name not in heeded], why)


def refuse_idle(context: typer.Context, idle: Collection[str], why: str) -> None:
    """Refuse those of some parameters that were given on the command line: they would be without effect."""
    given = [
        parameter.opts[0] if parameter.opts[0].startswith("-") else str(context.params[str(parameter.name)])
        for parameter in context.command.params
        if parameter.name in idle and _said(context, str(parameter.name))
    ]
    if given:
        raise OpenDGError(
            f"{_listed(given)} would be without effect: {why}; leave {'them' if given[1:] else 'it'} out."
        )


def refuse_both(context: typer.Context, one: str, other: str) -> None:
    """Refuse two options of which each says what the other does."""
    if _said(context, one) and _said(context, other):
        raise OpenDGError(f"Give {option(one)} or {option(other)}, not both.")


def require(
    command: str, method: str | None, data: str | None, target: str | None, root: Path | None
) -> tuple[str, str]:
    """The method and the data; refused without them and a target. Where that alone is missing, say which there are."""
    if method and data and target:
        return method, data
    if method and data:
        from opendg.data.catalog import open_dataset

        index = open_dataset(data, root)
        raise OpenDGError(
            f"--target is missing: give a domain of {index.dataset} ({', '.join(index.domains)}), or --each-target all."
        )
    needed = {"a method": method, "--data": data, "--target": target}
    missing = [name for name, given in needed.items() if not given]
    raise OpenDGError(
        f"Without {_listed(missing)} there is nothing to {command}: try `opendg {command} {method or 'medic'} --data "
        "glyphs --target street`."
    )


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def _said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"  # by name: Typer's enumeration is its own or Click's
