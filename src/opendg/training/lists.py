"""Lists as they are given in one text. Light, since the command line reads its words with it."""

from __future__ import annotations


def names_in(text: str) -> list[str]:
    """Names joined by commas."""
    return [name.strip() for name in text.split(",")]
