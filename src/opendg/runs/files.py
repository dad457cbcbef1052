"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import errno
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any

from opendg.errors import OpenDGError


def write_atomic(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename. On failure the old file stays and the temporary one goes.

    Its name is drawn by chance: threads, and containers that share a folder, may have equal process numbers. (That of
    `tempfile` would be readable for its owner alone, and so would the file that it becomes.)
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        with suppress(OSError):  # it is gone when all went well, and never was where nothing may be written
            temporary.unlink()


def write_json(path: Path, values: Any) -> None:
    write_atomic(path, (json.dumps(values, indent=2) + "\n").encode())


def make_folder(folder: Path) -> None:
    """The folder with all above it, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(error, folder) from error


def disk_error(error: OSError, path: Path) -> OpenDGError:
    """The sentence for a disk that is full or may not be written to."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OpenDGError(
            f"The disk is full, so {str(path)!r} was not written: free some space or choose another place."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return OpenDGError(f"{str(path)!r} may not be written to: choose another place, or change its permissions.")
    return OpenDGError(f"{str(path)!r} could not be written ({error.strerror}): choose another place.")
