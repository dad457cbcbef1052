"""Images a second through a trained network: images in memory, resized, normalised, all outputs fetched.

python benchmarks/predict.py [--device cuda] [--backbone resnet18,resnet50] [--images 20000] [--out FILE]
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from common import write

from opendg.methods.registry import make_method
from opendg.models.backbones import build_backbone
from opendg.predictions import predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--backbone", default="resnet18,resnet50")
    parser.add_argument("--images", type=int, default=20000 if torch.cuda.is_available() else 128)
    parser.add_argument("--out")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    rows: list[dict[str, Any]] = []
    pixels = torch.randint(0, 256, (asked.images, 227, 227, 3), dtype=torch.uint8)
    for backbone in asked.backbone.split(","):
        classifier = make_method("medic").build(build_backbone(backbone, "none"), 6, 3)
        classifier.place(device, "auto")
        for where, images in (("host", pixels), ("device", pixels[: min(20000, asked.images)].to(device))):
            predict(classifier, lambda a, b, i=images: i[a:b], min(1024, asked.images), device)  # type: ignore[misc]
            begin = time.perf_counter()
            predict(classifier, lambda a, b, i=images: i[a:b], len(images), device)  # type: ignore[misc]
            took = time.perf_counter() - begin
            rows.append({"backbone": backbone, "images in": where, "images/s": round(len(images) / took)})
            print(rows[-1], flush=True)
    write("predict", rows, asked.device)


if __name__ == "__main__":
    main()
