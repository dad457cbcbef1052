"""MEDIC on PACS in plain PyTorch, to check OpenDG's numbers against: nothing of `opendg` is used, nothing is captured.

    python benchmarks/plain.py data resnet18.safetensors sketch --seed 0 --iterations 4000 --out plain.json

torchvision's network, boxes and colour spaces; Algorithm 1 of the first order as `medic` has it by default (one batch a
side, factor 1/2 on L_ova, class-balanced draws), SGD, step schedule, bf16 backbone on a GPU, the last iterate.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torchvision.models import resnet18
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms._functional_tensor import _hsv2rgb, _rgb2hsv

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
KNOWN = 6  # labels 0 to 5; 6 is person
B, ALPHA, BETA, LR, MOMENTUM, DECAY = 8, 0.01, 1.0, 1e-4, 0.9, 5e-4
SIDE = 3 * B  # images of meta-train, and of meta-test
GRAY = (0.2989, 0.587, 0.114)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def images_of(root: Path, domain: str, part: str) -> tuple[list[NDArray[np.uint8]], list[int]]:
    """Images and labels (0 to 6) of a part of the official split, read from the domain's tar."""
    lines = (root / "splits" / f"{domain}_{part}_kfold.txt").read_text().split("\n")
    wanted = [(path, int(label) - 1) for path, label in (line.split() for line in lines if line)]
    with tarfile.open(root / f"{domain}.tar") as tar:
        found = {
            member.name.removeprefix("./"): np.asarray(Image.open(io.BytesIO(file.read())).convert("RGB"))
            for member in tar
            if (file := tar.extractfile(member)) is not None
        }
    return [found[path] for path, _ in wanted], [label for _, label in wanted]


class Network(nn.Module):
    """ResNet-18 with a closed-set and a one-vs-all head."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.body = resnet18()
        self.body.fc = nn.Identity()
        self.body.load_state_dict({name: value.float() for name, value in load_file(weights).items()}, strict=False)
        self.closed, self.ova = nn.Linear(512, KNOWN), nn.Linear(512, 2 * KNOWN)
        for head in (self.closed, self.ova):
            nn.init.xavier_uniform_(head.weight, gain=0.1)
            nn.init.zeros_(head.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            features = self.body(images)
        features = features.float()
        return self.closed(features), self.ova(features).view(-1, 2, KNOWN)


def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """L = CE + L_ova of Eq. 7 and 8, L_ova halved; the sum over images divided by B."""
    logits, ova = outputs
    log = F.log_softmax(ova, dim=1)
    own = -log[torch.arange(len(labels)), 1, labels]
    hardest = (-log[:, 0]).masked_fill(F.one_hot(labels, KNOWN).bool(), -1e9).amax(1)
    return (F.cross_entropy(logits, labels, reduction="sum") + 0.5 * (own + hardest).sum()) / B


def augmented(images: Tensor) -> Tensor:
    """Crop and flip, brightness, contrast, saturation, hue, grey: the paper's, image by image."""
    x, device, n = images.permute(0, 3, 1, 2).float() / 255, images.device, len(images)

    def between(low: float, high: float) -> Tensor:
        return torch.empty(n, 1, 1, 1).uniform_(low, high).to(device)

    def gray(x: Tensor) -> Tensor:
        return (x * torch.tensor(GRAY, device=device).view(1, 3, 1, 1)).sum(1, keepdim=True)

    def blend(x: Tensor, other: Tensor) -> Tensor:
        factor = between(0.6, 1.4)
        return (factor * x + (1 - factor) * other).clamp(0, 1)

    boxes = torch.zeros(n, 2, 3)
    for image, box in zip(x, boxes, strict=True):
        top, left, high, wide = RandomResizedCrop.get_params(image, [0.8, 1.0], [3 / 4, 4 / 3])
        height, width = image.shape[1:]
        mirror = -1.0 if torch.rand(()) < 0.5 else 1.0
        box[0, 0], box[1, 1] = mirror * wide / width, high / height
        box[0, 2], box[1, 2] = (2 * left + wide) / width - 1, (2 * top + high) / height - 1
    grid = F.affine_grid(boxes, [n, 3, 224, 224], align_corners=False).to(device)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    x = (x * between(0.6, 1.4)).clamp(0, 1)
    x = blend(x, gray(x).mean((2, 3), keepdim=True))
    x = blend(x, gray(x))
    hsv = _rgb2hsv(x)
    x = _hsv2rgb(torch.cat([(hsv[:, :1] + between(-0.4, 0.4)) % 1.0, hsv[:, 1:]], dim=1))
    x = torch.where((torch.rand(n, 1, 1, 1) < 0.1).to(device), gray(x).expand_as(x), x)
    return normalised(x)


def normalised(x: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, device=x.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def train(network: Network, root: Path, target: str, iterations: int, random: np.random.Generator) -> None:
    device = next(network.parameters()).device
    cells: dict[tuple[int, int], list[int]] = {}
    every: list[NDArray[np.uint8]] = []
    for domain, name in enumerate(name for name in DOMAINS if name != target):
        for image, label in zip(*images_of(root, name, "train"), strict=True):
            if label < KNOWN:
                cells.setdefault((domain, label), []).append(len(every))
                every.append(image)
    resident = torch.from_numpy(np.stack(every)).to(device)

    def drawn(domain: int, classes: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
        return [(label, random.choice(cells[domain, label])) for label in random.choice(classes, size)]

    weights = dict(network.named_parameters())
    momentum = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for iteration in range(iterations):
        held = iteration % 3
        i, j = random.permutation([domain for domain in range(3) if domain != held])
        shuffled = random.permutation(KNOWN)
        second, first = shuffled[:2], shuffled[2:]
        meta_train = drawn(i, first, B) + drawn(j, first, B) + drawn(held, second, B)
        meta_test = drawn(i, second, B // 2) + drawn(j, second, B // 2) + drawn(held, first, 2 * B)
        labels, rows = (torch.tensor(values, device=device) for values in zip(*meta_train, *meta_test, strict=True))
        images = augmented(resident[rows])
        inner = torch.autograd.grad(loss(network(images[:SIDE]), labels[:SIDE]), list(weights.values()))
        fast = {
            name: (weight - ALPHA * slope).detach().requires_grad_()
            for (name, weight), slope in zip(weights.items(), inner, strict=True)
        }
        after = functional_call(network, fast, (images[SIDE:],))
        outer = torch.autograd.grad(loss(after, labels[SIDE:]), list(fast.values()))
        rate = LR if iteration < 0.8 * iterations else LR / 10
        with torch.no_grad():
            for (name, weight), one, two in zip(weights.items(), inner, outer, strict=True):
                momentum[name].mul_(MOMENTUM).add_(one + BETA * two + DECAY * weight)
                weight.sub_(rate * momentum[name])


@torch.no_grad()
def test(network: Network, root: Path, target: str) -> dict[str, float]:
    """Accuracy, and OSCR = P(a known image is classified right and scores above an unknown one), ties a half."""
    device = next(network.parameters()).device
    images, labels = images_of(root, target, "test")
    network.eval()
    parts = []
    for start in range(0, len(images), 256):
        x = torch.from_numpy(np.stack(images[start : start + 256])).to(device).permute(0, 3, 1, 2).float()
        parts.append(network(normalised(F.interpolate(x, (224, 224), mode="bilinear", antialias=True) / 255)))
    logits, ova = (torch.cat(outputs).double().cpu() for outputs in zip(*parts, strict=True))
    answer, truth = logits.argmax(1), torch.tensor(labels)
    known, right = truth < KNOWN, answer == truth
    one_vs_all = (ova[:, 1] - ova[:, 0]).gather(1, answer[:, None]).squeeze(1)
    energy = logits.logsumexp(1)
    found = {"acc": right[known].double().mean().item()}
    for name, score in {"cls": logits.amax(1) - energy, "bcls": one_vs_all, "energy": energy}.items():
        accepted, unknown = score[known & right, None], score[~known]
        pairs = (accepted > unknown).double() + (accepted == unknown).double() / 2
        found[name] = (pairs.sum() / (known.sum() * len(unknown))).item()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("target", choices=DOMAINS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=4000)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = Network(asked.weights).to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    train(network, asked.root, asked.target, asked.iterations, np.random.default_rng(asked.seed))
    found = {"target": asked.target, "seed": asked.seed, "iterations": asked.iterations}
    asked.out.write_text(json.dumps(found | test(network, asked.root, asked.target), indent=1) + "\n")


if __name__ == "__main__":
    main()
