"""Time and memory of one iteration as data grow: images, classes, domains. Synthetic images, same batch.

python benchmarks/scale.py [--device cuda] [--side 96] [--out FILE]
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from common import step_time, synthetic_loop, write

GROWTH = [
    {"images": 10_000, "classes": 6, "domains": 3},
    {"images": 100_000, "classes": 6, "domains": 3},
    {"images": 600_000, "classes": 6, "domains": 3},
    {"images": 100_000, "classes": 65, "domains": 3},
    {"images": 600_000, "classes": 345, "domains": 3},
    {"images": 600_000, "classes": 345, "domains": 6},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--side", type=int, default=96, help="of the stored images; the network sees 224")
    parser.add_argument("--method", default="medic")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for resident in (True, False):
        for grown in GROWTH if resident else GROWTH[:1]:
            if asked.device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            loop = synthetic_loop(
                asked.method, asked.backbone, asked.device, side=asked.side, resident=resident, **grown
            )
            took = step_time(loop, True, asked.repeat)
            memory = torch.cuda.max_memory_allocated() / 2**30 if asked.device == "cuda" else float("nan")
            store = grown["images"] * asked.side**2 * 3 / 2**30
            first = rows[0]["ms"] if rows else took
            rows.append({
                **grown, "resident": resident, "ms": round(took, 3), "x first": round(took / first, 3),
                "peak GiB": round(memory, 2), "of that images": round(store, 2) if resident else 0,
            })  # fmt: skip
            print(rows[-1], flush=True)
            loop.feed.close()
            del loop
    write("scale", rows, asked.device)


if __name__ == "__main__":
    main()
