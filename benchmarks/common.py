"""What the benchmarks share: a loop over synthetic images, timing, and results with machine and versions."""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from opendg.data.augment import augmentation
from opendg.episodes import Pool
from opendg.methods.registry import make_method
from opendg.models.backbones import build_backbone
from opendg.training.feed import Feed
from opendg.training.loop import Loop
from opendg.training.origin import origin
from opendg.training.recipe import Recipe

RESULTS = Path(__file__).parent / "results"


class SyntheticStore:
    """Random images with the face of a Store."""

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        self.count, self.size = count, size

    def tensor(self, rows: NDArray[np.int64], device: str = "cpu") -> Tensor:
        made = torch.empty(len(rows), *self.size, 3, dtype=torch.uint8, device=device)
        return made.random_(0, 256)


def synthetic_loop(
    method: str, backbone: str, device: str, *, settings: dict[str, Any] | None = None, batch: int = 8,
    images: int = 6000, classes: int = 6, domains: int = 3, side: int = 227, iterations: int = 4000,
    augment: str = "photo", resident: bool = True, dtype: torch.dtype = torch.float32, **recipe: Any,
) -> Loop:  # fmt: skip
    """A loop as `opendg train` makes it, on random images that lie on the device."""
    made, place = make_method(method, settings), torch.device(device)
    classifier = made.build(build_backbone(backbone, "none"), classes, domains)
    rows = np.arange(images)
    domain, label = rows % domains, (rows // domains) % classes
    pool = Pool(domain, label, domains, classes)
    shown = augmentation(augment)
    chosen = Recipe(batch=batch, iterations=iterations, augment=augment, **recipe)
    classifier.to(dtype).place(place, chosen.precision)
    feed = Feed(
        made, pool, SyntheticStore(images, (side, side)), rows, label, domain, shown, batch, 0, place,  # type: ignore[arg-type]
        resident=resident,
    )  # fmt: skip
    return Loop(made, classifier, feed, shown, chosen, 0)


def photos(folder: Path, count: int, domains: int = 2, classes: int = 2, side: int = 227) -> None:
    """Smooth coloured pictures as JPEG files, `folder`/domain/class/number.jpg."""
    random = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"domain{number % domains}" / f"class{number // domains % classes}"
        place.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(random.integers(0, 256, (12, 12, 3), dtype=np.uint8))
        small.resize((side, side), Image.Resampling.BICUBIC).save(place / f"{number}.jpg", quality=85)


def milliseconds(step: Callable[[int], None], repeat: int, warm_up: int, cuda: bool) -> float:
    """Median over `repeat` calls, each timed on its own: by events on the GPU, by the clock on the CPU."""
    for number in range(warm_up):
        step(number)
    if not cuda:
        import time

        times = []
        for number in range(warm_up, warm_up + repeat):
            begin = time.perf_counter()
            step(number)
            times.append(1000 * (time.perf_counter() - begin))
        return statistics.median(times)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
    marks[0].record()
    for number in range(repeat):
        step(warm_up + number)
        marks[number + 1].record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks))


def step_time(loop: Loop, captured: bool, repeat: int = 200, warm_up: int = 20, compile: bool = False) -> float:
    """Milliseconds of one iteration, end to end."""
    cuda = loop.feed.device.type == "cuda"
    if captured and cuda:
        loop.capture(compile=compile and loop.method.compiles)

    def step(number: int) -> None:
        loop.feed.prepare(number)
        loop.run()

    return milliseconds(step, repeat, warm_up, cuda)


def write(name: str, rows: list[dict[str, Any]], device: str) -> None:
    """Print a table and keep the rows with what made them."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    widths = [max(len(column), *(len(str(row.get(column, ""))) for row in rows)) for column in columns]
    for line in [dict(zip(columns, columns, strict=True)), *rows]:
        print("  ".join(str(line.get(column, "")).ljust(width) for column, width in zip(columns, widths, strict=True)))
    facts = origin(torch.device(device)) | {"cpu": platform.processor() or platform.machine()}
    facts["command"] = f"python benchmarks/{facts['command'].split(' --out')[0]}"
    target = Path(sys.argv[sys.argv.index("--out") + 1]) if "--out" in sys.argv else RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(facts | {"rows": rows}, indent=2) + "\n")
