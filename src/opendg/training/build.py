"""What a job is made of: its network, and the loop that trains it."""

from __future__ import annotations

import numpy as np
import torch
from lightning_fabric import Fabric

from opendg.data.augment import augmentation
from opendg.data.index import Index
from opendg.data.store import Store
from opendg.episodes import Pool
from opendg.models.backbones import build_backbone
from opendg.models.classifier import Classifier
from opendg.protocol import Split
from opendg.seeds import derive
from opendg.training.devices import fits
from opendg.training.feed import Feed
from opendg.training.job import Job
from opendg.training.loop import Loop


def make_classifier(job: Job) -> Classifier:
    """The network of a job, its new layers drawn from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(job.seed, "init"))
        backbone = build_backbone(job.backbone, job.weights)
        return job.make_method().build(backbone, len(job.protocol.known), len(job.protocol.sources))


def make_loop(job: Job, classifier: Classifier, index: Index, split: Split, store: Store, fabric: Fabric) -> Loop:
    method, augment = job.make_method(), augmentation(job.recipe.augment)
    rows = split.train
    order = {index.domains.index(name): number for number, name in enumerate(job.protocol.sources)}
    domains = np.array([order[number] for number in index.domain[rows]], dtype=np.int64)
    labels = split.labels[rows]
    pool = Pool(domains, labels, len(job.protocol.sources), len(job.protocol.known))
    feed = Feed(
        method, pool, store, rows, labels, domains, augment, job.recipe.batch, job.seed, fabric.device,
        resident=fits(len(rows) * store.size[0] * store.size[1] * 3, fabric.device),
        rank=fabric.global_rank, world=fabric.world_size,
    )  # fmt: skip
    return Loop(method, classifier, feed, augment, job.recipe, job.seed)
