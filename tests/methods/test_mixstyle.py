"""MixStyle: the mixed map channel by channel, partners, the coin."""

from __future__ import annotations

import pytest
import torch

from opendg.errors import OpenDGError
from opendg.methods.chance import beta, permutation
from opendg.methods.mixstyle import MixStyle, across_domains
from opendg.methods.registry import make_method
from opendg.models.backbones import build_backbone
from opendg.models.stages import stage_module
from small import small_state
from tests.methods.beside_erm import domain_episode, equals_erm, gradients_of, pair


def always(**more: object) -> MixStyle:
    return MixStyle(MixStyle.Config(probability=1.0, stages=("1",), pixels=0, **more))


def some_map(n: int = 12) -> torch.Tensor:
    return torch.randn(n, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 2 + 1


def test_mixed_by_hand() -> None:
    x, twin = some_map(), small_state()
    found = always().mixed(x, domain_episode(), small_state())
    partner, share = permutation(twin, 12).tolist(), beta(twin, 0.1, 0.1, 12, 1, 1, 1).flatten().tolist()
    assert any(0.01 < value < 0.99 for value in share)
    for i in range(12):
        for c in range(3):
            mu, mu_ = (sum(x[j, c].flatten().tolist()) / 20 for j in (i, partner[i]))
            sigma, sigma_ = (
                (sum((v - m) ** 2 for v in x[j, c].flatten().tolist()) / 20 + 1e-6) ** 0.5
                for j, m in ((i, mu), (partner[i], mu_))
            )
            part = share[i]
            expected = (x[i, c] - mu) / sigma * (part * sigma + (1 - part) * sigma_) + part * mu + (1 - part) * mu_
            torch.testing.assert_close(found[i, c], expected)


def test_no_gradient_goes_through_the_statistics() -> None:
    x = some_map().requires_grad_()
    found = always().mixed(x, domain_episode(), small_state())
    (gradient,) = torch.autograd.grad(found.square().sum(), x)
    factor = (found.detach().std((2, 3)) / x.detach().std((2, 3)))[:, :, None, None]  # a scale for each channel
    torch.testing.assert_close(gradient, 2 * found.detach() * factor)


@pytest.mark.parametrize("ova", [False, True])
def test_probability_0_is_erm_and_1_is_not(ova: bool) -> None:
    assert equals_erm(MixStyle(MixStyle.Config(probability=0.0, stages=("1",), pixels=0, ova=ova)))
    assert not equals_erm(always(ova=ova))


def test_the_map_after_each_stage_is_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    method, channels = MixStyle(MixStyle.Config(stages=("1", "2"), pixels=0)), []
    monkeypatch.setattr(method, "mixed", lambda found, *_: (channels.append(found.shape[1]), found)[1])
    gradients_of(method, pair(method)[0], domain_episode())
    assert channels == [4, 6]


def test_a_coin_for_each_stage_and_iteration() -> None:
    method, state, episode = MixStyle(MixStyle.Config(probability=0.3, pixels=20)), small_state(), domain_episode()
    x = some_map()
    acted = [not torch.equal(method.mixed(x, episode, state), x) for _ in range(300)]
    assert 60 < sum(acted) < 120


@pytest.mark.parametrize(("pixels", "mixed"), [(20, True), (21, False)])
def test_small_maps_are_left_alone(pixels: int, mixed: bool) -> None:
    x = some_map()
    method = MixStyle(MixStyle.Config(probability=1.0, pixels=pixels))
    assert torch.equal(method.mixed(x, domain_episode(), small_state()), x) != mixed


def test_a_network_without_a_map_to_mix_is_refused() -> None:
    backbone = build_backbone("convnet")
    with pytest.raises(OpenDGError, match="No map of 'convnet' after the stages 3, 4 has the 64 pixels"):
        make_method("mixstyle", {"stages": "('3', '4')"}).build(backbone, 4, 3)
    make_method("mixstyle", {"stages": "('3', '4')", "pixels": "16"}).build(backbone, 4, 3)
    make_method("mixstyle", {"stages": "('2', '3')"}).build(backbone, 4, 3)


@pytest.mark.parametrize("domains", [2, 3, 5])
def test_partners_of_another_domain(domains: int) -> None:
    episode, state, met = domain_episode((4,) * domains), small_state(), set()
    for _ in range(40):
        partner = across_domains(state, episode)
        assert sorted(partner.tolist()) == list(range(4 * domains))
        assert (episode.domains[partner] != episode.domains).all()
        met |= set(zip(range(4 * domains), partner.tolist(), strict=True))
    assert len(met) > 2 * 4 * domains  # neither the domain nor the image in it is always the same


def test_crossdomain_mixes_with_those_partners() -> None:
    x, episode, twin = some_map(), domain_episode(), small_state()
    found = always(mix="crossdomain", alpha=1e-3).mixed(x, episode, small_state())
    partner, share = across_domains(twin, episode), beta(twin, 1e-3, 1e-3, 12, 1, 1, 1).flatten()
    taken = share < 1e-6  # almost all shares are 0 or 1: these images wear their partner's style
    assert taken.any()
    torch.testing.assert_close(found.mean((2, 3))[taken], x.mean((2, 3))[partner[taken]], atol=1e-4, rtol=1e-4)


def test_off_in_evaluation_and_no_hook_stays() -> None:
    method = always()
    mine, plain = pair(method)
    gradients_of(method, mine, domain_episode())
    assert not stage_module(mine.backbone, "1")._forward_hooks
    plain.load_state_dict(mine.state_dict())
    images = domain_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)


def test_a_map_in_bf16_stays_in_bf16_and_is_measured_in_fp32() -> None:
    x = (some_map() + 100).to(torch.bfloat16)  # in bf16 the mean of such values would be rounded to halves
    found = always().mixed(x, domain_episode(), small_state())
    exact = always().mixed(x.double(), domain_episode(), small_state())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, atol=0.5, rtol=0)  # the step of bf16 near 100


def test_settings_and_stages_are_checked() -> None:
    with pytest.raises(OpenDGError, match="mix is 'both'"):
        make_method("mixstyle", {"mix": "both"})
    assert make_method("mixstyle", {"stages": "('1', '2')"}).config.stages == ("1", "2")
    with pytest.raises(OpenDGError, match="no stage '7'"):
        make_method("mixstyle", {"stages": "('7',)"}).build(build_backbone("convnet"), 4, 3)
