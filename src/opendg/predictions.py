"""Predictions: what a classifier says of many images, as arrays. Scores, selection and evaluation share them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from opendg.data.augment import prepare
from opendg.data.index import Index, Rows
from opendg.data.store import Store
from opendg.errors import OpenDGError
from opendg.models.modes import evaluating

if TYPE_CHECKING:
    from opendg.models.classifier import Classifier

UNKNOWN = -1
ARRAYS = {  # kind of values, and how many dimensions
    "keys": ("U", 1),
    "domain": ("U", 1),
    "label": ("i", 1),
    "features": ("f", 2),
    "logits": ("f", 2),
    "ova": ("f", 3),
}
# What numpy and zipfile raise over a file that is torn, made up, or says that it holds more than the memory does.
UNREADABLE = (
    OSError, ValueError, TypeError, AttributeError, EOFError, RuntimeError, MemoryError, BadZipFile, zlib.error,
    TokenError,
)  # fmt: skip


@dataclass(frozen=True)
class Predictions:
    """One row an image. Outputs are float32 as the network gave them; scores compute in float64."""

    keys: NDArray[np.str_]  # the image's key in the Index
    domain: NDArray[np.str_]  # its domain's name
    label: NDArray[np.int64]  # number of its class among the known ones, UNKNOWN (-1) when it is of none
    features: NDArray[np.float32]  # (n, d) pooled features
    logits: NDArray[np.float32]  # (n, K) closed-set head
    ova: NDArray[np.float32] | None = None  # (n, 2, K) one-vs-all head: channel 0 "not this class", 1 "this class"

    def __len__(self) -> int:
        return len(self.label)

    @property
    def predicted(self) -> NDArray[np.int64]:
        """The closed-set class: argmax of the logits."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)

    @property
    def known(self) -> NDArray[np.bool_]:
        return np.asarray(self.label != UNKNOWN)

    @property
    def correct(self) -> NDArray[np.bool_]:
        return np.asarray(self.predicted == self.label)

    def take(self, rows: NDArray[Any]) -> Predictions:
        """The chosen rows (a mask or numbers)."""
        return Predictions(**{name: array[rows] for name, array in self._arrays().items()})

    def pack(self) -> bytes:
        """As the bytes of an .npz file without pickles."""
        file = BytesIO()
        np.savez_compressed(file, **self._arrays())
        return file.getvalue()

    def _arrays(self) -> dict[str, Any]:
        """Those that there are, by name."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """From a file of `pack`'s bytes, perhaps a stranger's: nothing in it is ever unpickled."""
        try:
            return cls.from_arrays(read_arrays(path))
        except UNREADABLE as error:
            raise OpenDGError(
                f"The predictions in {str(path)!r} cannot be read ({error}): train or evaluate the run again."
            ) from error

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Predictions:
        """Of the arrays that `pack` writes, by name; a ValueError, TypeError or AttributeError if they are others."""
        found = cls(**arrays)
        _check_arrays(found)
        return found


def read_arrays(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file, none of them unpickled; one of UNREADABLE where it is no such file."""
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _check_arrays(found: Predictions) -> None:
    """A ValueError, unless there is a row for each image in all of them, of as many classes."""
    for name, (kind, dimensions) in ARRAYS.items():
        array = getattr(found, name)
        if array is not None and (array.dtype.kind, array.ndim, len(array)) != (kind, dimensions, len(found)):
            raise ValueError(f"{name} is {array.dtype} {array.shape} and does not go with {len(found)} images")
    if found.ova is not None and found.ova.shape[1:] != (2, found.logits.shape[1]):
        raise ValueError(f"ova is {found.ova.shape} and does not go with logits {found.logits.shape}")


@torch.no_grad()
def predict(
    classifier: Classifier, images: Callable[[int, int], Tensor], count: int, device: torch.device, batch: int = 256
) -> dict[str, NDArray[np.float32]]:
    """The outputs for images 0..count-1 in batches, as float32 arrays: features, logits and, where there is one, ova.

    `images(a, b)` gives the uint8 images a..b-1 (n, H, W, 3). The network runs in evaluation mode and keeps its own
    mode; outputs are fetched once, at the end.
    """
    wanted = classifier.backbone.input
    mean, std = (torch.tensor(values, device=device) for values in (wanted.mean, wanted.std))
    collected: dict[str, list[Tensor]] = {}
    with evaluating(classifier):
        for start in range(0, count, batch):
            pixels = images(start, min(start + batch, count)).to(device, non_blocking=True)
            outputs = classifier(prepare(pixels, wanted.size, mean, std))
            for name, value in outputs._asdict().items():
                if value is not None:
                    collected.setdefault(name, []).append(value)
    return {name: torch.cat(values).cpu().numpy() for name, values in collected.items()}


def predict_rows(
    classifier: Classifier, store: Store, index: Index, labels: NDArray[np.int64], rows: Rows,
    device: torch.device,
) -> Predictions:  # fmt: skip
    """Predictions for rows of an Index, in this order. `labels` are those of a Split."""
    outputs: dict[str, Any] = predict(classifier, lambda a, b: store.tensor(rows[a:b]), len(rows), device)
    keys = np.array([index.keys[row] for row in rows], dtype=np.str_)
    domain = np.array(index.domains, dtype=np.str_)[index.domain[rows]]
    return Predictions(keys, domain, labels[rows], **outputs)
