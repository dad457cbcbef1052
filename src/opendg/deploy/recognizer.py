"""The Recognizer: what `opendg.load(run)` gives a user. Images in, labels or `unknown` out."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import IOBase
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opendg.data.decode import decode, resize
from opendg.data.tree import is_image, walk
from opendg.errors import OpenDGError, typed, unreadable
from opendg.evaluation.evaluate import predict_source
from opendg.evaluation.metrics import accepting_threshold
from opendg.methods.registry import METHODS
from opendg.predictions import UNKNOWN, Predictions, predict
from opendg.runs.directory import Run
from opendg.runs.restore import choose_weights, restore
from opendg.runs.scores import ready_scores
from opendg.scores.registry import usable_scores
from opendg.training.devices import make_fabric

Image = str | Path | bytes | bytearray | memoryview | NDArray[np.uint8]
ENCODED = (bytes, bytearray, memoryview)
ONE = (str, PathLike, *ENCODED, np.ndarray, torch.Tensor, IOBase)  # no list of images, though Python can iterate it

BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """What is said of one image. `label` is a class or `unknown`; `closest` the class it is most like.

    One that cannot be read has the label `error`, no confidence, and the reason in `error`.
    """

    image: str
    label: str
    closest: str
    confidence: float | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Recognizer:
    """A trained network with its score and threshold.

    An image is known if its score is at or above the threshold that accepts `accept` of the source validation images
    (95 % unless said otherwise). No target image takes part.
    """

    def __init__(
        self, run: Run, *, weights: str | None = None, score: str | None = None, accept: float = 0.95,
        device: str = "auto",
    ) -> None:  # fmt: skip
        if not 0 < accept <= 1:
            raise OpenDGError(f"--accept {accept} is out of range: give a share above 0 and at most 1, such as 0.95.")
        which = choose_weights(run, weights)
        self.device = make_fabric(device).device
        self.classifier = restore(run, which, self.device)
        self.classes: tuple[str, ...] = tuple(run.manifest["classes"])
        self.size = run.image_size
        val = Predictions.load(run.val_file(which))
        name = score or _default_score(run, val)
        self.score = ready_scores(run, which, [name], lambda: self._source(run, name), self.classifier)[name]
        self._ranked_threshold = accepting_threshold(self.score(val), accept)

    @property
    def threshold(self) -> float:
        """Below it an image is unknown; as `scores` and confidences are read, a probability for cls and bcls.

        Decisions are made before the score is read so, where values do not yet run together near 1.
        """
        return float(self.score.value(np.array([self._ranked_threshold]))[0])

    def predict(self, images: Image | Iterable[Image], batch: int = BATCH) -> list[Prediction]:
        """A Prediction for each image: paths, encoded bytes or uint8 arrays (H, W, 3). Broken ones carry an error."""
        return list(self.stream(images, batch))

    def stream(self, images: Image | Iterable[Image], batch: int = BATCH) -> Iterator[Prediction]:
        """The same, one batch at a time, for folders of any size; no image is asked for before its batch."""
        if batch < 1:
            raise OpenDGError(f"A batch of {batch} images was asked for: give 1 or more.")
        for read in self._batches(images, batch):
            good = [pixels for _, pixels in read if not isinstance(pixels, str)]
            found = iter(self._decide(np.stack(good)) if good else [])
            for name, pixels in read:
                if isinstance(pixels, str):
                    yield Prediction(name, "error", "", None, pixels)
                else:
                    yield Prediction(name, *next(found))

    def scores(self, images: Image | Iterable[Image]) -> NDArray[np.float64]:
        """How known each image is, as the score's value (a probability for cls and bcls). Broken images raise."""
        found = [np.empty(0)]
        for read in self._batches(images):
            if broken := [pixels for _, pixels in read if isinstance(pixels, str)]:
                raise OpenDGError(broken[0])
            found.append(self.score.value(self.score(self.outputs(np.stack([pixels for _, pixels in read])))))
        return np.concatenate(found)

    def outputs(self, pixels: NDArray[np.uint8]) -> Predictions:
        """All outputs for decoded images (n, H, W, 3)."""
        tensor = torch.from_numpy(pixels)
        arrays: dict[str, Any] = predict(self.classifier, lambda a, b: tensor[a:b], len(pixels), self.device)
        blank = np.full(len(pixels), "", dtype=np.str_)
        return Predictions(blank, blank, np.full(len(pixels), UNKNOWN), **arrays)

    def _source(self, run: Run, score: str) -> Predictions:
        try:
            return predict_source(run, self.classifier, self.device)
        except OpenDGError as error:
            raise OpenDGError(
                f"The score {score!r} is fitted on the source training images, and they could not be read "
                f"({str(error).rstrip('.')}): `opendg evaluate {typed(run.path)} --score {score} --root FOLDER` fits "
                "it where they are now, and the run keeps it."
            ) from error

    def _decide(self, pixels: NDArray[np.uint8]) -> list[tuple[str, str, float]]:
        outputs = self.outputs(pixels)
        scores = self.score(outputs)
        closest = [self.classes[number] for number in outputs.predicted]
        values = self.score.value(scores)
        return [
            (name if score >= self._ranked_threshold else "unknown", name, float(value))
            for name, score, value in zip(closest, scores, values, strict=True)
        ]

    def _batches(
        self, images: Image | Iterable[Image], batch: int = BATCH
    ) -> Iterator[list[tuple[str, NDArray[np.uint8] | str]]]:
        """The images as `_read` gives them, so many at a time: more need not fit into the memory."""
        numbered = enumerate(_each(images))
        while part := list(islice(numbered, batch)):
            yield [self._read(image, number) for number, image in part]

    def _read(self, image: Image, number: int) -> tuple[str, NDArray[np.uint8] | str]:
        """The image's name and its pixels at the size of training, or a sentence that says why not."""
        name = str(image) if isinstance(image, (str, Path)) else f"image {number}"
        try:
            if isinstance(image, np.ndarray):
                return name, resize(image, self.size)
            data = bytes(image) if isinstance(image, ENCODED) else Path(image).read_bytes()
            return name, decode(data, self.size, name)
        except OpenDGError as error:
            return name, str(error)
        except (OSError, ValueError, TypeError) as error:  # the last two: no file can have that path, it is none
            return name, f"{name!r} cannot be read: {getattr(error, 'strerror', None) or error}."


def _each(images: Image | Iterable[Image]) -> Iterable[Image]:
    """One image is a list of one; so is what is no image, that it may be said."""
    return images if isinstance(images, Iterable) and not isinstance(images, ONE) else [images]  # type: ignore[list-item]


def _default_score(run: Run, val: Predictions) -> str:
    """The method's own score; of the two plain ones bcls where there is a one-vs-all head, else cls."""
    own = METHODS[run.config["method"]].score
    return own if own not in ("cls", "bcls") else "bcls" if "bcls" in usable_scores(val) else "cls"


def find_images(paths: Sequence[str | Path]) -> list[Path]:
    """Files as they are, and all images below folders, sorted; hidden files and folders are left out."""
    try:
        return [image for path in map(Path, paths) for image in _found(path)]
    except OSError as error:
        raise unreadable(error) from error


def _found(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise OpenDGError(f"There is no {str(path)!r}: give image files or folders.")
        return [path]
    images = (Path(entry.path) for _, entry in walk(path, "") if is_image(entry.name))
    return sorted(image for image in images if not _is_pipe(image))


def _is_pipe(file: Path) -> bool:
    """Or a device: something that may never end. What cannot be looked at is none, and told when it is read."""
    try:
        return not stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False


def load(run: str | Path, **options: Any) -> Recognizer:
    """The Recognizer of a finished run. Loading never unpickles: a stranger's run is safe to open."""
    return Recognizer(Run.open(Path(run)), **options)
