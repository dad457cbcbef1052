"""Backbones: any timm model, the paper's ConvNet for digits, and ResNet-50 as Caffe and Keras lay it out."""

from __future__ import annotations

import hashlib
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from opendg.errors import OpenDGError, near
from opendg.models.hub import hub

# Weight files that need another layout than their name says and cannot tell so themselves.
KNOWN_FILES = {"0c6682cb03becd6a69e37e1952b167fd7971b6e7085226599dc730c0837550ec": "resnet50.caffe"}

OWN = ("convnet", "resnet50.caffe")  # beside timm's
LARGEST_SIDE = 8192  # of an image that a network wants to see


@dataclass(frozen=True)
class Input:
    """What a network wants to see. It travels with the weights into the run."""

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Input:
        """Perhaps a stranger's: a KeyError, TypeError or ValueError says that this is no Input."""
        height, width = map(int, values["size"])
        if not (0 < height <= LARGEST_SIDE and 0 < width <= LARGEST_SIDE):
            raise ValueError(f"an image of {height} x {width}")
        (red, green, blue), (r, g, b) = (map(float, values[name]) for name in ("mean", "std"))
        return cls((height, width), (red, green, blue), (r, g, b))


class Backbone(nn.Module):
    """Images in, pooled features out, with the parts between named: `stages` maps stem, 1, 2 ... to modules."""

    def __init__(self, name: str, net: nn.Module, width: int, input: Input, stages: dict[str, str]) -> None:
        super().__init__()
        self.name, self.net, self.width, self.input, self.stages = name, net, width, input, stages
        self.start = "none"  # the weights it starts from, by their content

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.net(images)
        return features


class ConvNet(nn.Sequential):
    """The digit network of the paper: 4 x [3x3 convolution of 64 channels, ReLU, max-pool 2]; 32 x 32 in, 256 out."""

    def __init__(self) -> None:
        blocks = []
        for channels in (3, 64, 64, 64):
            conv = nn.Conv2d(channels, 64, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            blocks.append(nn.Sequential(conv, nn.ReLU(inplace=True), nn.MaxPool2d(2)))
        super().__init__(*blocks, nn.Flatten())


def build_backbone(name: str, weights: str = "none") -> Backbone:
    """A backbone by name with `weights`: "imagenet" (timm's hub), "none", or a safetensors file."""
    digest = _digest(Path(weights)) if weights not in ("imagenet", "none") else None
    if digest in KNOWN_FILES and name.split(".")[0] == KNOWN_FILES[digest].split(".")[0]:
        name = KNOWN_FILES[digest]
    if name == "convnet":
        if weights == "imagenet":
            raise OpenDGError("The convnet backbone has no ImageNet weights: use --weights none, or another backbone.")
        half = (0.5, 0.5, 0.5)
        stages = {str(number): f"net.{number - 1}" for number in (1, 2, 3, 4)}
        backbone = Backbone(name, ConvNet(), 256, Input((32, 32), half, half), stages)
    else:
        backbone = _timm(name, pretrained=weights == "imagenet")
    if digest is not None:
        load_weights(backbone, Path(weights))
    if weights != "none":
        backbone.start = fingerprint(backbone.net)
    return backbone


def fingerprint(net: nn.Module) -> str:
    """A short hash of all numbers in a network: the same for the same weights, from a file or from the hub."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        if tensor.is_floating_point():  # counters of batches tell nothing
            digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _digest(path: Path) -> str:
    if not path.is_file():
        raise OpenDGError(f"There is no weight file {str(path)!r}: give 'imagenet', 'none' or a .safetensors file.")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def check_backbone(name: str) -> None:
    """Refuse a name that is of no backbone, without building one."""
    if name in OWN:
        return
    import timm

    if timm.is_model(name) and ("." not in name or timm.models.is_model_pretrained(name)):
        return
    close = near(name, [*(timm.list_pretrained() if "." in name else timm.list_models()), *OWN])
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "any timm model or 'convnet' will do."
    raise OpenDGError(f"There is no backbone {name!r}: {hint}")


def _timm(name: str, pretrained: bool) -> Backbone:
    import timm
    from timm.data.config import resolve_model_data_config

    check_backbone(name)
    base = "resnet50" if name == "resnet50.caffe" else name
    if name == "resnet50.caffe" and pretrained:
        raise OpenDGError("resnet50.caffe has no weights on timm's hub: give --weights FILE, or use resnet50.tv_in1k.")
    try:
        with hub() if pretrained else nullcontext():
            net = timm.create_model(base, pretrained=pretrained, num_classes=0)
    except Exception as error:
        if not pretrained:
            raise
        raise OpenDGError(
            f"The ImageNet weights of {name!r} could not be fetched ({type(error).__name__}): "
            "check the network, or give --weights FILE or --weights none."
        ) from error
    if name == "resnet50.caffe":
        _stride_first(net)
    data = resolve_model_data_config(net)
    height, width = data["input_size"][1:]
    return Backbone(
        name,
        net,
        int(getattr(net, "head_hidden_size", net.num_features)),  # type: ignore[arg-type]  # some widen behind the pooling
        Input((height, width), data["mean"], data["std"]),
        _stages(net),
    )


def _stride_first(net: nn.Module) -> None:
    """Move the stride of each bottleneck from its 3x3 to its first 1x1 convolution, as Caffe and Keras have it."""
    for module in net.modules():
        conv1, conv2 = getattr(module, "conv1", None), getattr(module, "conv2", None)
        if isinstance(conv1, nn.Conv2d) and isinstance(conv2, nn.Conv2d) and conv2.stride == (2, 2):
            conv1.stride, conv2.stride = (2, 2), (1, 1)


def _stages(net: nn.Module) -> dict[str, str]:
    """Where the maps of the stages come out: timm's feature_info, numbered.

    Stage 1 of four gives a map of a quarter of the image's side, as in a ResNet: a level of half the side before them
    is the stem, be it a convolution (RegNet) or a first block (EfficientNet).

    Empty where timm names none, modules that the network does not have (Twins, HRNet), or modules inside a block,
    where only a part of the map passes (Xception, NASNet).
    """
    there = {name for name, _ in net.named_modules()} - {""}
    levels = list(getattr(net, "feature_info", None) or [])
    modules = [info["module"] for info in levels]
    if not set(modules) <= there or any(_inside_a_block(net, module) for module in modules):
        return {}
    if {"maxpool", "layer4"} <= there:
        return {"stem": "net.maxpool"} | {str(number): f"net.layer{number}" for number in (1, 2, 3, 4)}
    first = 0 if len(levels) == 5 and levels[0]["reduction"] == 2 else 1
    return {str(number or "stem"): f"net.{module}" for number, module in enumerate(modules, start=first)}


def _inside_a_block(net: nn.Module, module: str) -> bool:
    """Whether a parent of the module, below the network itself, is more than a row of layers."""
    parents = module.split(".")[:-1]
    within = (net.get_submodule(".".join(parents[: depth + 1])) for depth in range(len(parents)))
    return not all(isinstance(parent, nn.Sequential) for parent in within)


def load_weights(backbone: Backbone, path: Path) -> None:
    """Weights from a safetensors file (torchvision's names fit timm's ResNets). The classifier in it is left out."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise OpenDGError(f"{os.fspath(path)!r} is not a readable safetensors file: {error}.") from error
    wanted = backbone.net.state_dict()
    for name, tensor in found.items():
        if name in wanted and tensor.shape != wanted[name].shape:
            raise OpenDGError(
                f"The weights in {path.name!r} do not fit {backbone.name!r}: {name} is {tuple(tensor.shape)} and "
                f"{tuple(wanted[name].shape)} was expected; choose the backbone that they were made for."
            )
    missing = [name for name in wanted if name not in found and not name.endswith("num_batches_tracked")]
    if missing:
        raise OpenDGError(
            f"The weights in {path.name!r} do not fit {backbone.name!r}: {len(missing)} of {len(wanted)} tensors are "
            f"missing, {missing[0]} first; choose the backbone that they were made for."
        )
    fitting = {name: tensor.to(torch.float32) for name, tensor in found.items() if name in wanted}
    backbone.net.load_state_dict(fitting, strict=False)
