"""DAML against its formulas with separate networks by hand; its ensemble; source domains with their own class sets."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from opendg.episodes import Episode, Pool
from opendg.methods.base import State
from opendg.methods.chance import dirichlet, permutation
from opendg.methods.daml import DAML
from opendg.models.classifier import Classifier
from small import small_backbone, small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import assert_same, flat, full_pool, gradient_by_hand, losses_by_hand, move_by_hand


def say(network: Classifier, j: int, images: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features, logits and one-vs-all logits of network j, from its modules."""
    features = network.backbone.net[j](images)
    return features, *network.head.parts[j](features)


def mixed_by_hand(network: Classifier, side: Episode, own: float, other: float, state: State) -> Tensor:
    """Mixture by mixture, domain by domain."""
    domains, n = len(side.sizes), side.sizes[0]
    total = torch.zeros((), dtype=torch.float64)
    for j in range(domains):
        features = say(network, j, side.images)[0]
        ratio = dirichlet(state, [own if i == j else other for i in range(domains)], n)
        orders = [permutation(state, n) for _ in range(domains)]
        for m in range(n):
            picks = [i * n + int(orders[i][m]) for i in range(domains)]
            mix = sum(ratio[m, i] * features[pick] for i, pick in enumerate(picks))
            log_p = network.head.parts[j](mix[None])[0].log_softmax(dim=1)[0]
            for i, pick in enumerate(picks):
                total = total - ratio[m, i] * log_p[side.labels[pick]]
    return total


def train_by_hand(network: Classifier, side: Episode, config: DAML.Config, state: State) -> Tensor:
    domains, n = len(side.sizes), side.sizes[0]
    total = config.mix_train * mixed_by_hand(network, side, config.own, config.other, state)
    for j in range(domains):
        x, y = side.images[j * n : (j + 1) * n], side.labels[j * n : (j + 1) * n]
        _, logits, ova = say(network, j, x)
        total = total + losses_by_hand(logits, ova, y)
        share = dirichlet(state, [1.0] * (domains - 1), n)
        others = [say(network, o, x)[1].detach() for o in range(domains) if o != j]
        for m in range(n):
            p = sum(share[m, o] * F.softmax(z[m] / config.temperature, dim=0) for o, z in enumerate(others))
            q = F.softmax(logits[m] / config.temperature, dim=0)
            total = total + config.distill * config.temperature**2 * (p * (p.log() - q.log())).sum()
    return total / side.batch


def test_by_hand(network: Classifier, side: Episode, config: DAML.Config, state: State) -> Tensor:
    domains, n = len(side.sizes), side.sizes[0]
    total = config.mix_test * mixed_by_hand(network, side, config.other, config.own, state)
    for j in range(domains):
        for i in range(domains):
            if i != j:
                x, y = side.images[i * n : (i + 1) * n], side.labels[i * n : (i + 1) * n]
                total = total + config.across * losses_by_hand(*say(network, j, x)[1:], y)
    return total / side.batch


test_by_hand.__test__ = False  # type: ignore[attr-defined]


def random_state() -> State:
    state = small_state()
    state.random.manual_seed(5)
    return state


@pytest.mark.parametrize(("domains", "ova"), [(2, True), (3, False), (3, True), (4, False)])
def test_the_step_is_its_formula(domains: int, ova: bool) -> None:
    config = DAML.Config(alpha=0.2, mix_train=0.7, distill=1.3, across=0.8, mix_test=0.6, ova=ova)
    method = DAML(config)
    classifier = small_classifier(method, domains=domains)
    for number, parameter in enumerate(classifier.backbone.parameters()):  # copies at the start: make them differ
        torch.manual_seed(number)
        nn.init.normal_(parameter, std=0.4)
    episode = small_episode((3,) * (2 * domains), domains=domains)
    network, state = copy.deepcopy(classifier), random_state()
    inner = gradient_by_hand(network, train_by_hand(network, episode.tasks(0, domains), config, state))
    move_by_hand(network, inner, 0.2)
    loss = test_by_hand(network, episode.tasks(domains, 2 * domains), config, state)
    outer = gradient_by_hand(network, loss)
    (update,) = method.step(classifier, episode, random_state())
    torch.testing.assert_close(update.losses["meta-test"], loss)
    assert_same(update.gradients, {name: inner[name] + outer[name] for name in inner})


@pytest.mark.parametrize("key", ["mix_train", "distill", "across", "mix_test", "alpha"])
def test_each_term_changes_the_gradient(key: str) -> None:
    found = []
    for config in (DAML.Config(), DAML.Config(**{key: 0.0})):
        method = DAML(config)
        (update,) = method.step(small_classifier(method), small_episode((2,) * 6), random_state())
        found.append(flat(update))
    assert not torch.allclose(found[0], found[1], rtol=1e-4)


def test_without_its_terms_each_network_is_erm_on_its_own_domain() -> None:
    method = DAML(DAML.Config(mix_train=0, distill=0, across=0, mix_test=0))
    classifier, episode = small_classifier(method), small_episode((2,) * 6)
    network = copy.deepcopy(classifier)
    parts = [(j, episode.tasks(j, j + 1)) for j in range(3)]
    loss = sum(F.cross_entropy(say(network, j, part.images)[1], part.labels) for j, part in parts)
    (update,) = method.step(classifier, episode, random_state())
    assert_same(update.gradients, gradient_by_hand(network, loss))


@pytest.mark.parametrize("ova", [True, False])
def test_the_ensemble_is_the_mean_of_softmaxes(ova: bool) -> None:
    classifier = small_classifier(DAML(DAML.Config(ova=ova)))
    images = small_episode((4,)).images
    outputs = classifier(images)
    said = [say(classifier, j, images) for j in range(3)]
    mean = torch.stack([logits.softmax(dim=1) for _, logits, _ in said]).mean(dim=0)
    torch.testing.assert_close(outputs.logits.softmax(dim=1), mean)
    energy = torch.stack([logits.logsumexp(dim=1) for _, logits, _ in said]).mean(dim=0)
    torch.testing.assert_close(outputs.logits.logsumexp(dim=1), energy)
    torch.testing.assert_close(outputs.features, torch.cat([features for features, _, _ in said], dim=1))
    if ova:
        torch.testing.assert_close(outputs.ova, torch.stack([b for _, _, b in said]).mean(dim=0))
    else:
        assert outputs.ova is None


def test_networks_start_from_one_backbone_with_heads_of_their_own() -> None:
    backbone = small_backbone(batchnorm=True)
    start = copy.deepcopy(backbone.state_dict())
    backbone.start = "0123abcd"
    classifier = DAML().build(backbone, 4, 3)
    assert classifier.backbone.start == "0123abcd"  # the record of a run says so
    for net in classifier.backbone.net:
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, start[name])
    first, second, _ = classifier.head.parts
    assert not torch.equal(first.linear.weight, second.linear.weight)
    names = [*dict(classifier.named_parameters()), *dict(classifier.named_buffers())]
    assert sorted(names) == sorted(classifier.state_dict())  # nothing twice: a run saves parameters and buffers


@pytest.mark.parametrize("domains", [2, 3, 4])
def test_tasks_are_each_domain_on_both_sides(domains: int) -> None:
    tasks = DAML().tasks(full_pool(domains, 6), 8, 0, np.random.default_rng(0))
    assert [task.domains for task in tasks] == 2 * [(d,) for d in range(domains)]
    assert {task.size for task in tasks} == {24 // domains}


def test_a_small_batch_of_many_domains_has_an_image_of_each() -> None:
    tasks = DAML().tasks(full_pool(5, 6), 1, 0, np.random.default_rng(0))
    assert [task.size for task in tasks] == [1] * 10


def own_class_sets(method: DAML) -> Episode:
    """DAML's protocol on PACS: {3, 0, 1}, {4, 0, 2}, {5, 1, 2}."""
    own = [{3, 0, 1}, {4, 0, 2}, {5, 1, 2}]
    cells = np.array([(d, c) for d, classes in enumerate(own) for c in sorted(classes)])
    domain, label = (np.repeat(column, 6) for column in cells.T)
    pool, random = Pool(domain, label, 3, 6), np.random.default_rng(0)
    tasks = method.tasks(pool, 4, 0, random)
    rows = [pool.draw(task, random) for task in tasks]
    for task, drawn in zip(tasks, rows, strict=True):
        assert set(label[drawn].tolist()) <= own[task.domains[0]]
    everything = torch.from_numpy(np.concatenate(rows))
    labels, domains = torch.from_numpy(label)[everything], torch.from_numpy(domain)[everything]
    torch.manual_seed(2)
    pattern = torch.randn(6, 3, 8, 8, dtype=torch.float64)[labels]  # what a class looks like, the same in all domains
    images = pattern + 0.3 * torch.randn(pattern.shape, dtype=torch.float64)
    return Episode(images, labels, domains, everything, tuple(map(len, rows)), 4)


@pytest.mark.parametrize("taught", [True, False])
def test_a_network_learns_the_classes_that_its_domain_lacks(taught: bool) -> None:
    method = DAML() if taught else DAML(DAML.Config(mix_train=0, distill=0, across=0, mix_test=0))
    classifier, episode, state = small_classifier(method, classes=6), own_class_sets(method), random_state()
    for _ in range(60):
        (update,) = method.step(classifier, episode, state)
        move_by_hand(classifier, update.gradients, 0.02)
    right = say(classifier, 0, episode.images)[1].argmax(dim=1) == episode.labels
    lacking, own = (torch.isin(episode.labels, torch.tensor(classes)) for classes in ([2, 4, 5], [0, 1, 3]))
    assert right[own & (episode.domains == 0)].double().mean() > 0.9
    assert (right[lacking].double().mean() > 0.9) == taught
