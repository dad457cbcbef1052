"""OSCR against the share of the starting weights in averaged ones, for runs that are trained already.

python benchmarks/share.py RUN ... [--shares 0,0.1,0.2] [--device cuda] [--out FILE]

What it shows is the target's: good for a figure, not for a choice. `opendg tune` chooses on source data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import write

from opendg.evaluation.evaluate import evaluate
from opendg.evaluation.share import with_share
from opendg.runs.directory import Run

SCORES = ["cls", "bcls", "energy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--shares", default="0,0.1,0.2,0.3,0.4,0.5")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in asked.runs:
        for share in map(float, asked.shares.split(",")):
            rows.append(measured(Run.open(path), share, asked.device))
            print(rows[-1], flush=True)
    write("share", rows, asked.device)


def measured(run: Run, share: float, device: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        mixed = with_share(run, share, Path(folder) / "run", device)
        record = evaluate(mixed.path, scores=SCORES, weights="averaged", device=device)
    reached = {name: round(100 * record["scores"][name]["oscr"], 2) for name in SCORES}
    facts = {name: record[name] for name in ("method", "target", "seed")}
    return facts | {"trained with": run.config["recipe"]["average_start"], "share": share} | {
        "acc": round(100 * record["acc"], 2), **reached
    }  # fmt: skip


if __name__ == "__main__":
    main()
