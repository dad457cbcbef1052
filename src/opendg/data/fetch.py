"""Downloads: the public copy of a dataset on the Hugging Face Hub, unpacked to domain/class/image.

An interrupted fetch goes on when it is started again: the files that have arrived are kept, and within a file the
Hub's client takes up a broken connection near the byte where it broke. Every file is compared with the size and the
SHA-256 that the Hub states for it. The images appear at their place all at once, when the last one is written.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path

from opendg.data import catalog, tables
from opendg.errors import OpenDGError


def fetch(name: str, to: Path, endpoint: str | None = None, progress: bool = True) -> Path:
    """Download the dataset `name` of the catalogue to the folder `to/name`, and return that folder.

    `endpoint` is the address of a mirror, where it is not the Hub itself; `progress` shows bars.
    """
    import filelock

    dataset = catalog.get(name)
    if dataset.hub is None:
        raise OpenDGError(_no_copy(dataset))
    place, work = Path(to) / dataset.name, Path(to) / f".{dataset.name}.part"
    if place.exists():
        raise OpenDGError(f"{place} exists already: use it, remove it, or give another folder with --to.")
    tables.parquet()  # better missed now than after the download
    with _errors_of_the_hub(dataset.hub):
        commit, files = _listing(dataset.hub, endpoint)
    _check_space(files, work)
    try:
        work.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(work / "lock", timeout=0):
            with _errors_of_the_hub(dataset.hub):
                _download(dataset.hub, commit, files, work / "tables", endpoint, progress)
            arrived = [_verified(work / "tables" / file.name, file) for file in files]
            images = work / "images"
            shutil.rmtree(images, ignore_errors=True)  # of a fetch that was stopped while it unpacked
            tables.unpack(arrived, images, dataset.domains, dataset.classes, progress)
            images.rename(place)
        shutil.rmtree(work, ignore_errors=True)
    except filelock.Timeout as error:
        raise OpenDGError(f"Another fetch is writing {place} at this moment: wait until it is done.") from error
    except OSError as error:
        raise OpenDGError(
            f"{place} could not be written ({error.strerror or error}): make room or give another folder with --to; "
            "what has arrived is kept for the next try."
        ) from error
    return place


def _no_copy(dataset: catalog.Dataset) -> str:
    if not dataset.url.startswith("http"):
        return f"{dataset.title} needs no download, it is made on first use: try --data {dataset.name}."
    return (
        f"No public copy of {dataset.title} is known that could be downloaded: get it from {dataset.url} and give its "
        "folder with --data."
    )


@dataclass(frozen=True)
class _File:
    """A file as the Hub states it. Small files have no SHA-256 there."""

    name: str
    size: int
    sha256: str | None


def _listing(hub: str, endpoint: str | None) -> tuple[str, list[_File]]:
    """The newest commit of the dataset and the tables it holds, sorted by name."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint).dataset_info(hub, files_metadata=True)
    files = [
        _File(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or []
        if file.rfilename.endswith(".parquet")
    ]
    if not files or info.sha is None:
        raise OpenDGError(f"The dataset {hub!r} on the Hugging Face Hub holds no Parquet table: please report it.")
    return info.sha, sorted(files, key=lambda file: file.name)


def _check_space(files: list[_File], work: Path) -> None:
    """Room for the tables that are still to come and for the images, which take about as much as all tables."""
    needed = sum(file.size * (1 if (work / "tables" / file.name).exists() else 2) for file in files)
    free = shutil.disk_usage(next(folder for folder in (work, *work.absolute().parents) if folder.exists())).free
    if needed > free:
        raise OpenDGError(
            f"The download needs {needed / 1e9:,.1f} GB, and {work.parent} has {free / 1e9:,.1f} GB free: make room or "
            "give another folder with --to."
        )


def _download(hub: str, commit: str, files: list[_File], folder: Path, endpoint: str | None, progress: bool) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        hub,
        repo_type="dataset",
        revision=commit,  # all files of one commit, and no silent use of an older copy when the Hub is away
        allow_patterns=[file.name for file in files],
        local_dir=folder,
        endpoint=endpoint,
        tqdm_class=None if progress else _no_bar(),
    )


def _verified(path: Path, file: _File) -> Path:
    """`path`, when it is what the Hub states. Else it is removed, so that the next fetch gets it anew."""
    if path.is_file() and path.stat().st_size == file.size:
        with path.open("rb") as stream:
            if file.sha256 in (None, hashlib.file_digest(stream, "sha256").hexdigest()):
                return path
    path.unlink(missing_ok=True)
    raise OpenDGError(
        f"{file.name} has arrived damaged (its size or SHA-256 is not the one the Hub states) and was removed: run the "
        "same command again."
    )


@contextmanager
def _errors_of_the_hub(hub: str) -> Iterator[None]:
    """What the Hub's client raises, as a sentence. Errors of the disk pass."""
    try:
        yield
    except OpenDGError:
        raise
    except Exception as error:  # the client has changed its HTTP library twice, and its errors with it
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise
        raise OpenDGError(_hub_failed(hub, error)) from error


def _hub_failed(hub: str, error: Exception) -> str:
    """The sentence for what the Hub's client raised."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if isinstance(error, RepositoryNotFoundError):
        return f"The Hugging Face Hub has no public dataset {hub!r} (any more): please report it."
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"The Hugging Face Hub answered {hub!r} with error {error.response.status_code}: try again later."
    reason = (str(error).splitlines() or [""])[0] or type(error).__name__
    return (
        f"{hub!r} could not be downloaded from the Hugging Face Hub ({reason.rstrip('.')}): check the connection and "
        "run the same command again; what has arrived is kept."
    )


def _no_bar() -> type:
    """The Hub's progress bar, switched off for this one call."""
    from huggingface_hub.utils.tqdm import tqdm

    return type("NoBar", (tqdm,), {"__init__": partialmethod(tqdm.__init__, disable=True)})
