"""MIRO: the bound entry by entry, the frozen copy, the variances."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from opendg.errors import OpenDGError
from opendg.methods.miro import MIRO, RememberingClassifier
from opendg.models.backbones import build_backbone
from opendg.models.stages import looks
from opendg.training.optim import make_optimizer
from small import small_backbone, small_state
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of, pair


def moved(method: MIRO) -> RememberingClassifier:
    """A network that has left its first weights."""
    network, _ = pair(method)
    assert isinstance(network, RememberingClassifier)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7))
    return network


def test_gradient_by_hand() -> None:
    method, episode = MIRO(MIRO.Config(weight=0.3)), domain_episode()
    network = moved(method)
    found = gradients_of(method, network, episode)
    first = small_backbone(batchnorm=True).double().eval()  # the weights that the run began with
    bound, bare = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    x, x0 = episode.images, episode.images
    for stage in (0, 1):
        x, x0 = network.backbone.net[stage](x), first.net[stage](x0).detach()
        raw = network.variance[str(stage + 1)]
        for c in range(x.shape[1]):
            v = torch.log(1 + torch.exp(raw[c, 0, 0])) + 1e-5
            own = sum(((x[i, c] - x0[i, c]) ** 2 / v + torch.log(v)).sum() for i in range(12)) / 2
            bound, bare = bound + own / x.numel(), bare + own / x[:, c].numel()
    loss = 6 * (F.cross_entropy(network(episode.images).logits, episode.labels) + 0.3 * bound)
    for name, weight in network.named_parameters():
        whole = 6 * bare if name.startswith("variance.") else loss
        (gradient,) = torch.autograd.grad(whole, weight, retain_graph=True)
        torch.testing.assert_close(found[name], gradient)
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("ova", [False, True])
def test_weight_0_is_erm_and_the_head_sees_no_bound(ova: bool) -> None:
    assert equals_erm(MIRO(MIRO.Config(weight=0.0, ova=ova)))
    same = compare(MIRO(MIRO.Config(weight=0.1, ova=ova)))
    assert all(equal == name.startswith("head.") for name, equal in same.items())


@pytest.mark.parametrize("weight", [0.01, 0.1])
def test_under_the_common_recipe_the_variances_find_the_distances(weight: float) -> None:
    """SGD, 250 steps that go as far as 2,000 of lr 1e-4; the network stands still."""
    method, episode = MIRO(MIRO.Config(weight=weight)), domain_episode()
    network = moved(method)
    raws = {name: raw for name, raw in network.weights().items() if name.startswith("variance.")}
    optimizer = make_optimizer("sgd", raws, 5e-4, method.rates(network))
    for _ in range(250):
        found = gradients_of(method, network, episode)
        optimizer.apply({name: found[name] for name in raws}, torch.tensor(8e-4, dtype=torch.float64))
    maps: dict[str, torch.Tensor] = {}
    network(episode.images, looks(network.backbone.stages, maps))
    first = network.first_maps(episode.images)
    for stage, raw in network.variance.items():
        wanted = (maps[stage] - first[stage]).square().mean((0, 2, 3))
        torch.testing.assert_close((F.softplus(raw) + 1e-5).flatten(), wanted, rtol=0.15, atol=0.0)


def test_variances_start_at_a_tenth_and_have_their_rate() -> None:
    network, _ = pair(MIRO(MIRO.Config(rate=10.0)))
    for raw in network.variance.values():
        torch.testing.assert_close(F.softplus(raw) + 1e-5, torch.full_like(raw, 0.1))
    assert {name: len(raw) for name, raw in network.variance.items()} == {"1": 4, "2": 6}
    rates = MIRO(MIRO.Config(rate=10.0)).rates(network)
    assert [rates[start] for name in network.weights() for start in rates if name.startswith(start)] == [10.0, 10.0]


def test_the_copy_is_frozen_and_nowhere_saved() -> None:
    method = MIRO()
    network = moved(method)
    (first,) = network.first
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    gradients_of(method, network.train(), domain_episode())
    assert all(torch.equal(before[name], tensor) for name, tensor in first.state_dict().items())
    assert not first.training
    assert not any(parameter.requires_grad for parameter in first.parameters())
    mine = {id(tensor) for tensor in (*network.parameters(), *network.buffers())}
    assert not mine & {id(tensor) for tensor in (*first.parameters(), *first.buffers())}
    assert not [name for name in network.state_dict() if "first" in name]


def test_the_copy_goes_where_the_network_goes() -> None:
    network = MIRO().build(small_backbone(), 4, 3)
    assert {p.dtype for p in network.double().first[0].parameters()} == {torch.float64}
    twin = copy.deepcopy(network)
    assert twin.first[0] is not network.first[0]
    network.float().place(torch.device("cpu"), "bf16")
    maps = network.first_maps(torch.randn(2, 3, 8, 8))
    assert {found.dtype for found in maps.values()} == {torch.bfloat16}


@pytest.mark.parametrize("frozen", [True, False])
def test_statistics_of_batchnorm_stay_where_that_is_asked_for(frozen: bool) -> None:
    method = MIRO(MIRO.Config(freeze_batchnorm=frozen))
    network, _ = pair(method)
    before = network.backbone.net[0][1].running_mean.clone()
    gradients_of(method, network.train(), domain_episode())
    assert torch.equal(before, network.backbone.net[0][1].running_mean) == frozen


def test_off_in_evaluation() -> None:
    mine, plain = pair(MIRO())
    images = domain_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)


def test_at_the_start_the_bound_is_that_of_equal_maps() -> None:
    """No distance, five stages: 5/2 log 0.1, at a weight of 1 and in the scale of the sum over B."""
    method = MIRO(MIRO.Config(weight=1.0, freeze_batchnorm=True))
    network = method.build(build_backbone("resnet10t"), 4, 3).train()
    episode = replace(domain_episode(), images=torch.randn(12, 3, 64, 64))
    (update,) = method.step(network, episode, small_state())
    assert float(update.losses["miro"].detach()) == pytest.approx(6 * 5 / 2 * math.log(0.1), rel=1e-4)


def test_the_convnet_is_refused() -> None:
    with pytest.raises(OpenDGError, match="MIRO stays close .* pretrained .* 'convnet' has none: choose"):
        MIRO().build(build_backbone("convnet"), 4, 3)
