"""One way into a backbone: look at, or change, the maps that come out of its named stages; go on from such a map."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from opendg.errors import OpenDGError
from opendg.models.backbones import Backbone
from opendg.models.modes import evaluating

Touch = Callable[[Tensor], Tensor]
M = TypeVar("M", bound=nn.Module)


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


def looks(stages: Iterable[str], maps: dict[str, Tensor]) -> dict[str, Touch]:
    """Touches that put the map of each stage into `maps` and change nothing."""

    def look(stage: str) -> Touch:
        def keep(found: Tensor) -> Tensor:
            maps[stage] = found
            return found

        return keep

    return {stage: look(stage) for stage in stages}


def behind(backbone: Backbone, stage: str) -> Backbone:
    """The part of the backbone behind a stage, as a backbone that takes the map of that stage.

    It shares its layers with the whole; `copy.deepcopy` makes a branch of it with weights of its own. The layers up to
    the stage are passed over in the order in which their parents name them, which is the order in which they run.
    """
    stage_module(backbone, stage)
    part = _opened(backbone)
    here: nn.Module = part
    *parents, last = backbone.stages[stage].split(".")
    for name in parents:
        _pass_over(here, name)
        here._modules[name] = _opened(here.get_submodule(name))
        here = here.get_submodule(name)
    _pass_over(here, last)
    here._modules[last] = nn.Identity()
    order = list(backbone.stages)
    part.stages = {later: backbone.stages[later] for later in order[order.index(stage) + 1 :]}
    return part


def _opened(module: M) -> M:
    """A copy whose children can be replaced without touching those of the original."""
    opened = copy.copy(module)
    opened._modules = dict(module._modules)
    return opened


def _pass_over(module: nn.Module, until: str) -> None:
    for name in module._modules:
        if name == until:
            return
        module._modules[name] = nn.Identity()


def shapes(backbone: Backbone) -> dict[str, tuple[int, int, int]]:
    """Channels, height and width of the map of each stage; a backbone without maps is refused."""
    if not backbone.stages:
        raise OpenDGError(
            f"The backbone {backbone.name!r} has no named stages: choose a convolutional backbone, such as "
            "resnet18.tv_in1k."
        )
    maps: dict[str, Tensor] = {}
    with torch.no_grad(), evaluating(backbone), touched(backbone, looks(backbone.stages, maps)):
        backbone(torch.zeros(1, 3, *backbone.input.size))
    for stage, found in maps.items():
        if not _is_map(found, backbone):
            raise OpenDGError(
                f"The stage {stage!r} of the backbone {backbone.name!r} gives no map of channels: choose a "
                "convolutional backbone, such as resnet18.tv_in1k."
            )
    return {stage: (found.shape[1], found.shape[2], found.shape[3]) for stage, found in maps.items()}


def _is_map(found: object, backbone: Backbone) -> bool:
    """(n, C, h, w), and not (n, h, w, C) as Swin has it: timm says how many channels there are."""
    told = {info["num_chs"] for info in getattr(backbone.net, "feature_info", None) or []}
    return isinstance(found, Tensor) and found.ndim == 4 and (not told or found.shape[1] in told)


def channels(backbone: Backbone) -> dict[str, int]:
    """The number of channels of the map of each stage."""
    return {stage: shape[0] for stage, shape in shapes(backbone).items()}


def style(found: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (over the number of pixels) of each channel of each image, (n, C, 1, 1), in fp32 or better."""
    variance, mean = torch.var_mean(wide(found), dim=(2, 3), correction=0, keepdim=True)
    return mean, variance


def wide(found: Tensor) -> Tensor:
    """A map in fp32, or as it is when that is better."""
    return found if found.dtype == torch.float64 else found.float()
