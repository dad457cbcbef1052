"""RSC: masks cell by cell and channel by channel, the images that are muted, the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.chance import uniform
from opendg.methods.erm import ERM
from opendg.methods.registry import make_method
from opendg.methods.rsc import RSC
from opendg.models.backbones import build_backbone
from opendg.models.classifier import Classifier
from small import small_backbone, small_state
from tests.methods.beside_erm import compare, domain_episode, gradients_of, pair


def wide_episode() -> Episode:
    """Images of 14 x 14, so that the last map has 4 x 4 cells."""
    images = torch.randn(12, 3, 14, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return replace(domain_episode(), images=images)


def pooled_head(network: Classifier, last: torch.Tensor) -> torch.Tensor:
    return F.linear(last.mean((2, 3)), network.head.linear.weight, network.head.linear.bias)


def mask_by_hand(network: Classifier, last: torch.Tensor, labels: torch.Tensor, by_cells: bool) -> torch.Tensor:
    mask = torch.ones_like(last)
    for i, y in enumerate(labels.tolist()):
        gradient = network.head.linear.weight[y] / 16  # of z_y to each cell of each channel, for pooling is a mean
        if by_cells:
            value = [sum(gradient[c] * last[i, c, j // 4, j % 4] for c in range(6)) for j in range(16)]
            for j in sorted(range(16), key=lambda j: -value[j])[:6]:  # ceil(16 / 3)
                mask[i, :, j // 4, j % 4] = 0
        else:
            for c in sorted(range(6), key=lambda c: -gradient[c])[:2]:  # ceil(6 / 3.2)
                mask[i, c] = 0
    return mask


@pytest.mark.parametrize("seed", range(4))
def test_gradient_by_hand(seed: int) -> None:
    method, episode, state, twin = RSC(RSC.Config(images=(0.5,))), wide_episode(), small_state(), small_state()
    state.random.manual_seed(seed)
    twin.random.manual_seed(seed)
    network, _ = pair(method)
    found = gradients_of(method, network, episode, state)
    last = network.backbone.net[1](network.backbone.net[0](episode.images))
    with torch.no_grad():
        mask = mask_by_hand(network, last, episode.labels, by_cells=bool(uniform(twin, 1) < 0.5))
        before, after = (pooled_head(network, x).softmax(1) for x in (last, last * mask))
        fall = [float(before[i, y] - after[i, y]) for i, y in enumerate(episode.labels.tolist())]
        muted = [i for i in sorted(range(12), key=lambda i: -fall[i])[:6] if fall[i] > 1e-4]
        mask[[i for i in range(12) if i not in muted]] = 1
    assert muted
    loss = 6 * F.cross_entropy(pooled_head(network, last * mask), episode.labels)
    for name, gradient in zip(found, torch.autograd.grad(loss, list(network.parameters())), strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_both_kinds_of_mask_are_thrown_for() -> None:
    method, state, x = RSC(), small_state(), torch.rand(2, 6, 4, 4)
    masks = [method.muted(x, torch.rand_like(x), uniform(state, 1) < 0.5) for _ in range(20)]
    cells = [bool((mask == mask[:, :1]).all()) for mask in masks]
    assert 0 < sum(cells) < 20
    assert {int((mask == 0).sum()) for mask, by_cells in zip(masks, cells, strict=True) if by_cells} == {2 * 6 * 6}
    assert {int((mask == 0).sum()) for mask, by_cells in zip(masks, cells, strict=True) if not by_cells} == {2 * 2 * 16}


def test_cells_speak_by_the_mean_gradient_of_their_channel() -> None:
    """s = sum_c g_c F_c with g_c the mean over the cells, as in Grad-CAM: not the gradient at the cell itself."""
    found = torch.tensor([[[[1.0, 2.0, 4.0]], [[3.0, 1.0, 1.0]]]])
    gradient = torch.tensor([[[[9.0, 0.0, 0.0]], [[0.0, 3.0, 0.0]]]])  # means 3 and 1: s = 6, 7, 13
    mask = RSC().muted(found, gradient, torch.tensor([True]))
    assert mask[0, :, 0].tolist() == [[1, 1, 0]] * 2


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 6), (0.33, 6), (0.34, 10), (0.66, 10), (0.67, 14), (1.0, 14)])
def test_the_share_of_images_grows_in_thirds(fraction: float, count: int) -> None:
    fall = torch.rand(20, generator=torch.Generator().manual_seed(0)) + 0.1
    chosen = RSC().chosen(fall, torch.tensor(fraction))
    assert int(chosen.sum()) == count
    assert fall[chosen].min() > fall[~chosen].max()


def test_a_share_of_the_images_is_rounded() -> None:
    assert int(RSC().chosen(torch.linspace(0.1, 0.9, 12), torch.tensor(0.0)).sum()) == 4  # 0.3 of 12 are 3.6


def test_an_image_that_hardly_falls_is_left_alone() -> None:
    fall = torch.tensor([9e-5, -0.5, 0.3, 0.0, 2e-4, 1e-5, 0.0, 0.0, -1.0, 0.0])
    assert RSC(RSC.Config(images=(0.7,))).chosen(fall, torch.tensor(0.0)).nonzero().flatten().tolist() == [2, 4]


@pytest.mark.parametrize("ova", [False, True])
def test_no_image_muted_is_erm(ova: bool) -> None:
    assert all(compare(RSC(RSC.Config(images=(0.0,), ova=ova)), episode=wide_episode()).values())
    assert not any(compare(RSC(RSC.Config(ova=ova)), episode=wide_episode()).values())


@pytest.mark.parametrize("name", ["test_efficientnet", "test_nfnet"])
def test_what_follows_the_last_map_sees_one_pass(name: str) -> None:
    """Of a network with BatchNorm behind its last stage, or with a layer there that works in place."""
    images = torch.randn(12, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    episode, state = replace(domain_episode(), images=images), small_state()
    buffers = []
    for method in (RSC(RSC.Config(images=(0.0,))), ERM()):
        torch.manual_seed(0)
        network = method.build(build_backbone(name), 4, 3).train()
        gradients_of(method, network, episode, state)
        assert network.training
        assert all(module.training for module in network.modules())
        buffers.append(dict(network.named_buffers()))
    assert [key for key in buffers[0] if not torch.equal(buffers[0][key], buffers[1][key])] == []


def test_off_in_evaluation() -> None:
    mine, plain = pair(RSC())
    images = wide_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)


def test_a_backbone_without_stages_is_refused() -> None:
    unnamed = small_backbone()
    unnamed.stages = {}
    with pytest.raises(OpenDGError, match="no named stages"):
        RSC().build(unnamed, 4, 3)


def test_shares_are_checked() -> None:
    with pytest.raises(OpenDGError, match="shares"):
        make_method("rsc", {"cells": 1.5})
