"""SagNet: random styles and contents image by image, and who learns from which of the three losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.methods.chance import permutation, uniform
from opendg.methods.sagnet import SagNet, adversarial, recontented, restyled
from opendg.models.backbones import build_backbone
from small import small_backbone, small_state
from tests.methods.beside_erm import domain_episode, gradients_of, pair


def some_map() -> Tensor:
    return torch.randn(5, 3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2 + 1


def statistics(channel: Tensor) -> tuple[float, float]:
    values = channel.flatten().tolist()
    mean = sum(values) / len(values)
    return mean, sum((value - mean) ** 2 for value in values) / len(values)


def test_random_style_and_random_content_by_hand() -> None:
    x, partner, share = some_map(), torch.tensor([3, 0, 4, 1, 2]), torch.tensor([0.0, 1.0, 0.3, 0.5, 0.9])
    styled, contented = restyled(x, partner, share.view(-1, 1, 1, 1)), recontented(x, partner)
    for i, j in enumerate(partner.tolist()):
        for c in range(3):
            (m, v), (m_, v_) = statistics(x[i, c]), statistics(x[j, c])
            part = float(share[i])
            mean, variance = part * m + (1 - part) * m_, part * v + (1 - part) * v_
            own, others = (x[i, c] - m) / (v + 1e-5) ** 0.5, (x[j, c] - m_) / (v_ + 1e-5) ** 0.5
            torch.testing.assert_close(styled[i, c], own * (variance + 1e-5) ** 0.5 + mean)
            torch.testing.assert_close(contented[i, c], others * (v + 1e-5) ** 0.5 + m)


def test_the_branch_learns_nothing_of_the_content() -> None:
    """The gradient of a pixel is that of mean and variance of its channel: a number and one times its deviation."""
    x = some_map().requires_grad_()
    partner = torch.tensor([1, 2, 3, 4, 0])
    (gradient,) = torch.autograd.grad((recontented(x, partner) * torch.rand_like(x)).sum(), x)
    deviation = x.detach() - x.detach().mean((2, 3), keepdim=True)
    slope = (gradient * deviation).sum((2, 3), keepdim=True) / deviation.square().sum((2, 3), keepdim=True)
    flat = gradient - slope * deviation  # what is left of a gradient through mean and variance alone
    torch.testing.assert_close(flat, flat.mean((2, 3), keepdim=True).expand_as(flat))


def losses_by_hand(network: torch.nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Content, style and adversarial loss (weight 1) as means, with the random numbers that the step draws."""
    twin = small_state()
    partner, share = permutation(twin, 12), uniform(twin, 12, 1, 1, 1)
    early, late, head = network.backbone.net[0], network.backbone.net[1], network.head.linear
    x = early(images)
    content = head(late(restyled(x, partner, share)).mean((2, 3)))
    styled = network.branch.head.linear(
        network.branch.backbone.net[1](recontented(x, permutation(twin, 12))).mean((2, 3))
    )
    undecided = -sum(torch.log_softmax(row, 0).sum() / 4 for row in styled) / 12
    return F.cross_entropy(content, labels), F.cross_entropy(styled, labels), undecided


@pytest.mark.parametrize("batchnorm", [True, False])
@pytest.mark.parametrize("clip", [1e-3, 1e3])
def test_each_weight_follows_its_losses(batchnorm: bool, clip: float) -> None:
    method, episode = SagNet(SagNet.Config(stage="1", clip=clip, weight=0.7)), domain_episode()
    network, _ = pair(method, batchnorm)
    for parameter in network.branch.head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    found = gradients_of(method, network, episode)
    content, style, undecided = losses_by_hand(network, episode.images, episode.labels)
    fooled = set(adversarial(network, "1"))
    early = {"backbone.net.0.0.weight", "backbone.net.0.0.bias"}
    assert fooled == ({"backbone.net.0.1.weight", "backbone.net.0.1.bias"} if batchnorm else early)
    names, weights = list(found), [network.weights()[name] for name in found]
    grads = [
        torch.autograd.grad(loss, weights, retain_graph=True, materialize_grads=True)
        for loss in (content, style, 0.7 * undecided)
    ]
    by_name = [dict(zip(names, parts, strict=True)) for parts in grads]
    norm = sum(by_name[2][name].square().sum() for name in fooled) ** 0.5
    factor = min(1.0, clip / float(norm))
    assert (factor < 1) == (clip < 1)
    for name in names:
        expected = by_name[1][name] if name.startswith("branch.") else by_name[0][name]
        if name in fooled:
            expected = expected + factor * by_name[2][name]
        torch.testing.assert_close(found[name], 6 * expected, msg=lambda m, n=name: f"{n}: {m}")
    assert set(names) == set(network.weights())


def test_weight_0_stops_the_adversary_and_nothing_else() -> None:
    found = {}
    for weight in (0.0, 0.5):
        method = SagNet(SagNet.Config(stage="1", weight=weight, clip=10.0))
        found[weight] = gradients_of(method, pair(method)[0], domain_episode())
    changed = {name for name, gradient in found[0.0].items() if not torch.allclose(gradient, found[0.5][name])}
    assert changed == {"backbone.net.0.1.weight", "backbone.net.0.1.bias"}


def fool(rank: int, folder: str) -> None:
    """One of two processes, with unequal shares of the images and an adversary whose gradient is cut."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    method = SagNet(SagNet.Config(stage="1", clip=1e-3))
    network, _ = pair(method)
    for parameter in network.branch.head.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    episode = domain_episode((5, 5, 5)).tasks(0, 1) if rank == 0 else domain_episode((5, 5, 5)).tasks(1, 3)
    found = gradients_of(method, network, episode)
    without = gradients_of(SagNet(SagNet.Config(stage="1", weight=0.0)), network, episode)
    torch.save({name: found[name] - without[name] for name in adversarial(network, "1")}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_cut_the_adversary_alike_and_as_one_does(tmp_path: Path) -> None:
    """At `clip` times n / B, n the 15 images of both."""
    mp.spawn(fool, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    norm = float(sum(part.square().sum() for part in first.values()) ** 0.5)
    assert norm == pytest.approx(1e-3 * 15 / 2, rel=1e-6)


def test_off_in_evaluation() -> None:
    mine, plain = pair(SagNet(SagNet.Config(stage="1")))
    images = domain_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)


def test_the_branch_is_a_copy_of_the_late_stages() -> None:
    network = SagNet().build(build_backbone("resnet10t"), 4, 3)
    late, branch = network.backbone.net.layer3, network.branch.backbone.net.layer3
    assert all(torch.equal(a, b) and a is not b for a, b in zip(late.parameters(), branch.parameters(), strict=True))
    assert {name.split(".")[1] for name, _ in network.branch.backbone.named_parameters()} == {"layer3", "layer4"}
    fooled = adversarial(network, "2")
    assert all(weight.ndim == 1 for weight in fooled.values())  # scales and shifts
    assert {name.split(".")[2] for name in fooled} == {"conv1", "bn1", "layer1", "layer2"}  # conv1: a stem of three


def test_the_convnet_works_with_all_its_early_weights() -> None:
    network = SagNet().build(build_backbone("convnet"), 4, 3)
    assert {name.split(".")[2] for name in adversarial(network, "2")} == {"0", "1"}


def test_the_branch_computes_in_the_precision_of_the_network() -> None:
    network = SagNet(SagNet.Config(stage="1")).build(small_backbone(), 4, 3)
    network.place(torch.device("cpu"), "bf16")
    assert network.branch.low == torch.bfloat16


def test_a_stage_that_is_not_there_is_refused() -> None:
    with pytest.raises(OpenDGError, match="no stage '9'"):
        SagNet(SagNet.Config(stage="9")).build(build_backbone("convnet"), 4, 3)
