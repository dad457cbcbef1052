"""What is given on the command line, in its words. Light, since the command line itself is read with it."""

from __future__ import annotations

from collections.abc import Mapping


def names_in(text: str) -> list[str]:
    """Names joined by commas."""
    return [name.strip() for name in text.split(",")]


def option(name: str) -> str:
    """What gives a parameter its value: --split-seed for split_seed."""
    return f"--{name.replace('_', '-')}"


def as_options(asked: Mapping[str, object]) -> list[str]:
    """The words that give parameters these values, lists joined by commas; None is not given."""
    words: list[str] = []
    for name, value in asked.items():
        if value is not None:
            words += [option(name), ",".join(value) if isinstance(value, list) else str(value)]
    return words
