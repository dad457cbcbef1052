"""The survey: the source images, whole and not augmented, for methods and for selection."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from opendg.data.augment import prepare
from opendg.data.index import Index, Rows
from opendg.data.store import Store
from opendg.episodes import Pool, Task
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions, predict_rows
from opendg.protocol import Split


class SourceSurvey:
    """What `Method.every` and `Method.finish` look through. It holds no row of the target."""

    def __init__(
        self, classifier: Classifier, store: Store, index: Index, split: Split, pool: Pool, device: torch.device
    ) -> None:
        self.classifier, self.store, self.index, self.pool, self.device = classifier, store, index, pool, device
        self.labels = split.labels
        self.rows = {"train": split.train, "val": split.val}

    def train(self) -> Predictions:
        return self._predict("train")

    def val(self) -> Predictions:
        return self._predict("val")

    def images(self, batch: int = 256) -> Iterator[Tensor]:
        rows = self.rows["train"]
        for start in range(0, len(rows), batch):
            yield self._prepared(rows[start : start + batch])

    def draw(self, task: Task, random: np.random.Generator) -> tuple[Tensor, Tensor]:
        rows = self.rows["train"][self.pool.draw(task, random)]
        return self._prepared(rows), torch.from_numpy(self.labels[rows]).to(self.device)

    def _prepared(self, rows: Rows) -> Tensor:
        shown = self.classifier.backbone.input
        mean, std = (torch.tensor(values, device=self.device) for values in (shown.mean, shown.std))
        return prepare(self.store.tensor(rows, device=str(self.device)), shown.size, mean, std)

    def _predict(self, part: str) -> Predictions:
        return predict_rows(self.classifier, self.store, self.index, self.labels, self.rows[part], self.device)
