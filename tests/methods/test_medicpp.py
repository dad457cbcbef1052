"""MEDIC++ against plain SGD steps by hand; its tasks; the class split that keeps confused classes apart."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from opendg.episodes import Pool, class_groups
from opendg.errors import OpenDGError
from opendg.methods.medicpp import MEDICpp, deal_in_order, walk
from opendg.methods.registry import make_method
from small import small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import (
    assert_same,
    flat,
    full_pool,
    gradient_by_hand,
    loss_by_hand,
    move_by_hand,
    real_survey,
)

NINE = (2,) * 9


@pytest.mark.parametrize("ova", [True, False])
def test_the_outer_gradient_is_the_way_of_three_sgd_steps(ova: bool) -> None:
    alpha = 0.2
    method = MEDICpp(MEDICpp.Config(alpha=alpha, ova=ova))
    classifier, episode = small_classifier(method, batchnorm=True), small_episode(NINE)
    network = copy.deepcopy(classifier)
    start = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    for step in range(3):
        together = episode.tasks(3 * step, 3 * step + 3)  # one batch, so BatchNorm sees three tasks
        move_by_hand(network, gradient_by_hand(network, loss_by_hand(network, together)), alpha)
    (update,) = method.step(classifier, episode, small_state())
    way = {name: (start[name] - parameter.detach()) / alpha for name, parameter in network.named_parameters()}
    assert_same(update.gradients, way)
    assert list(update.losses) == ["step-1", "step-2", "step-3"]
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 3


def test_inner_steps_change_the_gradient() -> None:
    found = {}
    for alpha in (0.0, 0.2):
        method = MEDICpp(MEDICpp.Config(alpha=alpha))
        (update,) = method.step(small_classifier(method), small_episode(NINE), small_state())
        found[alpha] = flat(update)
    erm = make_method("erm", {"ova": True})
    (plain,) = erm.step(small_classifier(erm), small_episode(NINE), small_state())
    torch.testing.assert_close(found[0.0], flat(plain))
    assert not torch.allclose(found[0.2], found[0.0], rtol=1e-3)


@pytest.mark.parametrize("domains", [2, 3, 4, 6])
@pytest.mark.parametrize("classes", [2, 3, 6, 40])
def test_tasks_are_every_domain_part_with_every_class_part(domains: int, classes: int) -> None:
    pool, method = full_pool(domains, classes), MEDICpp()
    groups = class_groups(classes)
    d, c = min(3, domains), min(3, len(groups))
    for step in range(5):
        random = np.random.default_rng(step)
        tasks = method.tasks(pool, 4, step, random)
        assert len(tasks) == d * c
        assert {task.size for task in tasks} == {4}
        parts = {task.domains for task in tasks}
        assert sorted(x for part in parts for x in part) == list(range(domains))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        for part in parts:
            dealt = [task.classes for task in tasks if task.domains == part]
            assert sorted(x for one in dealt for x in one) == list(range(classes))
            sizes = [sum(set(group) <= set(one) for group in groups) for one in dealt]
            assert sum(sizes) == len(groups)
            assert max(sizes) - min(sizes) <= 1
        assert all(len(pool.draw(task, random)) == 4 for task in tasks)


def test_classes_are_dealt_anew_for_each_domain_part_and_tasks_are_shuffled() -> None:
    pool, method = full_pool(3, 6), MEDICpp()
    splits, firsts = set(), Counter[tuple[int, ...]]()
    for step in range(60):
        tasks = method.tasks(pool, 4, step, np.random.default_rng(step))
        splits.add(len({frozenset(t.classes for t in tasks if t.domains == (d,)) for d in range(3)}))
        firsts[tasks[0].domains] += 1
    assert 3 in splits  # all three domains dealt differently
    assert set(firsts) == {(0,), (1,), (2,)}


def test_any_two_domains_may_share_a_part_and_a_step_mixes_parts() -> None:
    """Four sources in three parts: one part has two domains."""
    pool, method, shared, mixed = full_pool(4, 6), MEDICpp(), set(), 0
    for step in range(60):
        tasks = method.tasks(pool, 4, step, np.random.default_rng(step))
        shared |= {tuple(sorted(task.domains)) for task in tasks if len(task.domains) > 1}
        mixed += len({task.domains for task in tasks[:3]}) > 1
    assert shared == set(combinations(range(4), 2))
    assert mixed > 40


@pytest.mark.parametrize(
    ("tasks", "steps", "expected"),
    [(9, 3, [3, 3, 3]), (6, 3, [2, 2, 2]), (4, 3, [1, 1, 2]), (2, 3, [1, 1]), (9, 1, [9])],
)
def test_tasks_are_dealt_evenly_into_steps(tasks: int, steps: int, expected: list[int]) -> None:
    parts = deal_in_order(small_episode((2,) * tasks), steps)
    assert [len(part.sizes) for part in parts] == expected
    assert torch.cat([part.positions for part in parts]).tolist() == list(range(2 * tasks))


def test_class_parts_are_redrawn_while_a_task_has_no_image() -> None:
    """Domain 0 lacks classes 0 and 1: dealt into one part, they would leave a task without images."""
    filled = [(d, c) for d in range(3) for c in range(6) if d or c > 1]
    domain, label = (np.repeat(column, 4) for column in np.array(filled).T)
    pool, method = Pool(domain, label, 3, 6), MEDICpp()
    for step in range(60):
        random = np.random.default_rng(step)
        for task in method.tasks(pool, 4, step, random):
            assert pool.can_draw(task)
            assert set(label[pool.draw(task, random)].tolist()) <= set(task.classes)


def test_a_domain_of_one_class_still_fills_its_tasks() -> None:
    domain, label = np.array([0] * 6 + [1] * 6 + [2] * 2), np.array([0, 1, 2] * 4 + [0, 0])
    pool = Pool(domain, label, 3, 3)
    for step in range(10):
        random = np.random.default_rng(step)
        tasks = MEDICpp().tasks(pool, 4, step, random)
        assert len(tasks) == 9
        assert all(len(pool.draw(task, random)) == 4 for task in tasks)


def test_the_walk_goes_on_in_proportion_to_confusion() -> None:
    transition = np.array([[0, 3, 1, 0], [1, 0, 1, 2], [0, 0, 0, 1], [1, 1, 1, 0.0]])
    random = np.random.default_rng(0)
    paths = [walk(transition, random) for _ in range(4000)]
    assert all(sorted(path) == [0, 1, 2, 3] for path in paths)
    assert {path[0] for path in paths} == {0, 1, 2, 3}
    after = Counter(path[1] for path in paths if path[0] == 0)
    assert after[3] == 0
    assert after[1] / (after[1] + after[2]) == pytest.approx(0.75, abs=0.05)
    assert all(b == 3 for path in paths if 2 in path[:2] and 3 not in path[:2] for a, b in pairwise(path) if a == 2)


def together(method: MEDICpp, pairs: list[tuple[int, int]], classes: int) -> float:
    """How often two classes of a pair share a task."""
    pool = full_pool(3, classes)
    shared = [
        set(pair) <= set(task.classes)
        for step in range(300)
        for task in method.tasks(pool, 4, step, np.random.default_rng(step))
        for pair in pairs
    ]
    return 3 * float(np.mean(shared))  # a pair meets in at most one task of three


def test_hard_selection_keeps_confused_classes_apart() -> None:
    pairs = [(0, 1), (2, 3), (4, 5)]
    confusion = np.full((3, 6, 6), 0.01)
    for a, b in pairs:
        confusion[:, a, b] = confusion[:, b, a] = 0.4
    hard = MEDICpp(MEDICpp.Config(select="hard"))
    hard.confusion = confusion
    at_random = together(MEDICpp(), pairs, 6)
    assert at_random == pytest.approx(0.2, abs=0.05)  # the other five classes are as likely as each other
    assert together(hard, pairs, 6) < at_random / 3


def test_the_walk_goes_from_a_class_to_those_that_it_is_taken_for() -> None:
    """Images of class 0 are taken for class 1, those of class 1 for class 2."""
    hard, random = MEDICpp(MEDICpp.Config(select="hard")), np.random.default_rng(0)
    hard.confusion = np.full((1, 3, 3), 1e-9)
    hard.confusion[0, 0, 1] = hard.confusion[0, 1, 2] = 0.9
    orders = [hard._order([(0,), (1,), (2,)], (0,), random) for _ in range(40)]
    assert {tuple(order) for order in orders if order[0] < 2} == {(0, 1, 2), (1, 2, 0)}


def test_hard_selection_looks_at_the_domains_of_the_part() -> None:
    """Classes that only domain 0 confuses are kept apart there, and not in domain 2."""
    confusion = np.full((3, 6, 6), 0.01)
    confusion[0, 0, 1] = confusion[0, 1, 0] = 0.9
    hard, pool = MEDICpp(MEDICpp.Config(select="hard")), full_pool(3, 6)
    hard.confusion = confusion
    met = Counter[int]()
    for step in range(400):
        for task in hard.tasks(pool, 4, step, np.random.default_rng(step)):
            met[task.domains[0]] += {0, 1} <= set(task.classes)
    assert met[0] < 0.4 * met[2]


def test_a_look_is_the_mean_softmax_of_each_class(tmp_path: Path) -> None:
    method = MEDICpp(MEDICpp.Config(select="hard", look=40))
    assert method.interval == 10
    classifier = small_classifier(method, batchnorm=True)
    survey = real_survey(tmp_path, classifier, gaps=[(1, 2)])
    state = small_state(method.state(classifier, survey.pool))
    method.every(survey, classifier, state)
    method.recall(state)
    assert classifier.training
    images, label = torch.cat(list(survey.images())).double(), survey.labels[survey.rows["train"]]
    domain = survey.index.domain[survey.rows["train"]]
    with torch.no_grad():
        probabilities = classifier.eval()(images).logits.softmax(dim=1)
    for d in range(3):
        for c in range(4):
            here = torch.from_numpy((domain == d) & (label == c))
            expected = probabilities[here].mean(dim=0) if here.any() else torch.full((4,), 0.25).double()
            found = torch.from_numpy(method.confusion[d, c])
            torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)  # images are drawn, not all of them seen


def test_a_look_without_hard_selection_is_not_asked_for() -> None:
    method = MEDICpp()
    assert method.interval is None
    assert method.state(small_classifier(method), full_pool(3, 4)) == {}


@pytest.mark.parametrize("setting", [{"select": "soft"}, {"steps": 0}, {"task_c": 0}, {"shared": True, "ova": False}])
def test_settings_that_do_not_fit_are_refused(setting: dict[str, object]) -> None:
    with pytest.raises(OpenDGError, match="medic"):
        make_method("medic++", setting)
