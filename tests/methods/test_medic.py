"""MEDIC against Algorithm 1 by hand, finite differences, and the Taylor identity of Eq. 5."""

from __future__ import annotations

import copy
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from opendg.episodes import Episode, Pool, Task, class_groups
from opendg.methods.medic import MEDIC, MLDG
from opendg.methods.registry import make_method
from opendg.models.classifier import Classifier
from small import small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import assert_same, flat, full_pool, gradient_by_hand, loss_by_hand, move_by_hand

SIX = (2, 2, 2, 2, 2, 2)


@pytest.mark.parametrize("batchnorm", ["per-task", "merged"])
def test_first_order_is_algorithm_1(batchnorm: str) -> None:
    method = MEDIC(MEDIC.Config(alpha=0.3, beta=0.7, batchnorm=batchnorm))
    classifier, episode = small_classifier(method), small_episode(SIX)
    network = copy.deepcopy(classifier)
    f1_i, f1_j, g2, f2, g1_a, g1_b = episode.each()
    inner = gradient_by_hand(network, sum(loss_by_hand(network, task) for task in (f1_i, f1_j, g2)))
    move_by_hand(network, inner, 0.3)
    outer = gradient_by_hand(network, sum(loss_by_hand(network, task) for task in (f2, g1_a, g1_b)))
    (update,) = method.step(classifier, episode, small_state())
    assert_same(update.gradients, {name: inner[name] + 0.7 * outer[name] for name in inner})


@pytest.mark.parametrize("name", ["medic", "mldg", "classwise"])
@pytest.mark.parametrize("ova", [True, False])
def test_without_the_inner_step_it_is_erm_on_the_same_images(name: str, ova: bool) -> None:
    episode, erm = small_episode(SIX), make_method("erm", {"ova": ova})
    (plain,) = erm.step(small_classifier(erm), episode, small_state())
    for alpha in (0.0, 0.3):
        method = make_method(name, {"alpha": alpha, "ova": ova})
        (update,) = method.step(small_classifier(method), episode, small_state())
        assert torch.allclose(flat(update), flat(plain), rtol=1e-9, atol=1e-12) == (alpha == 0)


def objective(method: MEDIC, classifier: Classifier, episode: Episode) -> Tensor:
    """L1(theta) + beta L2(theta - alpha grad L1(theta)), with autograd's own gradient inside."""
    weights = classifier.weights()
    train = method.loss(classifier, weights, episode.tasks(0, 3))
    gradient = torch.autograd.grad(train, list(weights.values()))
    fast = {n: w.detach() - method.config.alpha * g for (n, w), g in zip(weights.items(), gradient, strict=True)}
    return (train + method.config.beta * method.loss(classifier, fast, episode.tasks(3, 6))).detach()


@pytest.mark.parametrize("batchnorm", [False, True])
def test_second_order_is_the_gradient_of_the_objective(batchnorm: bool) -> None:
    method = MEDIC(MEDIC.Config(order=2, alpha=0.3, beta=0.7))
    classifier, episode = small_classifier(method, batchnorm=batchnorm), small_episode(SIX)
    (update,) = method.step(classifier, episode, small_state())
    torch.manual_seed(3)
    for name, parameter in classifier.named_parameters():
        direction = torch.randn_like(parameter)
        step = 1e-5
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
            values.append(objective(method, classifier, episode))
            with torch.no_grad():
                parameter -= sign * step * direction
        slope = (values[0] - values[1]) / (2 * step)
        torch.testing.assert_close((update.gradients[name] * direction).sum(), slope, rtol=2e-5, atol=1e-7)


def test_orders_differ_only_by_the_inner_curvature() -> None:
    episode = small_episode(SIX)
    found = {}
    for order in (1, 2):
        method = MEDIC(MEDIC.Config(order=order, alpha=0.3))
        (update,) = method.step(small_classifier(method), episode, small_state())
        found[order] = flat(update)
    assert not torch.allclose(found[1], found[2], rtol=1e-3)


def test_taylor_identity_of_eq_5() -> None:
    """The objective is L1 + beta L2 - alpha beta g1 . g2 up to a remainder that falls with alpha squared."""
    episode = small_episode(SIX)
    remainders = []
    for alpha in (1e-2, 5e-3, 2.5e-3):
        method = MEDIC(MEDIC.Config(alpha=alpha, beta=0.7))
        classifier = small_classifier(method)
        weights = classifier.weights()
        losses = [method.loss(classifier, weights, episode.tasks(*side)) for side in ((0, 3), (3, 6))]
        g1, g2 = (torch.autograd.grad(loss, list(weights.values())) for loss in losses)
        dot = sum((a * b).sum() for a, b in zip(g1, g2, strict=True))
        expansion = losses[0] + 0.7 * losses[1] - alpha * 0.7 * dot
        remainders.append(float((objective(method, classifier, episode) - expansion).detach()))
    assert remainders[0] != 0
    assert remainders[0] / remainders[1] == pytest.approx(4, rel=0.1)
    assert remainders[1] / remainders[2] == pytest.approx(4, rel=0.1)


def test_merged_and_per_task_statistics_differ_with_batchnorm() -> None:
    found = {}
    for mode in ("merged", "per-task", "frozen"):
        method = MEDIC(MEDIC.Config(batchnorm=mode))
        classifier = small_classifier(method, batchnorm=True)
        before = classifier.backbone.net[0][1].running_mean.clone()
        (update,) = method.step(classifier, small_episode(SIX), small_state())
        found[mode] = update.gradients["backbone.net.0.0.weight"]
        moved = not torch.equal(before, classifier.backbone.net[0][1].running_mean)
        assert moved == (mode != "frozen")
    assert not torch.allclose(found["merged"], found["per-task"])
    assert not torch.allclose(found["merged"], found["frozen"])


def test_both_passes_move_the_running_statistics() -> None:
    method = MEDIC()
    classifier = small_classifier(method, batchnorm=True)
    list(method.step(classifier, small_episode(SIX), small_state()))
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 2


@pytest.mark.parametrize("domains", [2, 3, 5])
@pytest.mark.parametrize("classes", [2, 3, 6, 7, 40, 65])
def test_tasks_follow_the_notes(domains: int, classes: int) -> None:
    pool, method = full_pool(domains, classes), MEDIC()
    groups = class_groups(classes)
    for step in range(6):
        f1, f1_too, g2, f2, g1, g1_too = method.tasks(pool, 8, step, np.random.default_rng(step))
        held = (step % domains,)
        assert g2.domains == g1.domains == g1_too.domains == held
        assert held[0] not in {*f1.domains, *f1_too.domains, *f2.domains}
        assert set(f2.domains) == {*f1.domains, *f1_too.domains}
        assert len(set(f2.domains)) == min(2, domains - 1)
        assert f1.classes == f1_too.classes == g1.classes == g1_too.classes
        assert f2.classes == g2.classes
        assert not set(f1.classes) & set(f2.classes)
        assert sorted(f1.classes + f2.classes) == list(range(classes))
        assert sum(set(group) <= set(f2.classes) for group in groups) == -(-len(groups) // 3)
        assert [t.size for t in (f1, f1_too, g2, f2, g1, g1_too)] == [8] * 6


def test_of_more_than_three_sources_any_two_others_stand_against_the_held_out_one() -> None:
    pool, pairs = full_pool(5, 6), set()
    for step in range(0, 300, 5):
        first, second, *_ = MEDIC().tasks(pool, 8, step, np.random.default_rng(step))
        pairs.add((*first.domains, *second.domains))
    assert pairs == set(permutations(range(1, 5), 2))


def test_domain_order_random_visits_all_in_no_fixed_order() -> None:
    method, pool = MEDIC(MEDIC.Config(domain_order="random")), full_pool(3, 6)
    held = [method.tasks(pool, 8, step, np.random.default_rng(step))[2].domains[0] for step in range(60)]
    assert set(held) == {0, 1, 2}
    assert held != [step % 3 for step in range(60)]


def test_c2_is_redrawn_while_a_task_has_no_image() -> None:
    """Domain 0 lacks half of the classes: where both of C2 are among them, it has no image for F2 or G2."""
    filled = [(d, c) for d in range(3) for c in range(6) if d or c > 2]
    domain, label = (np.repeat(column, 4) for column in np.array(filled).T)
    pool = Pool(domain, label, 3, 6)
    for step in range(60):
        random = np.random.default_rng(step)
        for task in MEDIC().tasks(pool, 4, step, random):
            assert pool.can_draw(task)
            assert set(label[pool.draw(task, random)].tolist()) <= set(task.classes)


def test_a_domain_of_one_class_still_fills_its_tasks() -> None:
    domain = np.array([0, 0, 1, 1, 2] * 4)
    label = np.array([0, 1, 0, 1, 0] * 4)  # domain 2 has class 0 alone, so no split of two classes can serve G1 and G2
    pool = Pool(domain, label, 3, 2)
    for step in range(20):
        random = np.random.default_rng(step)
        for task in MEDIC().tasks(pool, 4, step, random):
            assert len(pool.draw(task, random)) == 4


def test_the_halves_of_the_ablation() -> None:
    pool, random = full_pool(3, 6), np.random.default_rng(0)
    train, test = MLDG().tasks(pool, 8, 1, random)
    everything = tuple(range(6))
    assert (sorted(train.domains), test.domains) == ([0, 2], (1,))
    assert train.classes == test.classes == everything
    assert train.size == test.size == 24
    train, test = make_method("medic", {"domain_split": "false"}).tasks(pool, 8, 1, random)
    assert train.domains == test.domains == (0, 1, 2)
    assert not set(train.classes) & set(test.classes)
    assert len(test.classes) == 2


def test_mldg_is_its_formula() -> None:
    method = MLDG(MLDG.Config(order=1, alpha=0.2))
    classifier, episode = small_classifier(method), small_episode((6, 6))
    network = copy.deepcopy(classifier)
    train, test = episode.each()

    def three_means(task: Episode) -> Tensor:
        return 3 * nn.functional.cross_entropy(network(task.images).logits, task.labels)

    inner = gradient_by_hand(network, three_means(train))
    move_by_hand(network, inner, 0.2)
    outer = gradient_by_hand(network, three_means(test))
    (update,) = method.step(classifier, episode, small_state())
    assert_same(update.gradients, {name: inner[name] + outer[name] for name in inner})


def test_a_task_is_shared_evenly_by_its_domains() -> None:
    pool = full_pool(3, 6)
    rows = pool.draw(Task((0, 2), (1, 2), 8), np.random.default_rng(0))
    domain, label = np.divmod(rows // 5, 6)
    assert sorted(domain.tolist()) == [0] * 4 + [2] * 4
    assert set(label.tolist()) <= {1, 2}
