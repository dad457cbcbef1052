"""The score contract: Predictions -> confidence that each image is of a known class.

A score reads stored outputs in float64, where confident ones do not tie, and what it fits is a few arrays that the run
keeps. The detectors of pytorch-ood hold a network and work in its precision, with nothing to save but a pickle; so
these are our own, and the tests compare them with its detectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from opendg.errors import Diverged, OpenDGError

if TYPE_CHECKING:
    from opendg.predictions import Predictions

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

OUTPUTS = {
    "logits": "the logits of a closed-set head",
    "ova": "a one-vs-all head (train with --set ova=true)",
    "features": "pooled features",
    "head": "the weights of a linear closed-set head",
}


@dataclass(frozen=True)
class Head:
    """The linear closed-set head z = W f + c, for the scores that look at its weights."""

    weight: NDArray[np.float32]  # (K, d)
    bias: NDArray[np.float32]  # (K,)


class Score:
    """How known an image is. A subclass is one file: formula and paper in the docstring, `_score`, perhaps `_fit`.

    A score ranks: it may live on any scale on which float64 keeps images apart. `value` turns it into the number that
    users see and thresholds are laid on, a probability for some. What is fitted is fitted on source training images
    alone and lies in plain arrays, so that a run can keep it: `state()` gives them, `load()` takes them.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # as the literature calls it
    paper: ClassVar[str]  # citation with a link
    idea: ClassVar[str]  # one line
    needs: ClassVar[tuple[str, ...]]  # names in OUTPUTS
    fitted: ClassVar[tuple[str, ...]] = ()  # names of the arrays that `_fit` gives; none: nothing to fit
    own_threshold: ClassVar[float | None] = None  # on `value`, where training itself sets one

    _state: Arrays | None = None

    def fit(self, source: Predictions, head: Head | None = None) -> Self:
        """Fit on the source domains' training images, predicted without augmentation, if there is anything to fit."""
        self._check(source, head)
        if self.fitted:
            if not len(source) or not source.known.all():
                raise OpenDGError(
                    f"The score {self.name!r} is fitted on source images of known classes, and "
                    f"{int((~source.known).sum())} of the {len(source)} given are not: pass the training images alone."
                )
            self._state = self._fit(source, head)
        return self

    def __call__(self, predictions: Predictions) -> Floats:
        """One finite float64 an image, larger = more known. The images beside it make no difference to an image."""
        self._check(predictions, None, but=("head",))
        if not len(predictions):
            return np.empty(0)
        try:
            scores = np.asarray(self._score(predictions), dtype=np.float64)
        except (ValueError, TypeError, IndexError) as error:
            if not self.fitted:
                raise
            raise OpenDGError(
                f"What the score {self.name!r} was fitted to does not go with these outputs ({error}): fit it again."
            ) from error
        bad = int((~np.isfinite(scores)).sum())
        if bad:
            raise Diverged(
                f"The score {self.name!r} is not a finite number for {bad} of {len(scores)} images: "
                "look for NaN in the network's outputs (training diverged?) or take another score."
            )
        return scores

    def value(self, scores: Floats) -> Floats:
        """What users see of these scores and thresholds are laid on; never decreasing. Default: no change."""
        return scores

    def state(self) -> Arrays:
        """What was fitted, as plain arrays by name; empty where nothing is."""
        return dict(self._fitted()) if self.fitted else {}

    def load(self, state: Arrays) -> Self:
        """Take what `state` of a fitted score gave."""
        if set(state) != set(self.fitted):
            raise OpenDGError(
                f"This is not the state of the score {self.name!r}: expected the arrays "
                f"{', '.join(self.fitted) or '(none)'}, got {', '.join(state) or '(none)'}. Fit it again."
            )
        self._state = {name: np.asarray(array) for name, array in state.items()} if self.fitted else None
        return self

    @classmethod
    def lacks(cls, predictions: Predictions, head: Head | None = None) -> list[str]:
        """Which of its needs these outputs do not meet."""
        has = {"logits": True, "features": True, "ova": predictions.ova is not None, "head": head is not None}
        return [need for need in cls.needs if not has[need]]

    def _check(self, predictions: Predictions, head: Head | None, but: tuple[str, ...] = ()) -> None:
        missing = [OUTPUTS[need] for need in self.lacks(predictions, head) if need not in but]
        if missing:
            raise OpenDGError(
                f"The score {self.name!r} needs {' and '.join(missing)}, which this classifier does not have."
            )

    def _fitted(self) -> Arrays:
        if self._state is None:
            raise OpenDGError(f"The score {self.name!r} is not fitted yet: call fit with source training predictions.")
        return self._state

    def _fit(self, source: Predictions, head: Head | None) -> Arrays:
        raise NotImplementedError

    def _score(self, predictions: Predictions) -> Floats:
        raise NotImplementedError
