"""MMLD: reversal, losses, clusters of real images and their numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from opendg.episodes import Episode
from opendg.errors import OpenDGError
from opendg.methods.base import State
from opendg.methods.mmld import MMLD, LatentDomainClassifier, cluster, renumber, reversed_gradient, styles
from opendg.methods.registry import make_method
from opendg.models.backbones import build_backbone
from small import small_state
from tests.methods.beside_erm import compare, domain_episode, equals_erm, gradients_of, pair
from tests.methods.meta_by_hand import full_pool, real_survey


def mixed_episode() -> Episode:
    """Images from anywhere in the training set."""
    return replace(domain_episode(), positions=torch.arange(12) * 5 % 12)


def some_state(fraction: float = 0.3) -> State:
    own = {"clusters": torch.arange(12) * 7 % 3, "weights": torch.tensor([0.5, 0.2, 0.1], dtype=torch.float64)}
    state = small_state(own)
    state.fraction.fill_(fraction)
    return state


def test_reversal_keeps_the_value_and_turns_the_gradient() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    found = reversed_gradient(x, torch.tensor(0.3))
    assert torch.equal(found, x)
    (gradient,) = torch.autograd.grad((found * torch.arange(4)).sum(), x)
    torch.testing.assert_close(gradient, -0.3 * torch.arange(4).double().expand(3, 4), rtol=1e-6, atol=1e-6)


def test_gradient_by_hand() -> None:
    method, episode, state = MMLD(), mixed_episode(), some_state()
    network, _ = pair(method)
    assert isinstance(network, LatentDomainClassifier)
    for layer in network.discriminator:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    found = gradients_of(method, network, episode, state)
    ramp = 2 / (1 + math.exp(-10 * 0.3)) - 1
    outputs = network(episode.images)
    p, d = outputs.logits.softmax(1), network.discriminator(outputs.features).softmax(1)
    ce = -sum(torch.log(p[i, y]) for i, y in enumerate(episode.labels.tolist())) / 12
    entropy = -sum(p[i, k] * torch.log(p[i, k]) for i in range(12) for k in range(4)) / 12
    clusters = state.own["clusters"][episode.positions]
    weight = [float(state.own["weights"][c]) for c in clusters]
    domain = -sum(w * torch.log(d[i, c]) for i, (w, c) in enumerate(zip(weight, clusters, strict=True)))
    domain = domain / sum(weight)
    names, weights = list(found), list(network.parameters())
    for name, own, against in zip(
        names,
        torch.autograd.grad(6 * (ce + ramp * entropy), weights, retain_graph=True, materialize_grads=True),
        torch.autograd.grad(6 * domain, weights, materialize_grads=True),
        strict=True,
    ):
        sign = 1.0 if name.startswith("discriminator.") else -ramp
        torch.testing.assert_close(found[name], own + sign * against, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("ova", [False, True])
def test_without_both_terms_it_is_erm(ova: bool) -> None:
    assert equals_erm(MMLD(MMLD.Config(adversary=0.0, entropy=0.0, ova=ova)), some_state())
    same = compare(MMLD(MMLD.Config(entropy=0.0, ova=ova)), some_state())
    assert all(equal == name.startswith("head.") for name, equal in same.items())  # the adversary moves the features
    same = compare(MMLD(MMLD.Config(adversary=0.0, ova=ova)), some_state())
    assert all(equal == name.startswith("head.ova") for name, equal in same.items())


def test_both_terms_rise_from_nothing() -> None:
    assert all(compare(MMLD(), some_state(0.0)).values())


def test_off_in_evaluation() -> None:
    mine, plain = pair(MMLD())
    images = domain_episode().images
    assert torch.equal(mine.eval()(images).logits, plain.eval()(images).logits)


def test_new_clusters_take_the_numbers_of_the_old() -> None:
    old = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    new = np.array([2, 2, 2, 0, 0, 1, 1, 1, 1])  # 2 is the old 0, 0 the old 1, 1 the old 2 with one image of 1
    assert renumber(new, old, 3).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert renumber(old, old, 3).tolist() == old.tolist()


def test_rows_of_three_kinds_are_three_clusters() -> None:
    random = np.random.default_rng(0)
    kind = random.integers(0, 3, 90)
    rows = (10 * np.eye(3)[kind] @ random.normal(size=(3, 400)) + random.normal(size=(90, 400))).astype(np.float32)
    found = cluster(rows, 3)
    assert len({(a, b) for a, b in zip(kind.tolist(), found.tolist(), strict=True)}) == 3


def test_styles_are_means_and_deviations_of_both_maps(tmp_path: Path) -> None:
    network, _ = pair(MMLD())
    survey = real_survey(tmp_path / "data", network)
    rows = styles(survey, network)
    assert network.training
    (images,) = survey.images()
    network.eval()
    first = network.backbone.net[0](images.double())
    second = network.backbone.net[1](first)
    for i in (0, len(rows) - 1):
        expected = []
        for found in (first, second):
            values = found[i].flatten(1)
            expected += [*values.mean(1).tolist(), *values.std(1, correction=0).tolist()]
        np.testing.assert_allclose(rows[i], expected, rtol=1e-4, atol=1e-6)


def test_every_finds_the_domains_of_real_images(tmp_path: Path) -> None:
    """Images of three grays: the clusters are the grays, and a second time they keep their numbers."""
    method = MMLD()
    network = pair(method)[0].float()
    survey = real_survey(tmp_path / "data", network, gray=lambda domain, label: 100 * domain)
    labels = survey.train()
    state = small_state(method.state(network, full_pool(1, 1, len(labels.label))))
    clusters = state.own["clusters"]
    method.every(survey, network, state)
    first = clusters.tolist()
    assert len(set(zip(first, labels.domain.tolist(), strict=True))) == 3
    sizes = np.bincount(first, minlength=3)
    np.testing.assert_allclose(state.own["weights"].numpy(), 1 / sizes, rtol=1e-6)
    clusters.copy_((clusters + 1) % 3)
    turned = clusters.tolist()
    state.step.fill_(200)
    method.every(survey, network, state)
    assert state.own["clusters"] is clusters  # in place: a captured step reads this very tensor
    assert clusters.tolist() == turned


@pytest.mark.parametrize(("fraction", "clusters_anew"), [(0.9, True), (1.0, False)])
def test_after_the_last_iteration_nothing_is_clustered(tmp_path: Path, fraction: float, clusters_anew: bool) -> None:
    method = MMLD()
    network = pair(method)[0].float()
    survey = real_survey(tmp_path / "data", network)
    state = small_state(method.state(network, survey.pool))
    state.fraction.fill_(fraction)
    method.every(survey, network, state)
    assert (len(set(state.own["clusters"].tolist())) == 3) == clusters_anew


def look(rank: int, folder: str) -> None:
    """One of two processes, whose statistics of BatchNorm have parted."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    network = pair(MMLD())[0].float()
    network.backbone.net[0][1].running_mean.fill_(0.1 * rank)
    np.save(f"{folder}/rows-{rank}.npy", styles(real_survey(Path(folder) / f"images-{rank}", network), network))
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_cluster_the_same_rows(tmp_path: Path) -> None:
    mp.spawn(look, args=(str(tmp_path),), nprocs=2)
    first, second = (np.load(tmp_path / f"rows-{rank}.npy") for rank in (0, 1))
    assert np.array_equal(first, second)
    network = pair(MMLD())[0].float()
    rows = []
    for rank in (0, 1):
        network.backbone.net[0][1].running_mean.fill_(0.1 * rank)
        rows.append(styles(real_survey(tmp_path / "images", network), network))
    assert not np.allclose(rows[0], rows[1], rtol=1e-3)
    np.testing.assert_allclose(first, (rows[0] + rows[1]) / 2, rtol=1e-5, atol=1e-6)


def test_more_clusters_than_images_are_refused() -> None:
    method = MMLD(MMLD.Config(clusters=12))
    network, _ = pair(method)
    assert len(method.state(network, full_pool(2, 3, 2))["clusters"]) == 12
    with pytest.raises(OpenDGError, match="cannot deal 6 training images into 12 clusters: set fewer clusters"):
        method.state(network, full_pool(2, 3, 1))


def test_interval_and_rates_follow_the_settings() -> None:
    method = make_method("mmld", {"interval": "70", "rate": 10})
    assert (method.interval, MMLD.interval) == (70, None)
    assert method.rates(pair(MMLD())[0]) == {"head.": 10.0, "discriminator.": 10.0}
    with pytest.raises(OpenDGError, match="clusters is 1"):
        make_method("mmld", {"clusters": 1})
    assert method.build(build_backbone("convnet"), 4, 3).discriminator[-1].out_features == 3
