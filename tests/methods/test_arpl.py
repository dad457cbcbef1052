"""ARPL: distances, radius and loss, image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from opendg.methods.arpl import ARPL, ReciprocalHead
from opendg.models.heads import ClosedHead
from opendg.predictions import Predictions
from opendg.runs.scores import linear_head
from opendg.scores.registry import make_score
from opendg.training.optim import make_optimizer
from small import small_classifier, small_state
from tests.methods.beside_erm import domain_episode, gradients_of


def loss_by_hand(
    f: torch.Tensor, y: int, points: torch.Tensor, radius: torch.Tensor, lam: float, t: float
) -> torch.Tensor:
    d = len(f)
    squares = [sum((f[i] - point[i]) ** 2 for i in range(d)) / d for point in points]
    z = [(s - sum(f[i] * point[i] for i in range(d))) / t for s, point in zip(squares, points, strict=True)]
    ce = torch.logsumexp(torch.stack(z), 0) - z[y]
    return ce + lam * torch.clamp(squares[y] - radius + 1, min=0)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_loss_and_gradient_by_hand(temperature: float) -> None:
    method, episode = ARPL(ARPL.Config(weight=0.3, temperature=temperature)), domain_episode()
    classifier = small_classifier(method)
    with torch.no_grad():
        classifier.head.radius.fill_(1.5)  # inside for some images, outside for others
    (update,) = method.step(classifier, episode, small_state())
    features = classifier(episode.images).features
    points, radius = classifier.head.points, classifier.head.radius
    each = [
        loss_by_hand(f, int(y), points, radius, 0.3, temperature) for f, y in zip(features, episode.labels, strict=True)
    ]
    excess = classifier.head.excess(features, episode.labels)
    assert (excess == 0).any()
    assert (excess > 0).any()
    loss = torch.stack(each).sum() / episode.batch
    torch.testing.assert_close(torch.stack(list(update.losses.values())).sum(), loss)
    for name, gradient in zip(update.gradients, torch.autograd.grad(loss, list(classifier.parameters())), strict=True):
        torch.testing.assert_close(update.gradients[name], gradient)


def test_the_radius_term_changes_the_gradient_and_weight_0_takes_it_away() -> None:
    episode = domain_episode()
    found = {}
    for weight in (0.0, 0.1):
        method = ARPL(ARPL.Config(weight=weight))
        found[weight] = gradients_of(method, small_classifier(method), episode)
    assert float(found[0.0]["head.radius"]) == 0
    assert float(found[0.1]["head.radius"]) < 0  # the radius grows towards the images outside it
    assert not torch.allclose(found[0.0]["backbone.net.0.0.weight"], found[0.1]["backbone.net.0.0.weight"])
    classifier = small_classifier(ARPL())
    ce = torch.nn.functional.cross_entropy(classifier(episode.images).logits, episode.labels)
    for name, gradient in zip(
        found[0.0], torch.autograd.grad(6 * ce, list(classifier.parameters()), allow_unused=True), strict=True
    ):
        if gradient is not None:
            torch.testing.assert_close(found[0.0][name], gradient)


def test_under_the_common_recipe_the_radius_comes_to_hold_the_images() -> None:
    """Features as long as a pretrained ResNet-18 gives them, ||f||^2 = 1.8 d; they stand still, only R moves."""
    method = ARPL()
    head, labels = ReciprocalHead(512, 6, 0.006, 1.0, ova=False), torch.arange(48) % 6
    features = 1.8**0.5 * torch.randn(48, 512, generator=torch.Generator().manual_seed(0))
    optimizer = make_optimizer("sgd", {"head.radius": head.radius}, 5e-4, method.rates(small_classifier(method)))
    outside = []
    for _ in range(1000):  # half of a short run
        excess = head.excess(features, labels)
        outside.append(float((excess > 0).float().mean()))
        (slope,) = torch.autograd.grad(method.config.weight * excess.sum() / 8, head.radius)
        optimizer.apply({"head.radius": slope}, torch.tensor(1e-4))
    assert outside[0] == 1
    assert outside[-1] < 0.05


def test_logits_and_the_push_on_the_features_start_as_erms() -> None:
    """With features as long as those of a pretrained ResNet-18 both are within a factor of 1.5 of the linear head's."""
    torch.manual_seed(0)
    features = (1.8**0.5 * torch.randn(48, 512)).requires_grad_()
    spreads, pushes = [], []
    for head in (ReciprocalHead(512, 6, ARPL.Config().spread, 1.0, ova=False), ClosedHead(512, 6)):
        logits = head(features)[0]
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(48) % 6)
        spreads.append(float(logits.detach().std(1).mean()))
        pushes.append(float(torch.autograd.grad(loss, features)[0].norm()))
    assert spreads[0] == pytest.approx(spreads[1], rel=0.5)
    assert pushes[0] == pytest.approx(pushes[1], rel=0.5)


def test_start_and_outputs() -> None:
    torch.manual_seed(0)
    head = ARPL(ARPL.Config(spread=0.3)).build(small_classifier(ARPL()).backbone, 200, 3).head
    assert float(head.points.detach().std()) == pytest.approx(0.3, rel=0.1)
    assert float(head.radius.detach()) == 0
    assert head(torch.randn(2, 6))[1] is None
    logits, ova = small_classifier(ARPL(ARPL.Config(ova=True))).head(torch.randn(2, 6, dtype=torch.float64))
    assert logits.shape == (2, 4)
    assert ova is not None
    assert ova.shape == (2, 2, 4)
    assert linear_head(small_classifier(ARPL())) is None


def test_its_score_is_the_largest_distance() -> None:
    """An image in the middle of the points is less known than one far away from all but one."""
    head = ARPL().build(small_classifier(ARPL()).backbone, 4, 3).double().head
    with torch.no_grad():
        head.points.copy_(torch.eye(6, dtype=torch.float64)[:4])
    far, middle = 5 * torch.eye(6, dtype=torch.float64)[4:5], head.points.mean(0, keepdim=True)
    features = torch.cat([far, middle])
    logits = head(features)[0].detach().numpy().astype(np.float32)
    blank = np.array(["", ""])
    images = Predictions(blank, blank, np.array([0, -1]), features.detach().numpy().astype(np.float32), logits, None)
    known, unknown = make_score(ARPL.score)(images)
    assert known > unknown
    assert known == pytest.approx(26 / 6, rel=1e-6)  # (25 + 1) / d - 0
