"""One process works in a folder: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from opendg.errors import OpenDGError
from opendg.runs.files import disk_error

LOCK = ".lock"


@contextmanager
def held(folder: Path, refusal: str) -> Iterator[None]:
    """Hold the folder for the block, or refuse in these words when another process does."""
    lock = FileLock(folder / LOCK, timeout=0, thread_local=False)  # iterations may go on in another thread
    try:
        lock.acquire()
    except Timeout as error:
        raise OpenDGError(refusal) from error
    except OSError as error:
        raise disk_error(error, folder / LOCK) from error
    try:
        yield
    finally:
        lock.release()
