"""Whether finished runs are of the images that lie there now: a run's name does not hold the files of its data."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from opendg.bench.cells import Cell
from opendg.bench.work import Site
from opendg.data.catalog import open_dataset
from opendg.data.index import Index
from opendg.errors import OpenDGError
from opendg.protocol import Protocol, manifest
from opendg.runs.directory import Run
from opendg.training.job import Job, home


def check_images(done: Mapping[str, Cell], site: Site) -> None:
    """Refuse to take runs for done whose images, by name and size, have changed. Each dataset is listed once."""
    places = {cell.data: home(cell.data, site.root) for cell in done.values()}

    @cache
    def index(data: str) -> Index:
        return open_dataset(data, places[data])

    @cache
    def files(data: str, protocol: Protocol) -> dict[str, str]:
        found: dict[str, str] = manifest(protocol, index(data), protocol.apply(index(data)))["files"]
        return found

    for name, cell in done.items():
        run = Run.open(Path(site.runs) / name)
        if run.manifest["files"] != files(cell.data, Job.from_json(run.config).protocol):
            raise OpenDGError(
                f"The images of {cell.data!r} are not those that the run {name!r} was made of, which have changed or "
                "lie elsewhere: use another --runs."
            )
