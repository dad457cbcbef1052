"""Real processes of `opendg`, to be killed: a server that has imported everything forks one for each command.

So a command starts in milliseconds, and a test can afford to kill dozens. A child dies just before its n-th change to
the files under a folder, in the middle of its n-th write (SIGKILL), or when it has worked for some time, wherever it is
then (SIGPROF of a timer that the system keeps; Python does not notice, so like SIGKILL it lets nothing be cleaned up).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class End(NamedTuple):
    """How a command ended: its exit code, or minus the signal that killed it; the seconds that it has worked, load or
    no load; what it said; how often it changed files."""

    code: int
    worked: float
    out: str
    err: str
    changes: int


class Forks:
    """`run` gives the end of a command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *words: object, **order: Any) -> End:
        """Orders: `watch`, a folder, and `kill_before`, the number of a change to it; `kill_within`, the number of a
        write; `kill_after`, seconds of work; `largest_file`, in bytes."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        order |= {"words": list(map(str, words)), "folder": str(self.folder), "environment": dict(os.environ)}
        self.server.stdin.write(json.dumps(order) + "\n")
        self.server.stdin.flush()
        status, worked = json.loads(self.server.stdout.readline())
        out, err, changes = ((self.folder / name).read_text() for name in ("out", "err", "changes"))
        return End(os.waitstatus_to_exitcode(status), worked, out, err, len(changes))

    def close(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(timeout=60)
        self.server.stdout.close()


def serve() -> None:
    import torch

    from opendg.cli import main
    from opendg.deploy import recognizer  # noqa: F401 (and with it all that a command imports late)
    from opendg.evaluation import evaluate  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(obey(order, main))
        _, status, used = os.wait4(child, 0)
        print(json.dumps([status, used.ru_utime + used.ru_stime]), flush=True)


def obey(order: dict[str, Any], main: Any) -> int:
    """Run one command in this process."""
    folder = Path(order["folder"])
    for name, stream in {"out": 1, "err": 2}.items():
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    changes = os.open(folder / "changes", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.environ.clear()
    os.environ.update(order["environment"])
    if order.get("largest_file"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["largest_file"], resource.RLIM_INFINITY))
    if order.get("kill_after"):
        signal.setitimer(signal.ITIMER_PROF, order["kill_after"])
    if order.get("watch"):
        sys.addaudithook(Doom(order["watch"], order.get("kill_before", 0), changes))
    if order.get("kill_within"):
        os.fsync = Tear(order["kill_within"])  # type: ignore[assignment]
    sys.argv = ["opendg", *order["words"]]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Doom:
    """Counts changes to files under a folder, and dies just before one of them."""

    def __init__(self, folder: str, at: int, told: int) -> None:
        self.folder, self.at, self.told, self.count = folder, at, told, 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            changes = bool(arguments[2] & WRITING)
        else:
            changes = event in CHANGES
        if changes and str(arguments[0]).startswith(self.folder):
            self.count += 1
            os.write(self.told, b".")
            if self.count == self.at:
                die()


class Tear:
    """In the place of fsync: at one of the writes, loses half of the file and dies."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def __call__(self, file: int) -> None:
        self.count += 1
        if self.count == self.at:
            os.ftruncate(file, os.fstat(file).st_size // 2)
            die()


if __name__ == "__main__":
    serve()
