from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from opendg.episodes import Pool, Task
from opendg.seeds import generator
from opendg.training.feed import Batch, Feed
from tests.training.parts import feed_like, make_parts

STEPS = (0, 1, 2, 62, 63, 64, 65, 130)  # about the edges of chunks of 64


@pytest.fixture
def whole(tree: Path) -> Iterator[Feed]:
    feed = make_parts(tree, batch=3).feed
    yield feed
    feed.close()


def batch_at(feed: Feed, step: int) -> Batch:
    feed.prepare(step)
    return Batch(*(tensor.clone() for tensor in feed.batch(torch.tensor(step))))


def batches(feed: Feed, steps: tuple[int, ...] = STEPS) -> dict[int, Batch]:
    found = {step: batch_at(feed, step) for step in steps}
    feed.close()
    return found


def same(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_resumed_feed_draws_the_same(whole: Feed) -> None:
    first = batches(feed_like(whole))
    for start in (1, 63, 64, 130):
        later = batches(feed_like(whole), tuple(step for step in STEPS if step >= start))
        assert all(same(batch, first[step]) for step, batch in later.items())


def test_steps_and_seeds_differ(whole: Feed) -> None:
    first = batches(feed_like(whole))
    assert len({tuple(batch.positions.tolist()) for batch in first.values()}) == len(STEPS)
    assert len({batch.plan.numpy().tobytes() for batch in first.values()}) == len(STEPS)
    other = feed_like(whole)
    other.seed = 1
    assert not same(batches(other)[0], first[0])


def test_the_length_of_a_chunk_makes_no_difference(whole: Feed) -> None:
    first, other = batches(feed_like(whole)), batches(feed_like(whole, chunk=5))
    assert all(same(first[step], other[step]) for step in STEPS)


def test_images_from_the_map_are_those_of_the_device(whole: Feed) -> None:
    """What does not fit is gathered ahead by a thread: the same batches."""
    mapped = feed_like(whole, resident=False)
    assert mapped.images is None
    first, other = batches(feed_like(whole)), batches(mapped)
    assert all(same(first[step], other[step]) for step in STEPS)


def test_rows_have_their_own_images_labels_and_domains(whole: Feed) -> None:
    batch = batch_at(feed_like(whole), 7)
    rows = whole.rows[batch.positions.numpy()]
    assert torch.equal(batch.images, whole.store.tensor(rows))
    assert torch.equal(batch.labels, whole.labels[batch.positions])
    assert torch.equal(batch.domains, whole.domains[batch.positions])
    assert len(batch.positions) == sum(whole.sizes) == 6 * 3


@pytest.mark.parametrize("world", [2, 3, 4])
def test_the_shares_of_the_processes_make_the_whole(whole: Feed, world: int) -> None:
    """Task by task, row by row, with the same augmentation; also where a task does not divide evenly."""
    alone = feed_like(whole)
    ranks = [feed_like(whole, rank=rank, world=world) for rank in range(world)]
    for step in STEPS:
        expected, shares = batch_at(alone, step), [batch_at(feed, step) for feed in ranks]
        start = 0
        for task, size in enumerate(alone.sizes):
            parts = []
            for feed, share in zip(ranks, shares, strict=True):
                begin = sum(feed.sizes[:task])
                parts.append([tensor[begin : begin + feed.sizes[task]] for tensor in share])
            for tensor, pieces in zip(expected, zip(*parts, strict=True), strict=True):
                assert torch.equal(torch.cat(pieces), tensor[start : start + size])
            start += size
    for feed in (alone, *ranks):
        feed.close()


def test_tasks_may_differ_in_size_and_follow_the_step(whole: Feed) -> None:
    """Shares keep to their own tasks, whose sizes say where the next one begins."""

    class Growing(type(whole.method)):  # type: ignore[misc]
        def tasks(self, pool: Pool, batch: int, step: int, random: np.random.Generator) -> list[Task]:
            classes = (step % 2,)
            return [Task((domain,), classes, size) for domain, size in enumerate((1, 4, 7))]

    feed = feed_like(whole)
    feed.method = Growing(whole.method.config)
    alone, ranks = feed_like(feed), [feed_like(feed, rank=rank, world=2) for rank in range(2)]
    assert alone.sizes == (1, 4, 7)
    assert [feed.sizes for feed in ranks] == [(0, 2, 3), (1, 2, 4)]
    for step in (0, 1):
        assert set(batch_at(alone, step).labels.tolist()) == {step}
        assert batch_at(alone, step).domains.tolist() == [0] + [1] * 4 + [2] * 7
        assert [batch_at(feed, step).domains.tolist() for feed in ranks] == [[1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 2, 2]]


def test_the_augmentation_has_chance_of_its_own(whole: Feed) -> None:
    """What it draws does not depend on what the episodes drew."""
    expected = whole.augment.plan(generator(whole.seed, "augment", 3), sum(whole.sizes))
    assert np.array_equal(batch_at(whole, 3).plan.numpy(), expected)


def test_a_feed_that_is_closed_gathers_no_more(whole: Feed) -> None:
    whole.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        whole.worker.submit(print)


def test_what_is_gathered_ahead_keeps_within_its_bytes(whole: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    first = batches(feed_like(whole))
    one = sum(whole.sizes) * 32 * 32 * 3
    for room, chunk in ((3 * one, 3), (one // 2, 1)):
        monkeypatch.setattr("opendg.training.feed.GATHERED", room)
        short = feed_like(whole, resident=False)
        assert short.gathered is not None
        assert short.chunk == len(short.gathered) == chunk
        assert all(same(batch, first[step]) for step, batch in batches(short).items())
    assert feed_like(whole).chunk == 64, "images on the device are not gathered"


def test_chunks_end_where_a_method_looks_around(whole: Feed) -> None:
    """No draw is older than the last `every`: it may change what `tasks` asks for."""

    class Curious(type(whole.method)):  # type: ignore[misc]
        interval = 30

    feed = feed_like(whole)
    feed.method = Curious(whole.method.config)
    again = feed_like(feed)
    assert again.chunk == 30
    assert feed_like(feed, chunk=20).chunk == 15
    again.prepare(0)
    assert not again.ahead
    assert np.array_equal(again.table[0].numpy(), batch_at(feed_like(whole), 0).positions.numpy())
