"""Predictions: what a classifier says of many images, as arrays. Scores, selection and evaluation share them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1


@dataclass(frozen=True)
class Predictions:
    """One row an image. Outputs are float32 as the network gave them; scores compute in float64."""

    keys: NDArray[np.str_]  # the image's key in the Index
    domain: NDArray[np.str_]  # its domain's name
    label: NDArray[np.int64]  # number of its class among the known ones, UNKNOWN (-1) when it is of none
    features: NDArray[np.float32]  # (n, d) pooled features
    logits: NDArray[np.float32]  # (n, K) closed-set head
    ova: NDArray[np.float32] | None  # (n, 2, K) one-vs-all head: channel 0 "not this class", channel 1 "this class"
    extra: dict[str, NDArray[np.float32]] | None = None  # further outputs by name, for methods that have them

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
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        extra = values.pop("extra")
        taken = {name: None if array is None else array[rows] for name, array in values.items()}
        return Predictions(**taken, extra=None if extra is None else {k: v[rows] for k, v in extra.items()})

    def save(self, path: Path) -> None:
        """As .npz without pickles."""
        arrays = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        arrays |= {f"extra.{name}": array for name, array in (self.extra or {}).items()}
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> Predictions:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
        extra = {name.removeprefix("extra."): arrays.pop(name) for name in list(arrays) if name.startswith("extra.")}
        return cls(**({"ova": None} | arrays), extra=extra or None)
