"""Where OpenDG keeps what it has made and can make again."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_dir() -> Path:
    """`$OPENDG_CACHE`, else `~/.cache/opendg`. It may not exist yet."""
    chosen = os.environ.get("OPENDG_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "opendg"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well, and goes when it does not.

    Its name is drawn by chance: containers that share a cache may have equal process numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
