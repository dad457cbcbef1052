"""The names of a dataset as an empty tree.

What a run is, is planned by `opendg.training.job.plan`, which asks a dataset for its domains and classes. A tree of
empty files answers that without images, so that a plan can be costed where the data are not, and a large dataset need
not be listed once for every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from opendg.data import catalog
from opendg.data.entries import DATASETS, Dataset
from opendg.errors import OpenDGError


def names_of(data: str, root: Path | None, need_data: bool = False) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """(dataset, domains, classes): of the images where they lie, else as the catalogue has them."""
    try:
        index = catalog.open_dataset(data, root)
    except OpenDGError:
        entry = _entry(data)
        if need_data or entry is None:
            raise
        return entry.name, entry.domains, entry.classes
    return index.dataset, index.domains, index.classes


def _entry(data: str) -> Dataset | None:
    return next((entry for entry in DATASETS.values() if catalog.plain(entry.name) == catalog.plain(data)), None)


@contextmanager
def skeleton(dataset: str, domains: tuple[str, ...], classes: tuple[str, ...]) -> Iterator[str]:
    """A folder that `plan` takes for the dataset; it is gone after the block."""
    with TemporaryDirectory(prefix="opendg-names-") as folder:
        for domain in domains:
            for name in classes:
                cell = Path(folder, dataset, domain, name)
                cell.mkdir(parents=True)
                for image in ("0.png", "1.png"):  # one to train on, one to validate
                    (cell / image).touch()
        yield str(Path(folder, dataset))
