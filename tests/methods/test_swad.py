"""SWAD: the valley against Algorithm 1 of the paper, and the mean of the weights in it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opendg.episodes import Pool
from opendg.errors import OpenDGError
from opendg.methods.averaging import named
from opendg.methods.base import State
from opendg.methods.erm import ERM
from opendg.methods.registry import make_method
from opendg.methods.swad import SWAD, validation_loss
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions
from opendg.training.optim import make_optimizer
from small import small_classifier, small_state
from tests.methods.beside_erm import domain_episode, equals_erm

POOL = Pool(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1, 1)
LOSSES = st.lists(st.integers(1, 12).map(float), min_size=1, max_size=25)


class Told:
    """A survey that answers with given validation losses, one an evaluation."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = iter(losses)

    def val(self) -> Predictions:
        logits = np.array([[0.0, np.log(np.expm1(next(self.losses)))]], dtype=np.float64)  # cross-entropy of class 0
        return Predictions(np.array(["k"]), np.array(["d"]), np.array([0]), logits[:, :1], logits, None)

    def images(self, batch: int = 256) -> object:
        raise AssertionError("no BatchNorm here")

    train = val


def valley_by_hand(losses: list[float], n_s: int, n_e: int, r: float) -> list[int]:
    """The evaluations whose segments are averaged, straight from the paper's definition."""
    starts = [t for t in range(len(losses) - n_s + 1) if losses[t] == min(losses[t : t + n_s])]
    if not starts:
        return [len(losses) - 1]
    start = starts[0]
    threshold = r * sum(losses[start : start + n_s]) / n_s
    inside = list(range(start, len(losses)))
    for t in range(max(start + n_s, n_e) - 1, len(losses)):
        if min(losses[t - n_e + 1 : t + 1]) > threshold and t - n_e + 1 > start:
            inside = list(range(start, t - n_e + 1))
            break
    while losses[inside[-1]] > threshold:  # what is never followed by a loss under the threshold stays outside
        inside.pop()
    return inside


def walk(method: SWAD, losses: list[float]) -> tuple[Classifier, State, list[torch.Tensor]]:
    """A run of `interval` iterations an evaluation, its weights set at random; gives the first weight's path."""
    classifier = small_classifier(method)
    state, survey, path = small_state(method.state(classifier, POOL)), Told(losses), []
    episode, first = domain_episode(), classifier.backbone.net[0][0].weight
    for t in range(method.config.interval * len(losses)):
        list(method.step(classifier, episode, state))  # the update is not applied; what comes after it is
        path.append(first.detach().clone())
        state.step += 1
        if (t + 1) % method.config.interval == 0:
            method.every(survey, classifier, state)
        with torch.no_grad():
            first.normal_()
    return classifier, state, path


@settings(deadline=None, max_examples=60)
@given(LOSSES, st.integers(1, 4), st.integers(1, 5))
def test_the_valley_is_the_papers(losses: list[float], n_s: int, n_e: int) -> None:
    method = SWAD(SWAD.Config(interval=2, converge=n_s, patience=n_e, tolerance=1.3))
    classifier, state, path = walk(method, losses)
    method.finish(Told([]), classifier, state)
    inside = valley_by_hand(losses, n_s, n_e, 1.3)
    chosen = [path[i] for i in chain.from_iterable((2 * t, 2 * t + 1) for t in inside)]
    torch.testing.assert_close(classifier.backbone.net[0][0].weight.detach(), torch.stack(chosen).mean(0))


def test_an_example_by_eye() -> None:
    """Falls, lies flat from 3.0, one bump, then rises for good: segments 2 to 6."""
    losses = [9.0, 6.0, 3.0, 3.1, 3.2, 5.0, 3.3, 6.0, 6.0, 6.0, 1.0]
    assert valley_by_hand(losses, 3, 3, 1.3) == [2, 3, 4, 5, 6]
    method = SWAD(SWAD.Config(interval=1, patience=3))
    _, state, path = walk(method, losses)
    assert bool(state.own["ended"])
    valley = named(state.own, "valley")["backbone.net.0.0.weight"]
    torch.testing.assert_close(valley, torch.stack(path[2:7]).mean(0))


def test_a_loss_as_high_as_the_threshold_is_in_the_valley() -> None:
    method = SWAD(SWAD.Config(interval=1, tolerance=1.0))
    _, state, _ = walk(method, [2.0] * 5)
    assert int(state.own["in_valley"]) == 5


def test_before_the_first_evaluation_the_mean_of_all_so_far() -> None:
    method = SWAD(SWAD.Config(interval=100))
    classifier = small_classifier(method)
    state, episode, path = small_state(method.state(classifier, POOL)), domain_episode(), []
    optimizer = make_optimizer("sgd", classifier.weights(), 0.0, {})
    method.every(Told([]), classifier, state)  # at the start of a run there is nothing to evaluate
    for _ in range(4):
        for update in method.step(classifier, episode, state):
            optimizer.apply(update.gradients, torch.tensor(0.1))
        path.append(classifier.head.linear.weight.detach().clone())
        state.step += 1
    method.finish(Told([]), classifier, state)
    torch.testing.assert_close(classifier.head.linear.weight.detach(), torch.stack(path).mean(0))


def test_training_is_erms() -> None:
    method = SWAD()
    assert equals_erm(method, small_state(method.state(small_classifier(method, batchnorm=True), POOL)))
    assert SWAD.tasks is ERM.tasks


def test_frozen_batchnorm_keeps_its_statistics() -> None:
    method = SWAD(SWAD.Config(freeze_batchnorm=True))
    classifier = small_classifier(method, batchnorm=True)
    list(method.step(classifier, domain_episode(), small_state(method.state(classifier, POOL))))
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 0
    method.finish(Told([]), classifier, small_state(method.state(classifier, POOL)))
    assert int(classifier.backbone.net[0][1].num_batches_tracked) == 0


def test_validation_loss_is_a_mean_over_domains() -> None:
    """Three images of domain a, one of b: b counts as much as a."""
    logits = np.array([[0, 1], [2, 0], [1, 1], [0, 3]], dtype=np.float32)
    label, domain = np.array([0, 0, 1, 0]), np.array(["a", "a", "a", "b"])
    each = [np.log(np.exp(z).sum()) - z[y] for z, y in zip(logits.astype(float), label, strict=True)]
    found = validation_loss(Predictions(domain, domain, label, logits, logits, None))
    assert found == pytest.approx((np.mean(each[:3]) + each[3]) / 2)


def test_settings() -> None:
    assert make_method("swad", {"interval": "7"}).interval == 7
    with pytest.raises(OpenDGError, match="must be 1 or more"):
        make_method("swad", {"patience": "0"})
