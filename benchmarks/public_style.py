"""A training loop in the style of public research code, to compare with: not used by OpenDG itself.

One DataLoader for each domain and class with one worker, which begins anew with each pass over its images (some 330, as
in PACS), a batch from each that is then cut to size, six forward passes, a double backward, plain fp32, no capture. The
mathematics of the step is that of `medic` with order 2 and per-task statistics.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from opendg.episodes import Episode
from opendg.methods.base import State
from opendg.methods.registry import make_method
from opendg.models.backbones import build_backbone

CELL = 330  # images of a domain and class, which may be the same file several times
TRANSFORM = transforms.Compose([
    transforms.RandomResizedCrop(224, (0.8, 1.0)), transforms.RandomHorizontalFlip(),
    transforms.ColorJitter(0.4, 0.4, 0.4, 0.4), transforms.RandomGrayscale(0.1), transforms.ToTensor(),
    transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
])  # fmt: skip


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def seconds(folder: Path, backbone: str, device: str, repeat: int = 20, warm_up: int = 3, batch: int = 8) -> float:
    """Seconds of one iteration on a tree of three domains by six classes."""
    loaders = {}
    for domain in sorted(folder.iterdir()):
        data = ImageFolder(str(domain), TRANSFORM)
        for label in range(len(data.classes)):
            rows = itertools.cycle(i for i, (_, y) in enumerate(data.samples) if y == label)
            part = torch.utils.data.Subset(data, list(itertools.islice(rows, CELL)))
            loader = DataLoader(part, batch // 2, shuffle=True, drop_last=True, num_workers=1)
            loaders[domain.name, label] = endless(loader)
    domains = sorted({domain for domain, _ in loaders})
    method = make_method("medic", {"order": 2, "batchnorm": "per-task"})
    network = method.build(build_backbone(backbone, "none"), 6, 3).to(device).train()
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, momentum=0.9, weight_decay=5e-4)
    zero = torch.zeros((), device=device)
    state = State(zero.long(), zero.double(), torch.Generator(device), {})

    def draw(domain: str, labels: list[int], size: int) -> tuple[torch.Tensor, torch.Tensor]:
        parts = [next(loaders[domain, label]) for label in labels]
        images = torch.cat([images for images, _ in parts])
        targets = torch.cat([targets for _, targets in parts])
        chosen = torch.randperm(len(images))[:size]
        return images[chosen].to(device), targets[chosen].to(device)

    def step(number: int) -> None:
        held = domains[number % len(domains)]
        i, j = random.sample([d for d in domains if d != held], 2)
        second = random.sample(range(6), 2)
        first = [label for label in range(6) if label not in second]
        half = batch // 2
        wanted = [(i, first, batch), (j, first, batch), (held, second, batch), (i, second, half), (j, second, half)]
        drawn = [draw(*task) for task in [*wanted, (held, first, batch), (held, first, batch)]]
        images, labels = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        episode = Episode(images, labels, labels, labels, sizes=(batch,) * 6, batch=batch)
        for update in method.step(network, episode, state):
            for name, parameter in network.named_parameters():
                parameter.grad = update.gradients[name].detach()
            optimizer.step()
            float(sum(loss.detach() for loss in update.losses.values()))  # research code prints its loss

    for number in range(warm_up):
        step(number)
    begin = time.perf_counter()
    for number in range(repeat):
        step(number)
    return (time.perf_counter() - begin) / repeat
