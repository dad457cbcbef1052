from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.methods.base import Update
from opendg.methods.erm import ERM
from opendg.runs.checkpoint import Checkpoint
from opendg.training.loop import Loop, check_finite
from tests.training.parts import advance, make_parts


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def state(loop: Loop) -> dict[str, Tensor]:
    return copies(loop.save())


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("share", [0.0, 0.25])
@pytest.mark.parametrize(("over", "decay"), [(0.01, 1 / 2), (0.5, 2 / 3), (1, 5 / 6)])
def test_averaged_weights_follow_the_formula(tree: Path, over: float, decay: float, share: float) -> None:
    """w~ = sum_i d^(t - i) w_i / sum_i d^(t - i), i = 1 ... t; then (1 - s) w~ + s w_0; buffers too."""
    options = {"average_over": over, "average_start": share, "iterations": 6, "lr": 0.1}
    loop = make_parts(tree, "erm", backbone="test_resnet", weights="none", **options)
    start = {name: value.double() for name, value in copies(loop.finished_weights()).items()}
    passed = [copies(advance(loop, 1).finished_weights()) for _ in range(6)]
    counts = torch.tensor([decay ** (6 - i) for i in range(1, 7)], dtype=torch.float64)
    averaged = loop.finished_weights(averaged=True)
    assert averaged.keys() == passed[-1].keys() == loop.classifier.state_dict().keys()
    for name, value in averaged.items():
        expected = passed[-1][name].double()
        if value.is_floating_point():
            mean = torch.einsum("i,i...->...", counts / counts.sum(), torch.stack([w[name].double() for w in passed]))
            expected = (1 - share) * mean + share * start[name]
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n} {m}")
    statistics = [name for name in averaged if "running_" in name]
    assert statistics
    assert not any(torch.equal(averaged[name], passed[-1][name]) for name in statistics)


def test_nothing_is_averaged_unless_asked(tree: Path) -> None:
    assert make_parts(tree, "erm").averaged == {}


def test_losses_are_means_of_the_iterations_since_last_asked(tree: Path) -> None:
    loop, single = make_parts(tree, iterations=9), make_parts(tree, iterations=9)
    each = [advance(single, 1).losses(1) for _ in range(9)]
    first = advance(loop, 4).losses(4)
    second = advance(loop, 5).losses(5)
    for name in ("meta-train", "meta-test"):
        assert first[name] == pytest.approx(sum(losses[name] for losses in each[:4]) / 4, rel=1e-5)
        assert second[name] == pytest.approx(sum(losses[name] for losses in each[4:]) / 5, rel=1e-5)


def test_a_loss_that_is_not_finite_is_said(tree: Path) -> None:
    loop = advance(make_parts(tree, "erm", lr=1e30), 4)
    with pytest.raises(OpenDGError, match="The loss 'ce' is no longer finite at step 4: try a smaller --lr"):
        check_finite(loop.losses(4), 4)


@pytest.mark.parametrize("method", ["medic", "erm", "mldg"])
def test_a_loop_goes_on_from_its_tensors_bit_for_bit(tree: Path, method: str) -> None:
    """All that moves is in `save`: weights, buffers, moments, averages, counters, generators, sums of losses."""
    options = {"backbone": "test_resnet", "weights": "none", "average_over": 0.5, "iterations": 8}
    straight = advance(make_parts(tree, method, **options), 2)
    saved = state(straight)
    finished = state(advance(straight, 3))
    torch.manual_seed(99)  # whatever else has drawn in the meantime
    other = make_parts(tree, method, **options)
    other.resume(Checkpoint(2, saved, {}))
    assert_same(state(other), saved)
    assert_same(state(advance(other, 3)), finished)


def test_the_generators_go_on_too(tree: Path) -> None:
    loop = make_parts(tree, "erm")
    saved = state(loop)
    drawn = [torch.rand(3, generator=random) for random in loop.generators()]
    loop.resume(Checkpoint(0, saved, {}))
    assert [torch.rand(3, generator=random).tolist() for random in loop.generators()] == [d.tolist() for d in drawn]


@pytest.mark.parametrize("method", ["mmld", "cirl"])
def test_loops_that_take_turns_draw_dropout_as_each_alone(tree: Path, method: str) -> None:
    """Nor do they touch what the program around them draws."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    alone = [state(advance(make_parts(tree, method, seed=seed), 4)) for seed in (1, 2)]
    loops = [make_parts(tree, method, seed=seed) for seed in (1, 2)]
    for _ in range(4):
        for loop in loops:
            advance(loop, 1)
    for loop, wanted in zip(loops, alone, strict=True):
        assert_same(state(loop), wanted)
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_of_another_kind_of_device_is_refused(tree: Path) -> None:
    loop = make_parts(tree, "erm")
    saved = state(loop) | {"random.1": torch.zeros(16, dtype=torch.uint8)}  # as a generator of CUDA gives it
    with pytest.raises(OpenDGError, match="started on another kind of device than cpu: resume it there, with --device"):
        loop.resume(Checkpoint(0, saved, {}))


def test_a_checkpoint_of_another_network_is_refused(tree: Path) -> None:
    loop, other = make_parts(tree, "erm"), make_parts(tree, "erm", unknown=["dot", "ring"])
    with pytest.raises(OpenDGError, match="does not belong to this run: 'weights.head.linear.weight' differs"):
        loop.resume(Checkpoint(0, state(other), {}))
    missing = {name: value for name, value in state(loop).items() if "momentum" not in name}
    with pytest.raises(OpenDGError, match="does not belong to this run: 'optimizer.momentum"):
        loop.resume(Checkpoint(0, missing, {}))


def test_updates_are_applied_in_order_and_to_whom_they_name(tree: Path) -> None:
    """The second update of a step sees what the first has done; parameters it does not name stay."""
    seen: list[Tensor] = []

    class Twice(ERM):
        def step(self, classifier, episode, state):  # type: ignore[no-untyped-def]
            weights = classifier.weights()
            ones = {name: torch.ones_like(weight) for name, weight in weights.items()}
            seen.append(weights["head.linear.bias"].detach().clone())
            yield Update({"a": torch.zeros(())}, {"head.linear.bias": ones["head.linear.bias"]})
            seen.append(weights["head.linear.bias"].detach().clone())
            yield Update({"b": torch.ones(())}, {"head.linear.weight": ones["head.linear.weight"]})

    loop = make_parts(tree, "erm", lr=0.5, weight_decay=0.0)
    loop.method = Twice(loop.method.config)
    before = copies(loop.weights)
    advance(loop, 1)
    torch.testing.assert_close(seen[1], seen[0] - 0.5)
    moved = [name for name in before if not torch.equal(before[name], loop.weights[name])]
    assert sorted(moved) == ["head.linear.bias", "head.linear.weight"]
    torch.testing.assert_close(loop.weights["head.linear.weight"], before["head.linear.weight"] - 0.5)
    assert loop.losses(1) == {"a": 0.0, "b": 1.0}


def test_the_rate_falls_at_eighty_percent_of_the_run(tree: Path) -> None:
    rates: list[float] = []
    loop = make_parts(tree, "erm", iterations=10, lr=0.01)
    apply = loop.update
    loop.update = lambda gradients, lr: (rates.append(float(lr)), apply(gradients, lr))[1]
    advance(loop, 10)
    assert rates == pytest.approx([0.01] * 8 + [0.001] * 2)
    assert [loop.rate(step) for step in range(10)] == pytest.approx(rates)
    assert float(loop.state.fraction) == 1.0


def test_losses_are_divided_by_the_batch_of_the_recipe(tree: Path) -> None:
    """B, not the number of images: in ERM those are 6 B."""
    seen: list[tuple[int, int]] = []

    class Told(ERM):
        def step(self, classifier, episode, state):  # type: ignore[no-untyped-def]
            seen.append((episode.batch, len(episode.labels)))
            return super().step(classifier, episode, state)

    loop = make_parts(tree, "erm", batch=3)
    loop.method = Told(loop.method.config)
    advance(loop, 1)
    assert seen == [(3, 18)]


def test_the_fraction_of_the_run_is_exact(tree: Path) -> None:
    """9 / 10 in fp32 lies below 0.9: a mean that is to begin there would begin an iteration late."""
    loop = make_parts(tree, "erm", iterations=10)
    found = [float(advance(loop, 1).state.fraction) for _ in range(10)]
    assert found == [step / 10 for step in range(1, 11)]


def test_a_run_does_not_depend_on_what_was_drawn_before(tree: Path) -> None:
    """The same seed gives the same run, whatever was drawn before; another seed another."""
    found = []
    for before, seed in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(before)
        found.append(copies(advance(make_parts(tree, seed=seed), 3).finished_weights()))
    assert_same(found[0], found[1])
    assert not torch.equal(found[1]["head.linear.weight"], found[2]["head.linear.weight"])


def test_buffers_that_are_not_stored_are_not_finished_weights(tree: Path) -> None:
    """Such as the attention masks of Swin: the finished weights must fit the network that is built again."""
    loop = make_parts(tree, "erm", average_over=0.5)
    loop.classifier.backbone.register_buffer("scratch", torch.zeros(3), persistent=False)
    again = Loop(loop.method, loop.classifier, loop.feed, loop.augment, loop.recipe, 0)
    for averaged in (False, True):
        assert again.finished_weights(averaged).keys() == loop.classifier.state_dict().keys()
