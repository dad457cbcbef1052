"""Where OpenDG keeps what it has made and can make again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident


def cache_dir() -> Path:
    """`$OPENDG_CACHE`, else `~/.cache/opendg`. It may not exist yet."""
    chosen = os.environ.get("OPENDG_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "opendg"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file that takes the place of `path` when the block ends well, and goes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{get_ident()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
