"""Milliseconds of one iteration, end to end: gather, augmentation, step, optimiser.

    python benchmarks/step.py [--device cuda] [--backbone resnet18,resnet50] [--repeat 200] [--out FILE]

Beside each method stands ERM on the same number of images, run the same way: a plain forward and backward, the
practical limit.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from common import step_time, synthetic_loop, write

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
    parser.add_argument("--eager", action="store_true", help="also without capture")
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for backbone in asked.backbone.split(","):
        erm: dict[int, float] = {}
        for method, settings, batch in CASES:
            for captured in (True, False) if asked.eager else (True,):
                torch.cuda.reset_peak_memory_stats() if asked.device == "cuda" else None
                loop = synthetic_loop(method, backbone, asked.device, settings=settings, batch=batch)
                took = step_time(loop, captured, asked.repeat)
                erm.setdefault(batch, took)
                rows.append({
                    "backbone": backbone, "method": method,
                    "settings": " ".join(f"{key}={value}" for key, value in settings.items()),
                    "images": 6 * batch, "captured": captured, "ms": round(took, 2),
                    "x ERM": round(took / erm[batch], 2), "images/s": round(6000 * batch / took),
                    "peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2) if asked.device == "cuda" else None,
                })  # fmt: skip
                print(rows[-1], flush=True)
                loop.feed.close()
                del loop
    write("step", rows, asked.device)


if __name__ == "__main__":
    main()
