"""Parts of a backbone: going on from a map, looking at maps, their channels and styles."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from opendg.errors import OpenDGError
from opendg.models.backbones import Backbone, build_backbone
from opendg.models.modes import evaluating
from opendg.models.stages import behind, channels, looks, shapes, style, touched, wide
from small import small_backbone


def maps_of(backbone: Backbone, images: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    maps: dict[str, torch.Tensor] = {}
    with torch.no_grad(), touched(backbone, looks(backbone.stages, maps)):
        return maps, backbone(images)


@pytest.mark.parametrize("name", ["convnet", "test_resnet", "resnet10t", "convnext_atto", "efficientnet_lite0"])
def test_the_part_behind_a_stage_goes_on_from_its_map(name: str) -> None:
    backbone = build_backbone(name).eval()
    maps, features = maps_of(backbone, torch.randn(2, 3, 32, 32))
    assert list(maps) == list(backbone.stages)
    for number, stage in enumerate(backbone.stages, start=1):
        part = behind(backbone, stage)
        with torch.no_grad():
            assert torch.equal(part(maps[stage]), features)
        assert list(part.stages) == list(backbone.stages)[number:]


def test_the_part_shares_its_layers_and_a_deep_copy_has_its_own() -> None:
    backbone = build_backbone("resnet10t")
    part = behind(backbone, "2")
    late = {id(p) for n, p in backbone.named_parameters() if n.startswith(("net.layer3", "net.layer4"))}
    assert {id(p) for p in part.parameters()} == late
    assert not {id(p) for p in copy.deepcopy(part).parameters()} & late


def test_the_whole_is_left_as_it_was() -> None:
    backbone = build_backbone("convnext_atto").eval()
    images = torch.randn(1, 3, 32, 32)
    names = [name for name, _ in backbone.named_modules()]
    _, before = maps_of(backbone, images)
    behind(backbone, "3")
    assert [name for name, _ in backbone.named_modules()] == names
    assert torch.equal(maps_of(backbone, images)[1], before)


def test_a_touch_reaches_the_part() -> None:
    backbone = build_backbone("convnet").eval()
    maps, features = maps_of(backbone, torch.randn(2, 3, 32, 32))
    part = behind(backbone, "2")
    with torch.no_grad(), touched(part, {"3": lambda found: 2 * found}):
        assert not torch.allclose(part(maps["2"]), features)


def test_a_stage_that_is_not_there() -> None:
    with pytest.raises(OpenDGError, match="no stage 'stem'"):
        behind(build_backbone("convnet"), "stem")


def test_channels_leave_the_network_alone() -> None:
    backbone = small_backbone(batchnorm=True).train()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    assert channels(backbone) == {"1": 4, "2": 6}
    assert shapes(backbone) == {"1": (4, 3, 3), "2": (6, 1, 1)}
    backbone.input = replace(backbone.input, size=(8, 14))
    assert shapes(backbone) == {"1": (4, 3, 6), "2": (6, 1, 4)}
    assert backbone.training
    assert all(torch.equal(before[name], tensor) for name, tensor in backbone.state_dict().items())


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("test_vit", "tokens (n, l, C)"),
        ("mambaout_femto", "maps with the channels last (n, h, w, C)"),
        ("dpn68", "two maps at a time"),
    ],
)
def test_what_is_no_map_of_channels_is_refused(name: str, what: str) -> None:
    with pytest.raises(OpenDGError, match="gives no map of channels: choose a"):
        shapes(build_backbone(name))


@pytest.mark.parametrize("name", ["crossvit_tiny_240", "hrnet_w18_small", "xception41"])
def test_a_backbone_without_named_stages_is_refused(name: str) -> None:
    """timm names none of the one, and modules that the other does not have."""
    backbone = build_backbone(name)
    assert backbone.stages == {}
    with pytest.raises(OpenDGError, match=f"'{name}' has no named stages: choose a"):
        shapes(backbone)


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_mode_ends_with_its_block_however_that_ends(training: bool) -> None:
    network = small_backbone(batchnorm=True).train(training)
    with evaluating(network):
        assert not any(module.training for module in network.modules())
    with pytest.raises(RuntimeError, match="in the middle"), evaluating(network):
        raise RuntimeError("in the middle")
    assert all(module.training == training for module in network.modules())


def test_style_is_measured_in_fp32_or_better() -> None:
    found = torch.randn(3, 4, 5, 6) * 3 + 100
    mean, variance = style(found.to(torch.bfloat16))
    rounded = found.to(torch.bfloat16).double()
    assert mean.shape == variance.shape == (3, 4, 1, 1)
    torch.testing.assert_close(mean.double(), rounded.mean((2, 3), keepdim=True))
    torch.testing.assert_close(variance.double(), rounded.var((2, 3), correction=0, keepdim=True), rtol=1e-4, atol=1e-4)
    assert wide(found.double()).dtype == torch.float64
