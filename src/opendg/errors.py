"""The one error a user meets: a sentence with what was wrong, what was expected and what to try."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Sequence

FEW = 6  # choices that are all listed beside the nearest


class OpenDGError(Exception):
    """Something the user can put right. The command line prints its sentence and exits with 2."""


class Diverged(OpenDGError):
    """Losses or scores that are no longer finite: what the settings lead to, and no fault of data or machine."""


def unreadable(error: OSError) -> OpenDGError:
    """The error for a file or folder that may not be read."""
    return OpenDGError(f"{error.filename or 'A file'} cannot be read ({error.strerror}): see that you may read it.")


def require_one(option: str, value: int) -> None:
    """Refuse a count below 1."""
    if value < 1:
        raise OpenDGError(f"{option} {value} is out of range: give 1 or more.")


def refuse_doubles(what: str, named: Sequence[object]) -> None:
    """Refuse a list that names something twice."""
    for position, one in enumerate(named):
        if one in named[:position]:
            raise OpenDGError(f"The {what} {one!r} is named twice: name it once.")


def near(name: str, choices: Iterable[str]) -> list[str]:
    """Three choices at most: those that begin with `name`, then those closest in spelling, case set aside."""
    by_lower, lower = {choice.lower(): choice for choice in choices}, name.lower()
    begun = [choice for choice in by_lower if name and choice.startswith(lower)]
    close = difflib.get_close_matches(lower, by_lower, n=3, cutoff=0.5)
    return [by_lower[match] for match in dict.fromkeys(sorted(begun, key=len) + close)][:3]


def unknown_name(what: str, name: str, choices: Iterable[str], where: str = "") -> OpenDGError:
    """The error for a name that is not in a list: near matches first, with a short list; else the list."""
    choices = list(choices)
    matches = near(name, choices)
    if matches:
        hint = f"did you mean {' or '.join(repr(match) for match in matches)}?"
        if len(matches) < len(choices) <= FEW:  # what is near in spelling may be far from what was meant
            hint += f" Choose {', '.join(choices[:-1])} or {choices[-1]}."
    else:
        more = " ..." if len(choices) > 12 else "."
        hint = f"expected one of: {', '.join(choices[:12])}{more}" if choices else "there are none."
    return OpenDGError(f"There is no {what} {name!r}{where}: {hint}")


def counted(number: int, thing: str, things: str = "") -> str:
    """So many of a thing: 1 run, 2 runs."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def typed(path: object) -> str:
    """A path as it is typed in a shell, for the commands that messages offer."""
    return shlex.quote(str(path))
