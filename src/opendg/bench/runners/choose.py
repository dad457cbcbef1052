"""The runner that was asked for."""

from __future__ import annotations

from pathlib import Path

from opendg.bench.runners import Runner
from opendg.errors import OpenDGError, require_one
from opendg.training.devices import check_device


def make_runner(
    on: str, runs: Path, *, jobs: int = 1, cpus: int = 1, device: str = "auto", address: str | None = None
) -> Runner:
    """`here` or `ray`. `jobs` runs share a GPU (or, here, the CPU); `cpus` is what a run takes of a Ray node."""
    require_one("--jobs", jobs)
    require_one("--cpus", cpus)
    check_device(device, here=on == "here")  # a wrong one would fail in every run
    if on == "here":
        from opendg.bench.runners.local import LocalRunner

        return LocalRunner(runs, jobs, device)
    if on == "ray":
        from opendg.bench.runners.ray import RayRunner

        return RayRunner(address, jobs, cpus, device)
    raise OpenDGError(f"There is no runner {on!r}: choose here or ray.")
