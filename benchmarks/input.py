"""Images a second: decoded from files into the store, gathered from it, augmented.

python benchmarks/input.py [--device cuda] [--images 8000] [--out FILE]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import milliseconds, photos, synthetic_loop, write

from opendg.data.store import Store
from opendg.data.tree import scan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["OPENDG_CACHE"] = str(Path(folder) / "cache")
        photos(Path(folder) / "tree", asked.images)
        index = scan(Path(folder) / "tree")
        every = np.arange(len(index))
        for what in ("decode into the store", "open the store again"):
            begin = time.perf_counter()
            store = Store.open(index, every, progress=False)
            took = time.perf_counter() - begin
            rows.append({"what": what, "ms": round(1000 * took), "images/s": round(len(index) / took)})
        begin = time.perf_counter()
        store.tensor(every, device=asked.device)
        took = time.perf_counter() - begin
        rows.append({"what": "copy to the device", "ms": round(1000 * took), "images/s": round(len(index) / took)})
    rows += gather_and_augment(asked.device)
    write("input", rows, asked.device)


def gather_and_augment(device: str, batch: int = 8) -> list[dict[str, Any]]:
    """48 images of a resident store: gathered, and augmented as for training; captured on a GPU."""
    loop = synthetic_loop("erm", "resnet18", device, batch=batch)
    loop.feed.prepare(0)

    def gather() -> object:
        return loop.feed.batch(loop.state.step)

    def both() -> object:
        drawn = loop.feed.batch(loop.state.step)
        return loop.prepare_images(drawn.images, drawn.plan, loop.size, loop.mean, loop.std)

    rows = []
    cuda = device == "cuda"
    for what, work in (("gather", gather), ("gather and augment", both)):
        for _ in range(3):
            work()
        if cuda:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            took = milliseconds(lambda number, g=graph: g.replay(), 200, 10, True)  # type: ignore[misc]
        else:
            took = milliseconds(lambda number, w=work: w(), 20, 3, False)  # type: ignore[misc]
        rows.append({"what": f"{what} {6 * batch}", "ms": round(took, 3), "images/s": round(6000 * batch / took)})
    loop.feed.close()
    return rows


if __name__ == "__main__":
    main()
