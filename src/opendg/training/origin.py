"""Where a run comes from: version, commit, command, machine. Numbers that users see carry it."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def origin(device: torch.device) -> dict[str, Any]:
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "opendg": import_module("opendg").__version__,  # not by name: for type checkers, that page imports every room
        "commit": _commit(),
        "command": shlex.join([_program(), *sys.argv[1:]]),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "timm": version("timm")},
    }


def _program() -> str:
    name = Path(sys.argv[0]).name
    return "opendg" if name == "__main__.py" else name


def _commit() -> str | None:
    """The commit of the checkout that this file lies in, `+` where it has changes; None when it is installed.

    $OPENDG_COMMIT says it where a checkout travels without its history.
    """
    if said := os.environ.get("OPENDG_COMMIT"):
        return said
    try:
        _git("ls-files", "--error-unmatch", Path(__file__).name)  # a virtual environment may lie in another checkout
        return _git("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*words: str) -> str:
    where = Path(__file__).resolve().parent
    return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=True).stdout.strip()
