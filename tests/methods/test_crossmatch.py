"""CrossMatch: its terms class by class, the ascent, the step."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from opendg.errors import OpenDGError
from opendg.losses import one_vs_all
from opendg.methods.chance import permutation
from opendg.methods.crossmatch import CrossMatch, binary_entropy, disagreement, margins, unclaimed
from opendg.methods.erm import ERM
from opendg.methods.registry import make_method
from opendg.models.classifier import Outputs
from small import small_state
from tests.methods.beside_erm import domain_episode, gradients_of, pair


def some_outputs(n: int = 5) -> Outputs:
    torch.manual_seed(4)
    return Outputs(*(2 * torch.randn(n, *shape, dtype=torch.float64) for shape in ((6,), (4,), (2, 4))))


def test_terms_by_hand() -> None:
    outputs, labels = some_outputs(), [0, 3, 1, 2, 0]
    found = unclaimed(margins(outputs), torch.tensor(labels))
    entropy, apart = binary_entropy(margins(outputs)), disagreement(outputs)
    for i, y in enumerate(labels):
        b, z = outputs.ova[i].tolist(), outputs.logits[i].tolist()
        q = [math.exp(b[1][k]) / (math.exp(b[0][k]) + math.exp(b[1][k])) for k in range(4)]
        p = [math.exp(z[k]) / sum(map(math.exp, z)) for k in range(4)]
        leave = -math.log(q[y]) + sum(math.log(1 - q[j]) for j in range(4) if j != y)
        assert float(found[i]) == pytest.approx(leave)
        for k in range(4):
            assert float(entropy[i, k]) == pytest.approx(-q[k] * math.log(q[k]) - (1 - q[k]) * math.log(1 - q[k]))
        pairs = sum((q[k] - p[k]) ** 2 + ((1 - q[k]) - (1 - p[k])) ** 2 for k in range(4))
        assert float(apart[i]) == pytest.approx(pairs)


def test_far_margins_give_finite_terms_and_gradients() -> None:
    margin = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    for value in (binary_entropy(margin).sum(), unclaimed(margin, torch.tensor([1])).sum()):
        (gradient,) = torch.autograd.grad(value, margin)
        assert value.isfinite()
        assert gradient.isfinite().all()


def test_a_step_of_the_ascent_by_hand() -> None:
    method = CrossMatch(CrossMatch.Config(ascent=2, reach=0.5, distance=0.3, ova_scale=0.8))
    network, _ = pair(CrossMatch())
    images, labels = domain_episode().images[:3], torch.tensor([0, 1, 2])
    found = method.ascend(network, images, labels)
    network.eval()
    for i in range(3):
        anchor = network(images[i : i + 1]).features.detach()
        for kind in ("known", "unknown"):
            x = images[i : i + 1].clone()
            for _ in range(2):
                x = x.detach().requires_grad_()
                out, y = network(x), labels[i : i + 1]
                if kind == "known":
                    aim = F.cross_entropy(out.logits, y) + one_vs_all(out.ova, y, 0.8).sum()
                else:
                    aim = unclaimed(margins(out), y).sum()
                aim = aim - 0.3 * (out.features - anchor).square().sum() / 6
                slope = torch.autograd.grad(aim, x)[0]
                x = x + 0.5 * slope / slope.square().sum().sqrt()
            torch.testing.assert_close(found[i if kind == "known" else i + 3], x[0].detach())


def test_an_image_without_a_slope_stays_where_it_is() -> None:
    network, _ = pair(CrossMatch())
    torch.nn.init.zeros_(network.backbone.net[0][0].weight)  # blind: no pixel changes what it says
    images = domain_episode().images[:3]
    found = CrossMatch().ascend(network, images, torch.tensor([0, 1, 2]))
    assert torch.equal(found, images.repeat(2, 1, 1, 1))


def test_unknown_like_images_are_claimed_less() -> None:
    method = CrossMatch(CrossMatch.Config(ascent=15, distance=0.1))
    network, _ = pair(CrossMatch())
    images, labels = domain_episode().images[:4], torch.arange(4)
    made = method.ascend(network, images, labels)[4:]
    network.eval()
    before, after = (unclaimed(margins(network(x)), labels) for x in (images, made))
    assert (after > before).all()


def test_the_ascent_leaves_the_network_as_it_was() -> None:
    method = CrossMatch()
    network, _ = pair(CrossMatch())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    method.ascend(network, domain_episode().images, domain_episode().labels)
    assert network.training
    assert network.backbone.net[0][1].training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_gradient_by_hand() -> None:
    method = CrossMatch(CrossMatch.Config(share=0.25, entropy=0.4, consistency=0.7))
    network, _ = pair(CrossMatch())
    episode, before = domain_episode(), copy.deepcopy(network)  # the ascent reads the running statistics of before
    found = gradients_of(method, network, episode)
    chosen = permutation(small_state(), 12)[:3]
    made = method.ascend(before, episode.images[chosen], episode.labels[chosen])
    outputs = network(torch.cat([episode.images, made]))
    labels = torch.cat([episode.labels, episode.labels[chosen]])
    loss = F.cross_entropy(outputs.logits[:15], labels, reduction="sum") + one_vs_all(outputs.ova[:15], labels).sum()
    q, p = outputs.ova[15:].softmax(1), outputs.logits[15:].softmax(1)
    loss = loss - 0.4 * (q * q.log()).sum() / 4 + 0.7 * 2 * (q[:, 1] - p).square().sum()
    for name, gradient in zip(found, torch.autograd.grad(loss / 2, list(network.parameters())), strict=True):
        torch.testing.assert_close(found[name], gradient)


def test_share_0_is_erm_with_both_heads() -> None:
    mine, plain = pair(CrossMatch())
    expected = gradients_of(ERM(ERM.Config(ova=True)), plain, domain_episode())
    for share, same in ((0.0, True), (1 / 12, False)):
        network = copy.deepcopy(mine)
        found = gradients_of(CrossMatch(CrossMatch.Config(share=share)), network, domain_episode())
        assert {torch.equal(found[name], gradient) for name, gradient in expected.items()} == {same}


def test_off_in_evaluation_and_read_by_entropy() -> None:
    mine, plain = pair(CrossMatch())
    images = domain_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)
    assert CrossMatch.score == "entropy"


def test_without_the_one_vs_all_head_it_is_refused() -> None:
    assert make_method("crossmatch", {"ova": "true"}).config.ova
    with pytest.raises(OpenDGError, match="needs the one-vs-all head"):
        make_method("crossmatch", {"ova": "false"})


def test_any_share_makes_an_image_of_a_small_batch() -> None:
    """12 images: a share of 1 / 12 and one of 1 / 100 both make one image of each kind."""
    found = []
    for share in (1 / 12, 1 / 100):
        method = CrossMatch(CrossMatch.Config(share=share))
        found.append(gradients_of(method, pair(CrossMatch())[0], domain_episode()))
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=0, atol=0)
