"""Folders and tars -> Index. Nothing is unpacked and no image is opened.

Layouts, which may be mixed between domains:

    root/domain/class/image
    root/domain/{train,val}/class/image         (Digits-DG; `crossval` is another word for val)
    root/domain.tar                             with members domain/class/image or domain/{train,val}/class/image

A domain that lies there both as a folder with images and as a tar is read from the folder.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from opendg.data.entries import recognise
from opendg.data.index import NO_PART, TRAIN, VAL, Index
from opendg.errors import OpenDGError, unreadable

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif")
PARTS = {"train": TRAIN, "val": VAL, "crossval": VAL}
LAYOUT = "expected DOMAIN/CLASS/IMAGE or DOMAIN/{train,val}/CLASS/IMAGE"
ABOVE = "give the folder that holds the domains"


class _Image(NamedTuple):
    key: str
    offset: int  # in the domain's tar, 0 in a file of its own
    size: int
    modified: tuple[int, int]  # of its file or tar: last written, last changed in any way (nanoseconds)


class _Files(Sequence[Path]):
    """The file of each image: made when asked for, as half a million Path objects take longer than the scan."""

    def __init__(self, root: Path, images: list[_Image]) -> None:
        self._root, self._images = root, images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, row: int) -> Path: ...

    @overload
    def __getitem__(self, row: slice) -> list[Path]: ...

    def __getitem__(self, row: int | slice) -> Path | list[Path]:
        if isinstance(row, slice):
            return [self[number] for number in range(*row.indices(len(self)))]
        image = self._images[row]
        return self._root / (image.key.split("/")[0] + ".tar" if image.offset else image.key)


def scan(root: Path, dataset: str | None = None) -> Index:
    """The Index of all images under `root`.

    `dataset` is the catalogue name, when the caller knows it; else it is recognised by the names of domains and
    classes, and failing that the folder's name is taken.
    """
    root = Path(root)
    if not root.is_dir():
        raise OpenDGError(f"There is no folder {root}: expected one that holds a folder or a tar for each domain.")
    try:
        domains = _domains(root)
    except OSError as error:
        raise unreadable(error) from error
    images = sorted(image for name in domains for image in domains[name])
    if not images:
        raise OpenDGError(f"The folder {root} holds no images: {LAYOUT}, or a tar for each domain; {ABOVE}.")
    _refuse_odd_names(images)
    return _index(root, dataset, images)


def _domains(root: Path) -> dict[str, list[_Image]]:
    """Domain -> its images, from folders and from tars."""
    entries = _entries(root)
    tars = {entry.name[:-4]: Path(entry.path) for entry in entries if entry.name.endswith(".tar") and entry.is_file()}
    folders = {entry.name: Path(entry.path) for entry in entries if _is_folder(entry)}
    found = {name: _folder_images(folder) for name, folder in folders.items()}
    found = {name: images for name, images in found.items() if images or not _is_beside(folders[name], name in tars)}
    for name, tar in tars.items():
        if name not in found:
            status = tar.stat()
            found[name] = _tar_images(tar, status.st_size, _modified(status))
    for name, images in found.items():
        if not images:
            raise OpenDGError(f"The domain {name} under {root} has no images in class folders: {LAYOUT}; {ABOVE}.")
    return found


def _is_beside(folder: Path, has_tar: bool) -> bool:
    """Whether a folder without images in class folders is no domain: the empty twin of a tar, or one with texts."""
    entries = _entries(folder)
    texts_only = bool(entries) and not any(_is_folder(entry) or is_image(entry.name) for entry in entries)
    return has_tar or texts_only


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def walk(folder: Path, key: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """All files under a folder, with their keys: also behind links to folders, but for one that leads back up.

    Hidden files and folders are passed over.
    """
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in _entries(folder):
        if _is_folder(entry):
            yield from walk(folder / entry.name, f"{key}/{entry.name}", (*above, here))
        else:
            yield f"{key}/{entry.name}", entry


def _folder_images(domain: Path) -> list[_Image]:
    root = domain.parent
    return _in_classes(image for image in _images(domain) if _belongs(image.key, root))


def _images(domain: Path) -> Iterator[_Image]:
    """All images of a domain's folder, however deep, so that what lies too deep is noticed."""
    for key, entry in walk(domain, domain.name):
        if not is_image(entry.name):
            continue
        try:
            status = entry.stat()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            yield _Image(key, 0, 0, (0, 0))  # a link to nothing: an image without bytes
            continue
        if stat.S_ISREG(status.st_mode):
            yield _Image(key, 0, status.st_size, _modified(status))


def _modified(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=64)
def _tar_images(tar: Path, size: int, modified: tuple[int, int]) -> list[_Image]:
    """The images of a tar, by its headers. `size` and `modified` make a changed tar a new one for the cache."""
    images = dict[str, _Image]()
    try:
        with tar.open("rb") as opened, tarfile.open(fileobj=opened, mode="r:") as file:
            for member in file:
                key = _member_key(tar, member)
                if key and _belongs(key, tar):
                    images[key] = _Image(key, member.offset_data, member.size, modified)  # of two the later counts
            opened.seek(file.offset)
            if opened.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                # Tarfile takes a damaged header, and the end of a file that was cut there, for the end of the tar.
                raise tarfile.ReadError("it has no end, or a damaged member")
    except (tarfile.TarError, EOFError) as error:
        raise OpenDGError(
            f"{tar} cannot be read as a tar ({error}): expected a whole, uncompressed one; fetch or pack it again."
        ) from error
    return _in_classes(images.values())


def _member_key(tar: Path, member: tarfile.TarInfo) -> str | None:
    """The key of an image in a tar, None for what is no image. A tar is a stranger's: its names are not trusted."""
    names = [name for name in member.name.split("/") if name not in ("", ".")]
    if member.isdir() or not names or not is_image(names[-1]):
        return None
    if member.name.startswith("/") or ".." in names or "\\" in member.name:
        raise OpenDGError(f"{tar} is refused, for its member {member.name!r} leads out of the folder: pack it again.")
    if any(name.startswith(".") for name in names):
        return None
    if not member.isreg() or member.issparse():
        raise OpenDGError(
            f"{tar} is refused, for its member {member.name!r} is a link or has no bytes of its own: pack it again, "
            "with `tar --dereference --hard-dereference`."
        )
    if names[0] != tar.stem:
        raise OpenDGError(
            f"{tar} holds {member.name!r}: expected {tar.stem}/CLASS/IMAGE; a tar beside the domains that is "
            "none itself must lie elsewhere."
        )
    return "/".join(names)


def _belongs(key: str, where: Path) -> bool:
    """Whether the key is of a known layout. An image beside the class folders is left out; one below is refused."""
    depth = key.count("/")
    if depth < 2:
        return False
    if depth == 2 or (depth == 3 and key.split("/")[1].lower() in PARTS):
        return True
    raise OpenDGError(f"The image {key} in {where} lies too deep: {LAYOUT}; move it up, or {ABOVE}.")


def _in_classes(images: Iterable[_Image]) -> list[_Image]:
    """Those in class folders: `train` and `val` are classes of their own only where they hold no class folders."""
    found = list(images)
    parts = {image.key.rsplit("/", 2)[0] for image in found if image.key.count("/") == 3}
    return [image for image in found if image.key.rpartition("/")[0] not in parts]


def _refuse_odd_names(images: list[_Image]) -> None:
    """Names that are no text could be written into no manifest."""
    try:
        "".join(image.key for image in images).encode()
    except UnicodeEncodeError as error:
        bad = next(image.key for image in images if _undecodable(image.key))
        raise OpenDGError(f"The file name {bad!a} is not valid UTF-8: rename it.") from error


def _undecodable(key: str) -> bool:
    return any("\udc80" <= sign <= "\udcff" for sign in key)


def _index(root: Path, dataset: str | None, images: list[_Image]) -> Index:
    folders = [image.key.rpartition("/")[0] for image in images]
    names = {folder: folder.split("/") for folder in set(folders)}  # domain, (part,) class
    domains = tuple(sorted({parts[0] for parts in names.values()}))
    classes = tuple(sorted({parts[-1] for parts in names.values()}))
    numbers = {
        folder: (
            domains.index(parts[0]),
            classes.index(parts[-1]),
            PARTS[parts[1].lower()] if len(parts) == 3 else NO_PART,
        )
        for folder, parts in names.items()
    }
    domain, label, part = np.array([numbers[folder] for folder in folders], dtype=np.int64).T.copy()
    return Index(
        dataset=dataset or recognise(domains, classes) or root.resolve().name,
        domains=domains,
        classes=classes,
        keys=tuple(image.key for image in images),
        files=_Files(root, images),
        offset=np.array([image.offset for image in images], dtype=np.int64),
        size=np.array([image.size for image in images], dtype=np.int64),
        modified=np.array([image.modified for image in images], dtype=np.int64),
        domain=domain,
        label=label,
        part=part,
    )
