"""CIRL: amplitudes, correlations and masks by hand; what encoder and masker each learn from."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opendg.methods.base import State
from opendg.methods.chance import permutation, uniform
from opendg.methods.cirl import CIRL, MaskingClassifier, doubled, factorisation, mixed_amplitude, rise
from opendg.models.backbones import build_backbone
from small import small_state
from tests.methods.beside_erm import domain_episode, gradients_of, pair
from tests.methods.meta_by_hand import full_pool


def still(method: CIRL) -> MaskingClassifier:
    """The small network with a masker that drops nothing out."""
    network, _ = pair(method)
    assert isinstance(network, MaskingClassifier)
    for layer in network.masker:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    for parameter in network.second.parameters():
        nn.init.normal_(parameter, std=0.7)
    return network


def some_state(network: MaskingClassifier, fraction: float) -> State:
    state = small_state(CIRL().state(network, full_pool(1, 1)))
    state.fraction.fill_(fraction)
    return state


@pytest.mark.parametrize("size", [(8, 8), (7, 9)])
def test_phase_stays_and_amplitude_is_mixed(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    images, partners = torch.rand(2, 4, 3, *size, dtype=torch.float64)
    share = torch.tensor([0.0, 0.4, 0.7, 1.0]).view(4, 1, 1, 1)
    found = torch.fft.fft2(mixed_amplitude(images, partners, share))
    first, second = torch.fft.fft2(images), torch.fft.fft2(partners)
    torch.testing.assert_close(found.abs(), (1 - share) * first.abs() + share * second.abs())
    torch.testing.assert_close(found / found.abs(), first / first.abs())


def test_doubles_keep_labels_and_content_within_the_range_of_images() -> None:
    method, episode = CIRL(), domain_episode()
    network = still(method)
    state, twin = some_state(network, 0.5), some_state(network, 0.5)
    episode = type(episode)(
        episode.images.clamp(-1, 1), episode.labels, episode.domains, episode.positions, episode.sizes, episode.batch
    )
    pairs = doubled(episode, state)
    assert torch.equal(pairs.images[:12], episode.images)
    assert torch.equal(pairs.labels, torch.cat([episode.labels] * 2))
    assert (len(pairs.labels) / pairs.batch, sum(pairs.sizes)) == (len(episode.labels) / episode.batch, 24)
    partner, share = permutation(twin, 12), uniform(twin, 12, 1, 1, 1)
    pixels = episode.images / 2 + 0.5  # the small network's mean and deviation are one half
    expected = mixed_amplitude(pixels, pixels[partner], share.double()).clamp(0, 1) * 2 - 1
    torch.testing.assert_close(pairs.images[12:], expected)


def test_factorisation_by_hand() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 7, 4, dtype=torch.float64).unbind()

    def standard(f: Tensor) -> list[list[float]]:
        columns = []
        for column in f.T.tolist():
            mean = sum(column) / 7
            deviation = math.sqrt(sum((value - mean) ** 2 for value in column) / 6)
            columns.append([(value - mean) / (deviation + 1e-6) for value in column])
        return columns

    first, second = standard(a), standard(b)
    c = [[sum(x * y for x, y in zip(p, q, strict=True)) / 7 for q in second] for p in first]
    own = sum((c[i][i] - 1) ** 2 for i in range(4)) / 4
    others = sum(c[i][j] ** 2 for i in range(4) for j in range(4) if i != j) / 12
    assert float(factorisation(a, b, 0.005)) == pytest.approx(own + 0.005 * others, rel=1e-9)


@pytest.mark.parametrize(("config", "count"), [(CIRL.Config(draws=0.5), 3), (CIRL.Config(), 4)])
def test_mask_is_the_largest_of_the_draws(config: CIRL.Config, count: int) -> None:
    """Of the small network's 6 dimensions as many draws as their share says: by default 0.6 of them, rounded."""
    method = CIRL(config)
    network = still(method)
    state, twin = some_state(network, 0.5), some_state(network, 0.5)
    features = torch.randn(12, 6, dtype=torch.float64)
    found = method.mask(network, features, state)
    logits, noise = network.masker(features), -torch.log(-torch.log(uniform(twin, count, 12, 6).double()))
    for i in range(12):
        draws = [torch.softmax((logits[i] + noise[k, i]) / 0.5, 0) for k in range(count)]
        torch.testing.assert_close(found[i], torch.stack(draws).max(0).values, rtol=1e-5, atol=1e-6)
    assert torch.autograd.grad(found.sum(), network.masker[1].weight)[0].abs().sum() > 0


def test_the_masker_drops_out_before_its_first_two_layers_alone() -> None:
    network = CIRL().build(build_backbone("convnet"), 4, 3)
    kinds = [type(layer) for layer in network.masker]
    hidden = [nn.Dropout, nn.Linear, nn.BatchNorm1d, nn.ReLU]
    assert kinds == [*hidden, *hidden, nn.Linear, nn.BatchNorm1d]
    assert [layer.out_features for layer in network.masker if isinstance(layer, nn.Linear)] == [1024, 1024, 256]
    assert not network.masker[-1].affine


def parts_by_hand(network: MaskingClassifier, features: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    first = network.head.linear(features * mask)
    second = network.second.linear(features * (1 - mask))
    return F.cross_entropy(first, labels) / 2, F.cross_entropy(second, labels) / 2


def test_both_updates_by_hand() -> None:
    method, episode = CIRL(CIRL.Config(weight=0.7)), domain_episode()
    network = still(method)
    state, twin = some_state(network, 0.5), some_state(network, 0.5)
    steps = iter(method.step(network, episode, state))
    first = next(steps)
    pairs = doubled(episode, twin)
    features = network(pairs.images).features
    mask = method.mask(network, features.detach(), twin).detach()
    sup, inf = parts_by_hand(network, features, pairs.labels, mask)
    loss = 6 * (sup + inf + 0.7 * factorisation(features[:12], features[12:], 0.005))
    others = [name for name in network.weights() if not name.startswith("masker.")]
    assert list(first.gradients) == others
    for name, gradient in zip(
        others, torch.autograd.grad(loss, [network.weights()[name] for name in others]), strict=True
    ):
        torch.testing.assert_close(first.gradients[name], gradient, rtol=1e-5, atol=1e-8)
    with torch.no_grad():  # the masker plays against the heads that have just moved, on the features of the pass before
        for name, gradient in first.gradients.items():
            network.weights()[name].sub_(gradient, alpha=0.1)
    (second,) = steps
    sup, inf = parts_by_hand(network, features.detach(), pairs.labels, method.mask(network, features.detach(), twin))
    masker = [name for name in network.weights() if name.startswith("masker.")]
    assert list(second.gradients) == masker
    for name, gradient in zip(
        masker, torch.autograd.grad(6 * (sup - inf), [network.weights()[name] for name in masker]), strict=True
    ):
        torch.testing.assert_close(second.gradients[name], gradient, rtol=1e-5, atol=1e-8)
        assert name.endswith("bias") or gradient.abs().max() > 0


def test_both_heads_see_everything_in_the_beginning() -> None:
    method, episode = CIRL(CIRL.Config(weight=0.0)), domain_episode()
    network = still(method)
    state, twin = some_state(network, 0.1), some_state(network, 0.1)
    update = next(iter(method.step(network, episode, state)))
    pairs = doubled(episode, twin)
    features = network(pairs.images).features
    heads = [F.cross_entropy(head.linear(features), pairs.labels) for head in (network.head, network.second)]
    torch.testing.assert_close(update.losses["sup"], 3 * heads[0])
    torch.testing.assert_close(update.losses["inf"], 3 * heads[1])


def test_with_no_warm_up_the_first_iteration_is_masked() -> None:
    found = {}
    for warm_up in (0.0, 0.1):
        method = CIRL(CIRL.Config(warm_up=warm_up))
        network = still(method)
        found[warm_up] = next(iter(method.step(network, domain_episode(), some_state(network, 0.0)))).losses
    assert found[0.0]["sup"] != found[0.1]["sup"]


def test_factorisation_counts_less_while_its_weight_rises() -> None:
    found = []
    for fraction in (0.05, 0.5):
        method = CIRL()
        network = still(method)
        update = next(iter(method.step(network, domain_episode(), some_state(network, fraction))))
        found.append(float(update.losses["fac"].detach()))
    assert found[0] / found[1] == pytest.approx(math.exp(-1.25))


def test_heads_and_masker_have_a_rate_of_their_own() -> None:
    method = CIRL(CIRL.Config(rate=10.0))
    assert method.rates(still(method)) == {"head.": 10.0, "second.": 10.0, "masker.": 10.0}


def test_the_weight_rises_over_a_tenth_of_the_run() -> None:
    for fraction, value in ((0.0, math.exp(-5)), (0.05, math.exp(-1.25)), (0.1, 1.0), (0.9, 1.0)):
        assert float(rise(torch.tensor(fraction), 0.1)) == pytest.approx(value, rel=1e-5)
    assert float(rise(torch.tensor(0.0), 0.0)) == pytest.approx(math.exp(-5))


def test_factorisation_changes_the_encoder_alone() -> None:
    found = {}
    for weight in (0.0, 5.0):
        method = CIRL(CIRL.Config(weight=weight))
        network = still(method)
        found[weight] = gradients_of(method, network, domain_episode(), some_state(network, 0.5))
    changed = {name for name, gradient in found[0.0].items() if not torch.equal(gradient, found[5.0][name])}
    assert changed
    assert all(name.startswith("backbone.") for name in changed)


@pytest.mark.parametrize("ova", [False, True])
def test_evaluation_is_the_first_head_on_the_whole_feature(ova: bool) -> None:
    mine, plain = pair(CIRL(CIRL.Config(ova=ova)))
    images = domain_episode().images
    for found, expected in zip(mine.eval()(images), plain.eval()(images), strict=True):
        assert (found is None and expected is None) or torch.equal(found, expected)
