"""The Classifier: a backbone and its heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from opendg.models.backbones import Backbone
from opendg.models.heads import ClosedHead, DualHead, SharedHead
from opendg.models.stages import Touch, touched
from opendg.models.stem import fold_stem

Weights = dict[str, Tensor]
Result = TypeVar("Result")

HEADS = {"closed": ClosedHead, "dual": DualHead, "shared": SharedHead}


class Outputs(NamedTuple):
    """What a classifier says of a batch."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, K)
    ova: Tensor | None  # (n, 2, K)


class Classifier(nn.Module):
    """`classifier(images)` gives Outputs. The backbone may run in bf16; the heads always run in fp32 (or fp64)."""

    def __init__(self, backbone: Backbone, classes: int, head: str = "dual", freeze_batchnorm: bool = False) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = HEADS[head](backbone.width, classes)
        self.classes, self.freeze_batchnorm = classes, freeze_batchnorm
        self.fused: Callable[[Tensor], Tensor] | None = None  # the backbone compiled, for training
        self.low: torch.dtype | None = None  # what the backbone computes in, when not in the type of the weights

    def forward(self, images: Tensor, touches: Mapping[str, Touch] | None = None) -> Outputs:
        low = torch.autocast(images.device.type, dtype=self.low, enabled=self.low is not None)
        with low, touched(self.backbone, touches or {}):
            run = self.fused if self.fused and self.training and not touches else self.backbone
            features = run(images)
        return self.heads(features)

    def heads(self, features: Tensor) -> Outputs:
        """The heads alone, on given features."""
        with torch.autocast(features.device.type, enabled=False):
            features = features.to(self.precise)
            logits, ova = self.head(features)
        return Outputs(features, logits, ova)

    @property
    def precise(self) -> torch.dtype:
        """The type of the weights: fp32, or fp64 in tests of gradients."""
        return next(self.head.parameters()).dtype

    def weights(self) -> Weights:
        """The parameters by name: what a step differentiates."""
        return dict(self.named_parameters())

    def moving(self) -> Weights:
        """All numbers that training moves: parameters, and the buffers that are means, BatchNorm's among them."""
        return self.weights() | {name: buffer for name, buffer in self.named_buffers() if buffer.is_floating_point()}

    def at(self, weights: Weights, images: Tensor, touches: Mapping[str, Touch] | None = None) -> Outputs:
        """Outputs with other parameters put in the place of its own (fast weights of an inner step).

        Buffers are not replaced unless they are among `weights`: in training mode the pass moves the running
        statistics of BatchNorm, at whatever weights it runs.
        """
        outputs: Outputs = functional_call(self, weights, (images, touches))
        return outputs

    def place(self, device: torch.device, precision: str) -> None:
        """On the device, channels last; the backbone in bf16 where that is asked for, or auto and the GPU has it."""
        self.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        for weight in self.parameters():
            if weight.shape[2:] == (1, 1):  # strides as arithmetic leaves them, or fast weights would be compiled anew
                weight.data = weight.data.flatten(1)[:, :, None, None]
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        self.low = torch.bfloat16 if precision == "bf16" or (precision == "auto" and able) else None

    def fuse(self) -> None:
        """Train through torch.compile: the same numbers from fewer kernels. Hooks into stages go the plain way."""
        fold_stem(self.backbone)
        self.fused = compiled(self.backbone.forward)

    def fusing(self, work: Callable[..., Result]) -> Callable[..., Result]:
        """`work`, a function of a module, compiled where the classifier is fused."""
        return _compiled_once(work) if self.fused else work

    def plainly(self, work: Callable[..., Result], *arguments: object) -> Result:
        """`work(*arguments)`, during which passes are not compiled one by one and leave running statistics alone.

        For derivatives of derivatives, which a compiled pass does not have: where the classifier is fused, the whole
        of `work` is compiled instead.
        """
        work = self.fusing(work)
        layers = [module for module in self.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        tracked = [layer.track_running_stats for layer in layers]
        fused, self.fused = self.fused, None
        for layer in layers:
            layer.track_running_stats = False
        try:
            return work(*arguments)
        finally:
            self.fused = fused
            for layer, before in zip(layers, tracked, strict=True):
                layer.track_running_stats = before

    def train(self, mode: bool = True) -> Classifier:
        super().train(mode)
        if self.freeze_batchnorm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self


def compiled(work: Callable[..., Result]) -> Callable[..., Result]:
    """`work` through torch.compile, for tensors of fixed shapes; small kernels that wait for nothing run as one."""
    torch._dynamo.config.cache_size_limit = 64  # variants of one function: a process may train methods of many kinds
    return torch.compile(work, dynamic=False, options={"combo_kernels": True})


_compiled_once = cache(compiled)
