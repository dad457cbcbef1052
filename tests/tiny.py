"""A dataset that is written in a blink and learnt in seconds: four signs in four domains, 32 x 32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

DOMAINS = ("chalk", "ink", "neon", "wood")
CLASSES = ("bar", "cross", "dot", "ring")
COLOURS = {  # ground, sign
    "chalk": ((40, 60, 50), (230, 230, 220)),
    "ink": ((245, 240, 230), (30, 30, 70)),
    "neon": ((20, 0, 40), (60, 255, 120)),
    "wood": ((150, 100, 60), (70, 40, 20)),
}


def picture(domain: str, name: str, number: int) -> NDArray[np.uint8]:
    """One image (32, 32, 3) as uint8: the sign at a place of its own, with noise."""
    random = np.random.default_rng([*domain.encode(), 0, *name.encode(), 0, number])
    down, across = np.mgrid[0:32, 0:32] - 16 - random.integers(-4, 5, size=(2, 1, 1))
    far = np.maximum(abs(down), abs(across))
    bar, beam = abs(across) <= 2, abs(down) <= 2
    sign = {"bar": bar, "cross": bar | beam, "dot": far <= 4, "ring": (far >= 6) & (far <= 9)}[name]
    ground, colour = COLOURS.get(domain, ((128, 128, 128), (255, 255, 255)))
    image = np.where(sign[..., None], colour, ground) + random.normal(0, 12, (32, 32, 3))
    return image.clip(0, 255).astype(np.uint8)


def write_tree(root: Path, domains: Sequence[str] = DOMAINS, classes: Sequence[str] = CLASSES, each: int = 12) -> Path:
    """root/domain/class/number.png, `each` images of every sign."""
    for domain in domains:
        for name in classes:
            folder = root / domain / name
            folder.mkdir(parents=True)
            for number in range(each):
                Image.fromarray(picture(domain, name, number)).save(folder / f"{number:03d}.png")
    return root


def quick(**more: Any) -> dict[str, Any]:
    """Arguments of `opendg.train` for a run of a second: `wood` is the target, `ring` the unknown class."""
    common = {"target": "wood", "unknown": ["ring"], "backbone": "convnet", "augment": "digits", "device": "cpu"}
    return common | {"iterations": 6, "batch": 2, "track": "none"} | more


def flags(**more: Any) -> list[str]:
    """The same for `opendg train`."""
    words: list[str] = []
    for name, value in quick(**more).items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", ",".join(value) if isinstance(value, list) else str(value)]
    return words
