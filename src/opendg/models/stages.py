"""One way into a backbone: look at, or change, the maps that come out of its named stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from opendg.errors import OpenDGError
from opendg.models.backbones import Backbone

Touch = Callable[[Tensor], Tensor]


@contextmanager
def touched(backbone: Backbone, touches: Mapping[str, Touch]) -> Iterator[None]:
    """While this is open, the map after each named stage goes through its function, and on from what that returns.

    A function that only wants to look keeps its argument and returns it. Stages are `stem`, `1` to `4`, where the
    backbone has them.
    """
    handles = []
    try:
        for stage, touch in touches.items():
            handles.append(stage_module(backbone, stage).register_forward_hook(_hook(touch)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def stage_module(backbone: Backbone, stage: str) -> nn.Module:
    if stage not in backbone.stages:
        have = ", ".join(backbone.stages) or "none"
        raise OpenDGError(
            f"The backbone {backbone.name!r} has no stage {stage!r} (it has: {have}): choose a backbone with residual "
            "stages, such as resnet18.tv_in1k."
        )
    return backbone.get_submodule(backbone.stages[stage])


def _hook(touch: Touch) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    return lambda module, inputs, output: touch(output)
