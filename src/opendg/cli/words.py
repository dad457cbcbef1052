"""What the commands share in reading their words."""

from __future__ import annotations

import typer

from opendg.errors import OpenDGError


def names(text: str | None) -> list[str] | None:
    """Names joined by commas."""
    return [name.strip() for name in text.split(",")] if text else None


def numbers(text: str | None) -> list[int] | None:
    """The whole numbers of --seeds, joined by commas."""
    try:
        return [int(word) for word in text.split(",")] if text else None
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
    given = [
        parameter.opts[0] if parameter.opts[0].startswith("-") else str(parameter.name).upper()
        for parameter in context.command.params
        if parameter.name not in heeded and _said(context, str(parameter.name))
    ]
    if given:
        listed = " and ".join([", ".join(given[:-1]), given[-1]] if given[1:] else given)
        raise OpenDGError(f"{listed} would be without effect: {why}; leave {'them' if given[1:] else 'it'} out.")


def _said(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"  # by name: Typer's enumeration is its own or Click's
