"""MVDG against cloned networks with torch.optim.Adam; the views of its test."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.base import State
from opendg.methods.mvdg import MVDG, MultiView, adam_step, view
from opendg.methods.registry import make_method
from opendg.models.classifier import Classifier
from small import small_backbone, small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import assert_same, flat, full_pool, loss_by_hand, move_by_hand, real_survey


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_inner_adam_is_that_of_torch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weights = {"a": torch.randn(3, 4, dtype=dtype), "b": torch.randn(5, dtype=dtype)}
    theirs = [tensor.clone().requires_grad_() for tensor in weights.values()]
    adam = torch.optim.Adam(theirs, lr=0.02, weight_decay=0.1)
    own = {f"{moment}.{n}": torch.zeros_like(w) for n, w in weights.items() for moment in ("first", "second")}
    own["steps"] = torch.zeros((), dtype=torch.float64)
    for _ in range(20):
        gradient = {name: torch.randn_like(weight) for name, weight in weights.items()}
        weights = adam_step(weights, gradient, own, lr=0.02, decay=0.1)
        for parameter, tensor in zip(theirs, gradient.values(), strict=True):
            parameter.grad = tensor
        adam.step()
        for found, expected in zip(weights.values(), theirs, strict=True):
            torch.testing.assert_close(found, expected)


def test_the_inner_adam_is_traced_whole() -> None:
    """Where the network is compiled it is one graph, and moves weights and moments as the plain function does."""
    torch.manual_seed(0)
    found = []
    gradient = {"a": torch.randn(3, 4), "b": torch.randn(5)}
    for step in (adam_step, torch.compile(adam_step, fullgraph=True, backend="eager")):
        weights = {name: torch.nn.Parameter(torch.ones_like(tensor)) for name, tensor in gradient.items()}
        own = {f"{moment}.{n}": torch.zeros_like(w) for n, w in weights.items() for moment in ("first", "second")}
        own["steps"] = torch.zeros((), dtype=torch.float64)
        moved, tensors = weights, dict(own)
        for _ in range(2):
            moved = step(moved, gradient, own, lr=0.02, decay=0.1)
        assert all(own[name] is tensor for name, tensor in tensors.items())  # in place: a captured step goes on in them
        found.append([*moved.values(), *(tensor.detach() for tensor in own.values())])
    torch.testing.assert_close(*found)


def trajectory_by_hand(
    start: Classifier, splits: list[tuple[Episode, Episode]], adam: dict[str, object] | None
) -> tuple[Classifier, dict[str, object]]:
    """A clone that walks with torch's Adam, whose state goes on from the one before."""
    clone = copy.deepcopy(start)
    optimizer = torch.optim.Adam(clone.parameters(), lr=0.05, weight_decay=5e-4)
    if adam is not None:
        optimizer.load_state_dict(adam)
    for sides in splits:
        for side in sides:
            optimizer.zero_grad()
            loss_by_hand(clone, side).backward()
            optimizer.step()
    return clone, optimizer.state_dict()


@pytest.mark.parametrize(("domains", "ova"), [(2, False), (3, True), (4, False)])
def test_two_iterations_are_the_formula(domains: int, ova: bool) -> None:
    method = MVDG(MVDG.Config(trajectories=2, length=2, inner_lr=0.05, scale=0.1, ova=ova))
    classifier = small_classifier(method, domains=domains, batchnorm=True)
    episode = small_episode((2,) * (4 * domains), domains=domains)
    state = small_state(method.state(classifier, full_pool(domains, 4)))
    network, adam = copy.deepcopy(classifier), None
    for _ in range(2):
        (update,) = method.step(classifier, episode, state)
        parts = [episode.tasks(domains * i, domains * (i + 1)) for i in range(4)]
        splits = [(part.tasks(0, domains - 1), part.tasks(domains - 1, domains)) for part in parts]
        ends = []
        for pair in (splits[:2], splits[2:]):
            end, adam = trajectory_by_hand(network, pair, adam)
            ends.append(dict(end.named_parameters()))
        expected = {
            name: ((2 * theta - ends[0][name] - ends[1][name]) / 2 / 0.1).detach()
            for name, theta in network.named_parameters()
        }
        assert_same(update.gradients, expected)
        move_by_hand(classifier, update.gradients, 0.03)
        move_by_hand(network, expected, 0.03)
    assert float(state.own["steps"]) == 16


def test_losses_are_the_means_over_the_steps_of_each_side() -> None:
    method = MVDG(MVDG.Config(trajectories=1, length=2, inner_lr=0.0))
    classifier, episode = small_classifier(method), small_episode((2,) * 6)
    (update,) = method.step(classifier, episode, small_state(method.state(classifier, full_pool(3, 4))))
    for name, sides in {"meta-train": [(0, 2), (3, 5)], "meta-test": [(2, 3), (5, 6)]}.items():
        expected = torch.stack([loss_by_hand(classifier, episode.tasks(*side)) for side in sides]).mean()
        torch.testing.assert_close(update.losses[name], expected.detach())


def test_trajectories_and_their_length_change_the_gradient() -> None:
    found = []
    for trajectories, length in ((1, 1), (2, 1), (1, 2)):
        method = MVDG(MVDG.Config(trajectories=trajectories, length=length, inner_lr=0.05))
        classifier = small_classifier(method)
        state = small_state(method.state(classifier, full_pool(3, 4)))
        (update,) = method.step(classifier, small_episode((2,) * (3 * trajectories * length)), state)
        found.append(flat(update))
    assert not torch.allclose(found[0], found[1], rtol=1e-3)
    assert not torch.allclose(found[0], found[2], rtol=1e-3)


@pytest.mark.parametrize("domains", [2, 3, 4])
def test_each_split_has_all_domains_in_random_order(domains: int) -> None:
    method, held = MVDG(), set()
    for step in range(10):
        tasks = method.tasks(full_pool(domains, 6), 8, step, np.random.default_rng(step))
        assert len(tasks) == 9 * domains
        assert {task.size for task in tasks} == {8}
        for split in range(9):
            order = [task.domains[0] for task in tasks[split * domains : (split + 1) * domains]]
            assert sorted(order) == list(range(domains))
            held.add((step, order[-1]))
    assert {domain for _, domain in held} == set(range(domains))
    assert len(held) > 10  # the splits of one iteration differ


@pytest.fixture
def images() -> Tensor:
    torch.manual_seed(3)
    return torch.randn(4, 3, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize("ova", [True, False])
def test_views_average_the_logits_in_evaluation_alone(images: Tensor, ova: bool) -> None:
    classifier = small_classifier(MVDG(MVDG.Config(views=5, ova=ova)))
    plain = small_classifier(MVDG(MVDG.Config(ova=ova)))
    plain.load_state_dict(classifier.state_dict())
    torch.testing.assert_close(classifier(images).logits, plain(images).logits)
    classifier.eval(), plain.eval()
    outputs = classifier(images)
    views = [plain(view(images, row)) for row in classifier.plan.tolist()]
    torch.testing.assert_close(outputs.logits, torch.stack([seen.logits for seen in views]).mean(dim=0))
    assert not torch.allclose(outputs.logits, plain(images).logits)
    assert torch.equal(outputs.logits, classifier(images).logits)
    if ova:
        torch.testing.assert_close(outputs.ova, torch.stack([seen.ova for seen in views]).mean(dim=0))


def test_the_first_view_is_the_image_and_the_others_are_weak(images: Tensor) -> None:
    plan = MultiView(small_backbone(), 4, "closed", views=32, mirror=True).plan
    assert torch.equal(view(images, plan[0].tolist()), images)
    areas = plan[:, 2] * plan[:, 3]
    assert ((areas > 0.79) & (areas < 1.01)).all()
    assert 8 < plan[:, 4].sum() < 24
    assert np.array_equal(plan, MultiView(small_backbone(), 4, "closed", views=32, mirror=True).plan)
    assert not MultiView(small_backbone(), 4, "closed", views=32, mirror=False).plan[:, 4].any()


def test_a_view_is_its_crop_and_its_flip() -> None:
    ramp = torch.arange(8.0).expand(1, 3, 8, 8)  # brighter to the right
    crop = view(ramp, [0.5, 0.0, 0.5, 1.0, 0.0])
    torch.testing.assert_close(crop[0, 0, 0], torch.tensor([4.0, 4.25, 4.75, 5.25, 5.75, 6.25, 6.75, 7.0]))
    assert torch.equal(view(ramp, [0.5, 0.0, 0.5, 1.0, 1.0]), crop.flip(3))


def test_batchnorm_is_estimated_anew_at_the_end(tmp_path: Path) -> None:
    method = MVDG()
    classifier = small_classifier(method, batchnorm=True).float()
    survey = real_survey(tmp_path, classifier)
    norm = classifier.backbone.net[0][1]
    norm.running_mean.fill_(7.0)
    state = State(torch.zeros(()), torch.zeros(()), torch.Generator(), {})
    method.finish(survey, classifier, state)
    with torch.no_grad():
        maps = classifier.backbone.net[0][0](torch.cat(list(survey.images())))
    torch.testing.assert_close(norm.running_mean, maps.mean(dim=(0, 2, 3)), rtol=0, atol=0.02)  # of images drawn
    assert classifier.training


def test_heads_have_a_rate_of_their_own() -> None:
    method = MVDG(MVDG.Config(head_rate=10.0))
    assert method.rates(small_classifier(method)) == {"head.": 10.0}


@pytest.mark.parametrize("setting", [{"trajectories": 0}, {"views": 0}, {"scale": 0.0}])
def test_settings_that_do_not_fit_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(OpenDGError, match="mvdg"):
        make_method("mvdg", setting)
