"""Where OpenDG keeps what it has made and can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$OPENDG_CACHE`, else `~/.cache/opendg`. It may not exist yet."""
    chosen = os.environ.get("OPENDG_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "opendg"
