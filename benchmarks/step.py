"""Milliseconds of one iteration, end to end: gather, augmentation, step, optimiser.

    python benchmarks/step.py [--device cuda] [--backbone resnet18,resnet50] [--modes eager,captured,compiled]
                              [--methods 'm*'] [--public] [--repeat 200] [--out FILE]

Beside each method stands ERM on the same number of images, run the same way: a plain forward and backward, the
practical limit.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import torch
from common import photos, step_time, synthetic_loop, write
from public_style import seconds

from opendg.methods.registry import list_methods

CASES: list[tuple[str, dict[str, Any], int]] = [
    ("erm", {"ova": True}, 8),
    ("medic", {"order": 1}, 8),
    ("medic", {"order": 2}, 8),
    ("mldg", {}, 8),
    ("erm", {"ova": True}, 24),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="resnet18,resnet50")
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--modes", default="captured", help="any of eager, captured, compiled, joined by commas")
    parser.add_argument("--methods", help="every registered method of these names instead of the usual cases")
    parser.add_argument("--public", action="store_true", help="also a loop in the style of public code")
    parser.add_argument("--out")
    asked = parser.parse_args()
    cases = CASES
    if asked.methods:
        cases = [("erm", {}, 8), *((name, {}, 8) for name in list_methods(asked.methods) if name != "erm")]
    rows: list[dict[str, Any]] = []
    for backbone in asked.backbone.split(","):
        for mode in asked.modes.split(","):
            limit: dict[int, float] = {}  # ERM's time for as many images
            for method, settings, batch in cases:
                try:
                    row = measure(method, settings, batch, backbone, mode, asked.device, asked.repeat, limit)
                except Exception as error:  # one method that fails must not hide the others
                    row = {"backbone": backbone, "method": method, "mode": f"failed: {type(error).__name__}: {error}"}
                rows.append(row)
                print(row, flush=True)
        if asked.public:
            rows.append(public(backbone, asked.device, limit[8]))
            print(rows[-1], flush=True)
    write("step", rows, asked.device)


def measure(
    method: str, settings: dict[str, Any], batch: int, backbone: str, mode: str, device: str, repeat: int,
    limit: dict[int, float],
) -> dict[str, Any]:  # fmt: skip
    """One row. ERM comes first of its size and gives the limit."""
    if device == "cuda":
        gc.collect()  # the loop before, whose parts refer to one another
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    loop = synthetic_loop(method, backbone, device, settings=settings, batch=batch)
    images = sum(loop.feed.sizes)
    took = step_time(loop, mode != "eager", repeat, compile=mode == "compiled")
    loop.feed.close()
    limit.setdefault(batch, took / images)
    peak = round(torch.cuda.max_memory_allocated() / 2**30, 2) if device == "cuda" else None
    return {
        "backbone": backbone, "method": method, "settings": " ".join(f"{k}={v}" for k, v in settings.items()),
        "mode": mode, "images": images, "ms": round(took, 2), "x ERM": round(took / images / limit[batch], 2),
        "images/s": round(1000 * images / took), "peak GiB": peak,
    }  # fmt: skip


def public(backbone: str, device: str, limit: float) -> dict[str, Any]:
    """The loop in the style of public code, on files made for it."""
    with tempfile.TemporaryDirectory() as folder:
        photos(Path(folder), 720, domains=3, classes=6)
        took = 1000 * seconds(Path(folder), backbone, device)
    return {"backbone": backbone, "method": "public style, order 2", "mode": "eager, 18 loaders", "images": 48,
            "ms": round(took, 2), "x ERM": round(took / 48 / limit, 2), "images/s": round(48000 / took)}  # fmt: skip


if __name__ == "__main__":
    main()
