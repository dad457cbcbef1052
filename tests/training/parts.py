"""The parts of a training on the small dataset, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from opendg.data.augment import augmentation
from opendg.data.store import Store
from opendg.episodes import Pool
from opendg.training.build import make_classifier, make_loop
from opendg.training.devices import make_fabric
from opendg.training.feed import Feed
from opendg.training.job import plan
from opendg.training.loop import Loop
from tests.tiny import quick


def make_parts(tree: Path, method: str = "medic", dtype: torch.dtype = torch.float32, **asked: Any) -> Loop:
    """A Loop as `opendg.train` would make it; its feed, classifier and recipe hang on it."""
    asked = quick(**asked)
    target, device, _ = asked.pop("target"), asked.pop("device"), asked.pop("track")
    job, index, split = plan(method, str(tree), [target], **asked)
    store = Store.open(index, np.concatenate([split.train, split.val]), progress=False)
    fabric = make_fabric(device)
    classifier = make_classifier(job).to(dtype)
    classifier.place(fabric.device, job.recipe.precision)
    return make_loop(job, classifier, index, split, store, fabric)


def feed_like(feed: Feed, **other: Any) -> Feed:
    """The same feed, but for what is said."""
    pool: Pool = feed.pool
    options = {"resident": True, "rank": 0, "world": 1} | other
    return Feed(
        feed.method, pool, feed.store, feed.rows, feed.labels.numpy(), feed.domains.numpy(),
        augmentation("digits"), feed.batch_size, feed.seed, feed.device, **options,
    )  # fmt: skip


def advance(loop: Loop, steps: int) -> Loop:
    for _ in range(steps):
        loop.feed.prepare(int(loop.state.step))
        loop.run()
    return loop


def stop(step: int, iterations: int, losses: dict[str, float]) -> None:
    """A report that is Ctrl-C, where losses are logged for the first time."""
    raise KeyboardInterrupt
