"""EBiL-HaDS against its losses by hand; the follower learns and chooses the domain that it trusts least."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from opendg.episodes import Episode, Task
from opendg.errors import OpenDGError
from opendg.methods.ebil_hads import EBiLHaDS, Led, evidence, mmd, reliability
from opendg.models.backbones import Backbone, Input, build_backbone
from small import HALF, small_classifier, small_episode, small_state
from tests.methods.meta_by_hand import (
    assert_same,
    flat,
    full_pool,
    gradient_by_hand,
    losses_by_hand,
    move_by_hand,
    real_survey,
)

SIX = (2, 2, 2, 2, 2, 2)
Config = EBiLHaDS.Config


def led(method: EBiLHaDS, classes: int = 4, domains: int = 3, batchnorm: bool = False) -> Led:
    """A small network whose branches differ, as after some training."""
    classifier = small_classifier(method, classes, domains, batchnorm)
    torch.manual_seed(9)
    for parameter in [*classifier.backbone.second.parameters(), *classifier.follower.linear.parameters()]:
        nn.init.normal_(parameter, std=0.5)
    return classifier


def squared_mmd_by_hand(x: Tensor, y: Tensor) -> Tensor:
    """Pair by pair."""
    both = [*x, *y]
    distances = [(a - b).square().sum() for a in both for b in both]
    mean = sum(d.detach() for d in distances) / (len(both) * (len(both) - 1))

    def k(a: Tensor, b: Tensor) -> Tensor:
        return sum(torch.exp(-(a - b).square().sum() / (mean * h)) for h in (0.25, 0.5, 1, 2, 4))

    n = len(x)
    alike = sum(k(a, b) for a in x for b in x) + sum(k(a, b) for a in y for b in y)
    return (alike - 2 * sum(k(a, b) for a in x for b in y)) / n**2


def side_by_hand(network: Led, side: Episode, trust: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """The main network's loss, image by image, and its confidences; modules are called one by one."""
    backbone, second = network.backbone.net, network.backbone.second
    fork = backbone.net[0](side.images)
    features = [
        backbone.net[3](backbone.net[2](backbone.net[1](fork))),
        second.net[3](second.net[2](second.net[1](fork))),
    ]
    said = [part(f) for part, f in zip(network.head.parts, features, strict=True)]
    total = torch.zeros((), dtype=torch.float64)
    confidences = []
    for i, y in enumerate(side.labels.tolist()):
        alphas = [torch.exp(torch.clamp(logits[i], -10, 10)) + 1 for logits, _ in said]
        confidences.append(max(sum(alpha[k] / alpha.sum() for alpha in alphas) / 2 for k in range(len(alphas[0]))))
        for (logits, ova), alpha in zip(said, alphas, strict=True):
            label = side.labels[i : i + 1]
            total = total + 0.5 * losses_by_hand(logits[i : i + 1], None if ova is None else ova[i : i + 1], label)
            total = total + config.evidential * (torch.log(alpha.sum()) - torch.log(alpha[y]))
        first = losses_by_hand(said[0][0][i : i + 1], None, side.labels[i : i + 1])
        total = total + config.weighted * trust[i] * first - config.opposed * (trust[i] - confidences[-1]) ** 2
    total = total - config.rebias * len(side.labels) * squared_mmd_by_hand(*features)
    return total / side.batch, torch.stack(confidences)


@pytest.mark.parametrize("ova", [True, False])
def test_both_updates_are_their_formulas(ova: bool) -> None:
    config = Config(alpha=0.1, beta=0.7, weighted=0.8, evidential=1.2, rebias=0.3, opposed=0.4, dropout=0.0, ova=ova)
    method = EBiLHaDS(config)
    classifier, episode = led(method), small_episode(SIX)
    network, train, test = copy.deepcopy(classifier), episode.tasks(0, 3), episode.tasks(3, 6)
    features = network.follower.backbone(episode.images)
    trust = torch.sigmoid(network.follower.linear(features)[:, 0]) + 1e-5
    given = trust.detach()
    loss, of_train = side_by_hand(network, train, given[:6], config)
    inner = gradient_by_hand(network, loss)
    moved = copy.deepcopy(network)
    move_by_hand(moved, inner, 0.1)
    loss, of_test = side_by_hand(moved, test, given[6:], config)
    outer = gradient_by_hand(moved, loss)
    regression = ((trust - torch.cat([of_train, of_test]).detach()) ** 2).sum() / episode.batch
    follower = gradient_by_hand(network, regression)
    main_update, follower_update = method.step(classifier, episode, small_state())
    main = {name for name in inner if not name.startswith("follower.")}
    assert_same(main_update.gradients, {name: inner[name] + 0.7 * outer[name] for name in main})
    assert_same(follower_update.gradients, {name: follower[name] for name in follower if name not in main})
    torch.testing.assert_close(follower_update.losses["follower"], regression.detach(), check_dtype=False)


@pytest.mark.parametrize("key", ["weighted", "evidential", "rebias", "opposed", "alpha", "beta", "dropout"])
def test_each_term_changes_the_gradient(key: str) -> None:
    found = []
    for config in (Config(alpha=0.1), Config(**{"alpha": 0.1, key: 0.0})):
        method = EBiLHaDS(config)
        classifier = led(method)
        torch.manual_seed(4)  # dropout
        found.append(flat(next(iter(method.step(classifier, small_episode(SIX), small_state())))))
    assert not torch.allclose(found[0], found[1], rtol=1e-9, atol=0)


def test_orders_differ_and_both_leave_confidences_for_the_follower() -> None:
    found = []
    for order in (1, 2):
        method = EBiLHaDS(Config(order=order, alpha=0.1, dropout=0.0))
        main, follower = method.step(led(method, batchnorm=True), small_episode(SIX), small_state())
        found.append((flat(main), flat(follower)))
    assert not torch.allclose(found[0][0], found[1][0], rtol=1e-3)
    torch.testing.assert_close(found[0][1], found[1][1])


def test_batchnorm_per_task_is_another_gradient() -> None:
    found = []
    for mode in ("merged", "per-task", "frozen"):
        method = EBiLHaDS(Config(batchnorm=mode, dropout=0.0))
        found.append(flat(next(iter(method.step(led(method, batchnorm=True), small_episode(SIX), small_state())))))
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_the_follower_really_learns() -> None:
    method = EBiLHaDS(Config(dropout=0.0))
    classifier, episode = led(method), small_episode(SIX)
    nn.init.constant_(classifier.follower.linear.bias, -3.0)  # at first it trusts nothing
    start = {name: weight.detach().clone() for name, weight in classifier.named_parameters()}
    errors = []
    for _ in range(80):
        for update in method.step(classifier, episode, small_state()):
            move_by_hand(classifier, update.gradients, 0.02)
        errors.append(float(update.losses["follower"].detach()))
    assert errors[-1] < 0.2 * errors[0]
    for name, weight in classifier.named_parameters():
        assert not torch.equal(weight, start[name]), name


def test_what_is_said_of_an_image() -> None:
    """Closed set from the first branch, the mean of the one-vs-all logits, both branches' features."""
    classifier = led(EBiLHaDS()).eval()
    images = small_episode((4,)).images
    outputs = classifier(images)
    first, second = outputs.features.chunk(2, dim=1)
    torch.testing.assert_close(first, classifier.backbone.net(images))
    assert not torch.allclose(first, second)
    (logits, b1), (_, b2) = classifier.head.parts[0](first), classifier.head.parts[1](second)
    torch.testing.assert_close(outputs.logits, logits)
    torch.testing.assert_close(outputs.ova, (b1 + b2) / 2)


def test_branches_start_as_copies_behind_the_last_stage_but_one() -> None:
    classifier = small_classifier(EBiLHaDS()).eval()
    first, second = classifier(small_episode((4,)).images).features.chunk(2, dim=1)
    assert torch.equal(first, second)
    names = [*dict(classifier.named_parameters()), *dict(classifier.named_buffers())]
    assert sorted(names) == sorted(classifier.state_dict())
    assert {name.split(".")[3] for name in names if name.startswith("backbone.second.")} == {"1"}


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_real_backbones_are_forked(name: str) -> None:
    backbone = build_backbone(name)
    last = sum(p.numel() for p in backbone.get_submodule(backbone.stages["4"]).parameters())
    backbone.start = "0123abcd"
    classifier = EBiLHaDS().build(backbone, 6, 3)
    assert classifier.backbone.start == "0123abcd"  # the record of a run says so
    assert sum(p.numel() for p in classifier.backbone.second.parameters()) == last
    images = torch.randn(2, 3, *backbone.input.size)
    classifier.eval()
    assert classifier(images).features.shape == (2, 2 * backbone.width)
    assert classifier.trust(images).shape == (2,)


def test_a_backbone_without_stages_is_refused() -> None:
    flatten = Backbone("flat", nn.Flatten(), 192, Input((8, 8), HALF, HALF), {})
    with pytest.raises(OpenDGError, match="stages"):
        EBiLHaDS().build(flatten, 4, 3)


def test_mmd_is_its_definition_and_pushes_apart() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64) + 1
    torch.testing.assert_close(mmd(x, y), squared_mmd_by_hand(x, y))
    torch.testing.assert_close(mmd(x, x), torch.zeros((), dtype=torch.float64))
    assert mmd(x, y + 1) > mmd(x, y) > 0
    same = torch.ones(4, 3, requires_grad=True)
    mmd(same, torch.ones(4, 3)).backward()
    assert torch.isfinite(same.grad).all()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_it_holds_out_the_domain_that_the_follower_trusts_least(tmp_path: Path, sign: float) -> None:
    method = EBiLHaDS()
    assert method.interval == 10
    classifier = led(method)
    survey = real_survey(tmp_path, classifier, gray=lambda domain, label: 80 * domain + label)
    random = np.random.default_rng(0)
    seen = [survey.draw(Task((d,), (0, 1, 2, 3), 40), random)[0].double() for d in range(3)]
    with torch.no_grad():  # the follower trusts what is bright, or what is dark
        features = [classifier.follower.backbone(images).mean(dim=0) for images in seen]
        classifier.follower.linear.weight.copy_(3 * sign * (features[2] - features[0])[None])
        classifier.follower.linear.bias.zero_()
        trust = torch.stack([classifier.trust(images).mean() for images in seen])
    least = int(trust.argmin())
    assert least == (0 if sign > 0 else 2)
    state = small_state(method.state(classifier, survey.pool))
    for _ in range(3):
        method.every(survey, classifier, state)
    method.recall(state)
    assert classifier.training
    assert method.held == least
    assert state.own["chosen"].tolist() == [3.0 if d == least else 0.0 for d in range(3)]
    for step in range(5):
        f1, f1_too, g2, f2, g1, _ = method.tasks(survey.pool, 4, step, np.random.default_rng(step))
        assert g2.domains == g1.domains == (least,)
        assert sorted({*f1.domains, *f1_too.domains}) == sorted(f2.domains) == sorted({0, 1, 2} - {least})
    resumed = EBiLHaDS()
    resumed.recall(state)
    assert resumed.held == least


def choose(rank: int, folder: str) -> None:
    """One of two processes, whose followers differ as much as their statistics of BatchNorm might."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    method = EBiLHaDS()
    classifier = led(method)
    with torch.no_grad():
        classifier.follower.linear.weight.mul_(3.0 if rank else -1.0)
    survey = real_survey(Path(folder) / f"images-{rank}", classifier)
    state = small_state(method.state(classifier, survey.pool))
    held = []
    for _ in range(3):
        method.every(survey, classifier, state)
        held.append(int(state.own["held"]))
    Path(folder, f"held-{rank}").write_text(str(held))
    dist.destroy_process_group()


@pytest.mark.slow
def test_processes_choose_alike(tmp_path: Path) -> None:
    mp.spawn(choose, args=(str(tmp_path),), nprocs=2)
    assert (tmp_path / "held-0").read_text() == (tmp_path / "held-1").read_text()


def test_domains_of_equal_trust_take_turns(tmp_path: Path) -> None:
    method = EBiLHaDS()
    classifier = led(method)
    nn.init.zeros_(classifier.follower.linear.weight)
    survey = real_survey(tmp_path, classifier)
    state = small_state(method.state(classifier, survey.pool))
    for _ in range(6):
        method.every(survey, classifier, state)
    assert state.own["chosen"].tolist() == [2.0, 2.0, 2.0]


def test_a_look_is_at_a_random_third_of_the_classes_in_every_domain() -> None:
    method, seen = EBiLHaDS(), []
    classifier = led(method, classes=6, batchnorm=True)
    before = copy.deepcopy(classifier.state_dict())

    class Survey:
        def draw(self, task: Task, random: np.random.Generator) -> tuple[Tensor, None]:
            seen.append(task)
            return torch.zeros(2, 3, 8, 8), None

    state = small_state(method.state(classifier, full_pool(3, 6)))
    for _ in range(20):
        method.every(Survey(), classifier, state)
    looks = [{task.classes for task in seen[3 * i : 3 * i + 3]} for i in range(20)]
    assert {len(classes) for look in looks for classes in look} == {2}
    assert {len(look) for look in looks} == {1}
    assert {c for look in looks for classes in look for c in classes} == set(range(6))
    assert [(task.domains, task.size) for task in seen] == [((d,), 32) for d in range(3)] * 20
    assert all(torch.equal(tensor, before[name]) for name, tensor in classifier.state_dict().items())


def test_evidence_ends_at_logits_of_ten() -> None:
    log_alpha, _ = evidence(torch.tensor([[30.0, -30.0]]).double())
    assert log_alpha.tolist() == [pytest.approx([math.log(math.exp(10) + 1), math.log(math.exp(-10) + 1)])]


def test_the_reliability_of_a_domain_is_the_formula() -> None:
    trust, chosen = torch.tensor([0.5, 0.5009, 0.5011]), torch.tensor([5.0, 0.0, 5.0])
    expected = [math.exp(1 + w) * (0.1 + 2e-4 * share) for w, share in ((0.5, 0.5), (0.5009, 0.0), (0.5011, 0.5))]
    torch.testing.assert_close(reliability(trust, chosen, 0.1, 2e-4), torch.tensor(expected))
    none = reliability(trust, torch.zeros(3), 0.1, 2e-4)
    torch.testing.assert_close(none, 0.1 * torch.exp(1 + trust))


@pytest.mark.parametrize("domains", [2, 4])
def test_other_numbers_of_sources(domains: int) -> None:
    method, pool = EBiLHaDS(), full_pool(domains, 6)
    method.held = 1
    tasks = method.tasks(pool, 4, 0, np.random.default_rng(0))
    assert tasks[2].domains == (1,)
    assert 1 not in tasks[3].domains
    assert len(tasks[3].domains) == min(2, domains - 1)


def test_without_the_scheduler_domains_cycle() -> None:
    method = EBiLHaDS(Config(scheduler=False))
    assert method.interval is None
    assert method.state(led(method), full_pool(3, 4)) == {}
    held = [method.tasks(full_pool(3, 6), 4, step, np.random.default_rng(0))[2].domains for step in range(4)]
    assert held == [(0,), (1,), (2,), (0,)]
