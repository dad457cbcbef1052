"""The folded first convolution computes what the plain one does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from opendg.models.backbones import build_backbone
from opendg.models.stem import FoldedStem, fold_stem


@pytest.mark.parametrize("side", [(224, 224), (65, 64), (31, 40)])
@pytest.mark.parametrize(("kernel", "padding", "bias"), [(7, 3, False), (3, 1, True), (5, 0, False)])
def test_the_same_sums(side: tuple[int, int], kernel: int, padding: int, bias: bool) -> None:
    conv = nn.Conv2d(3, 8, kernel, stride=2, padding=padding, bias=bias).double()
    images = torch.randn(2, 3, *side, dtype=torch.float64)
    torch.testing.assert_close(FoldedStem(conv)(images), conv(images))


def test_the_same_gradient() -> None:
    conv = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False).double()
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    plain = torch.autograd.grad(conv(images).square().sum(), [images, conv.weight])
    folded = torch.autograd.grad(FoldedStem(conv)(images).square().sum(), [images, conv.weight])
    torch.testing.assert_close(folded, plain)


def test_weights_keep_their_names() -> None:
    backbone = build_backbone("resnet18")
    before = dict(backbone.named_parameters())
    fold_stem(backbone)
    assert isinstance(backbone.net.conv1, FoldedStem)
    after = dict(backbone.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_other_stems_stay() -> None:
    convnet = build_backbone("convnet")  # stride 1
    fold_stem(convnet)
    assert not any(isinstance(module, FoldedStem) for module in convnet.modules())


def test_only_the_first_convolution_is_folded() -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 8, 3, stride=2))
    fold_stem(net)
    assert not any(isinstance(module, FoldedStem) for module in net)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(5, 8, 3, stride=2),
        nn.Conv2d(3, 8, 3, stride=2, dilation=2),
        nn.Conv2d(4, 8, 3, stride=2, groups=2),
        nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 8, 3, stride=2, padding="valid"),
        nn.Conv2d(3, 8, 3, stride=2, padding=(1, 2)),
        nn.Conv2d(3, 8, 4, stride=2),
        nn.Conv2d(3, 8, (3, 5), stride=2),
    ],
    ids=str,
)
def test_what_cannot_be_folded_stays(conv: nn.Conv2d) -> None:
    net = nn.Sequential(conv)
    fold_stem(net)
    assert net[0] is conv
