"""One process trains a run: a lock that ends with the process that holds it, however that ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from opendg.errors import OpenDGError
from opendg.runs.files import disk_error

LOCK = ".lock"


@contextmanager
def held(run: Path) -> Iterator[None]:
    """Hold the run for the block, or say that another process does."""
    lock = FileLock(run / LOCK, timeout=0, thread_local=False)  # iterations may go on in another thread
    try:
        lock.acquire()
    except Timeout as error:
        raise OpenDGError(
            f"Another process is training {str(run)!r}: let it finish, or end it before you resume the run here."
        ) from error
    except OSError as error:
        raise disk_error(error, run / LOCK) from error
    try:
        yield
    finally:
        lock.release()
