from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from opendg.episodes import Episode, Pool, Task, class_groups, split_classes

Table = list[list[int]]


def make_pool(table: Table) -> Pool:
    """A pool with table[d][c] images of domain d and class c."""
    counts = np.array(table)
    domain, label = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape))
    return Pool(domain, label, *counts.shape)


@st.composite
def pools_and_tasks(draw: st.DrawFn) -> tuple[Table, Task]:
    domains, classes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 5), min_size=classes, max_size=classes).filter(any)
    table = draw(st.lists(row, min_size=domains, max_size=domains))
    some = st.lists(st.sampled_from(range(domains)), min_size=1, unique=True)
    which = st.lists(st.sampled_from(range(classes)), min_size=1, unique=True)
    return table, Task(tuple(draw(some)), tuple(draw(which)), draw(st.integers(1, 30)))


@given(case=pools_and_tasks(), seed=st.integers(0, 10**6))
def test_a_task_gets_its_size_shared_evenly(case: tuple[Table, Task], seed: int) -> None:
    table, task = case
    assume(task.size >= len(task.domains))
    rows = make_pool(table).draw(task, np.random.default_rng(seed))
    assert len(rows) == task.size
    counts = np.array(table)
    domain = np.repeat(np.indices(counts.shape)[0].ravel(), counts.ravel())
    shares = np.bincount(domain[rows], minlength=len(table))
    assert set(np.flatnonzero(shares)) == set(task.domains)
    assert shares[list(task.domains)].max() - shares[list(task.domains)].min() <= 1


@given(case=pools_and_tasks(), seed=st.integers(0, 10**6))
def test_classes_are_those_of_the_task_where_the_domain_has_them(case: tuple[Table, Task], seed: int) -> None:
    table, task = case
    pool = make_pool(table)
    counts = np.array(table)
    domain, label = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape))
    rows = pool.draw(task, np.random.default_rng(seed))
    for d in task.domains:
        filled = {c for c in task.classes if counts[d, c]}
        allowed = filled or set(np.flatnonzero(counts[d]).tolist())
        assert set(label[rows[domain[rows] == d]].tolist()) <= allowed
    assert pool.can_draw(task) == all(any(counts[d, c] for c in task.classes) for d in task.domains)


@given(case=pools_and_tasks(), seed=st.integers(0, 10**6))
def test_an_image_comes_twice_only_when_its_cell_is_used_up(case: tuple[Table, Task], seed: int) -> None:
    table, task = case
    counts = np.array(table)
    domain, label = (np.repeat(axis.ravel(), counts.ravel()) for axis in np.indices(counts.shape))
    rows = make_pool(table).draw(task, np.random.default_rng(seed))
    for d, c in {(int(domain[row]), int(label[row])) for row in rows}:
        cell = rows[(domain[rows] == d) & (label[rows] == c)]
        if len(cell) <= counts[d, c]:
            assert len(set(cell.tolist())) == len(cell)


def test_every_domain_of_a_task_must_have_one_of_its_classes() -> None:
    pool = make_pool([[3, 0, 0], [0, 3, 3]])
    assert [pool.can_draw(Task((0, 1), classes, 4)) for classes in ((0,), (0, 1), (1, 2))] == [False, True, False]


def test_the_same_generator_draws_the_same() -> None:
    pool, task = make_pool([[5, 5, 5]] * 3), Task((0, 1, 2), (0, 1, 2), 10)
    first, second = (pool.draw(task, np.random.default_rng(4)) for _ in range(2))
    assert first.tolist() == second.tolist()


def test_classes_are_balanced_whatever_the_counts() -> None:
    """A class at random, then an image of it: a rare class comes as often as a common one."""
    pool, random = make_pool([[400, 40, 4]]), np.random.default_rng(0)
    label = np.repeat([0, 1, 2], [400, 40, 4])
    drawn = np.concatenate([label[pool.draw(Task((0,), (0, 1, 2), 8), random)] for _ in range(1500)])
    expected = len(drawn) / 3
    chi_squared = ((np.bincount(drawn) - expected) ** 2 / expected).sum()
    assert chi_squared < 13.8  # two degrees of freedom: one chance in a thousand


def test_images_of_a_class_are_balanced() -> None:
    pool, random = make_pool([[6, 6]]), np.random.default_rng(1)
    drawn = np.bincount(np.concatenate([pool.draw(Task((0,), (0, 1), 3), random) for _ in range(4000)]))
    assert ((drawn - 1000) ** 2 / 1000).sum() < 31.3  # eleven degrees of freedom: one chance in a thousand


def test_the_odd_image_goes_to_each_domain_in_turn() -> None:
    pool, random = make_pool([[9, 9]] * 2), np.random.default_rng(0)
    first = [int((pool.draw(Task((0, 1), (0, 1), 3), random) < 18).sum()) for _ in range(400)]
    assert set(first) == {1, 2}
    assert 1.4 < np.mean(first) < 1.6


def test_a_task_smaller_than_its_domains_is_drawn_from_some_of_them() -> None:
    pool = make_pool([[3, 3]] * 3)
    assert len(pool.draw(Task((0, 1, 2), (0, 1), 2), np.random.default_rng(0))) == 2


@pytest.mark.parametrize(("classes", "groups"), [(2, 2), (6, 6), (10, 10), (11, 6), (20, 10), (21, 7), (65, 10)])
def test_classes_are_grouped_as_the_notes_say(classes: int, groups: int) -> None:
    found = class_groups(classes)
    assert [c for group in found for c in group] == list(range(classes))
    assert len(found) == groups
    assert {len(group) for group in found[:-1]} <= {(classes - 1) // 10 + 1}


@given(classes=st.integers(2, 400), seed=st.integers(0, 10**6))
def test_class_halves_are_disjoint_and_whole(classes: int, seed: int) -> None:
    first, second = split_classes(classes, np.random.default_rng(seed))
    assert sorted(first + second) == list(range(classes))
    assert first
    assert second


def test_every_class_is_held_out_at_times() -> None:
    random = np.random.default_rng(0)
    held = np.bincount([c for _ in range(600) for c in split_classes(6, random)[1]], minlength=6)
    assert held.sum() == 1200
    assert held.min() > 150


def test_an_episode_gives_its_tasks() -> None:
    n = torch.arange(9)
    episode = Episode(n.float().view(9, 1, 1, 1).expand(9, 3, 2, 2), n, n % 3, 100 + n, sizes=(2, 3, 4), batch=2)
    middle = episode.tasks(1, 2)
    assert middle.labels.tolist() == [2, 3, 4]
    assert middle.domains.tolist() == [2, 0, 1]
    assert middle.positions.tolist() == [102, 103, 104]
    assert middle.images[:, 0, 0, 0].tolist() == [2, 3, 4]
    assert (middle.sizes, middle.batch) == ((3,), 2)
    assert [part.labels.tolist() for part in episode.each()] == [[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    assert episode.tasks(1, 3).sizes == (3, 4)
