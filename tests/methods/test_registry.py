"""Every method, by being in the registry: trains, resumes bit by bit, predicts the same twice, takes 2 and 4 sources.

Real runs on a small tree of images. Methods run on the ConvNet where it can carry them; one that it cannot carry says
so in a sentence and runs on a small residual network with BatchNorm.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

from opendg.episodes import Episode, Pool, Task
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import evaluate
from opendg.methods.base import Authors, State, Update, gradients
from opendg.methods.registry import METHODS, make_method
from opendg.models.backbones import build_backbone
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions
from opendg.runs.checkpoint import load_checkpoint
from opendg.runs.directory import Run
from opendg.runs.names import checkpoint_file
from opendg.scores.registry import SCORES
from opendg.training.recipe import Recipe
from opendg.training.train import resume, train
from tests.methods.meta_by_hand import full_pool
from tests.waiting import wait_for

DOMAINS = ("bright", "dark", "green", "noisy", "red")
CLASSES = ("bar", "cross", "disc", "frame", "grid")  # the last one unknown
ITERATIONS, CHECKPOINT, COPIED = 30, 11, 15
# For so short a run: IRM's penalty is to wait until something is learned, SWAD's evaluations are to come round at all.
SHORT: dict[str, dict[str, Any]] = {"irm": {"anneal": 0.9}, "swad": {"interval": 4}}
ALL = pytest.mark.parametrize("name", sorted(METHODS))


def draw(domain: str, kind: str, random: np.random.Generator) -> Image.Image:
    """A shape in the colour of its class, a little shifted, on a ground in that of the domain."""
    y, x = np.mgrid[0:32, 0:32] - 16 + random.integers(-3, 4, size=(2, 1, 1))
    away = np.maximum(abs(x), abs(y))
    masks = {
        "bar": abs(y) < 4, "cross": (abs(x) < 3) | (abs(y) < 3), "disc": x**2 + y**2 < 90,
        "frame": (away < 11) & (away > 7), "grid": (x % 6 < 2) | (y % 6 < 2),
    }  # fmt: skip
    grounds = {"bright": (200, 200, 190), "dark": (30, 30, 40), "green": (60, 120, 70), "noisy": (120, 120, 120)}
    inks = {"bar": (255, 0, 0), "cross": (0, 255, 0), "disc": (0, 0, 255), "frame": (255, 255, 0)}
    pixels = np.where(masks[kind][..., None], inks.get(kind, (255, 255, 255)), grounds.get(domain, (140, 60, 60)))
    pixels = pixels.astype(float)
    pixels += random.normal(0, 30 if domain == "noisy" else 6, size=pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """5 domains x 5 classes x 8 images of 32 x 32."""
    root, random = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for domain in DOMAINS:
        for kind in CLASSES:
            (root / domain / kind).mkdir(parents=True)
            for number in range(8):
                draw(domain, kind, random).save(root / domain / kind / f"{number}.png")
    return root


@pytest.fixture(autouse=True)
def cache_of_the_session(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENDG_CACHE", str(tree.parent / "cache"))
    monkeypatch.setattr("opendg.training.train.LOG_EVERY", 5)


@cache
def carrier(name: str) -> str:
    """The backbone that a method is tested on: the ConvNet, or what a method wants that refuses it."""
    return "test_resnet" if refusal(name) else "convnet"


def refusal(name: str, backbone: str = "convnet") -> str:
    """What a method says to a backbone; nothing where it takes it."""
    try:
        build(name, backbone)
    except OpenDGError as error:
        return str(error)
    return ""


def build(name: str, backbone: str, **settings: Any) -> Classifier:
    return make_method(name, SHORT.get(name, {}) | settings).build(build_backbone(backbone), 4, 3)


def start(name: str, tree: Path, out: Path, sources: int = 3, **asked: Any) -> Run:
    options = {
        "iterations": ITERATIONS,
        "batch": 2,
        "optimizer": "adam",
        "lr": 0.001,
        "augment": "none",
        "precision": "fp32",
        "backbone": carrier(name),
        "chosen": dict(SHORT.get(name, {})),
    } | asked
    return train(
        name, str(tree), DOMAINS[-1], out=out, device="cpu", known=4, sources=list(DOMAINS[:sources]),
        weights="none", **options,
    )  # fmt: skip


class Kill:
    """Keeps, as a kill at that moment would, what a run has on disk some steps after a checkpoint was written."""

    def __init__(self, run: Path, kept: Path) -> None:
        self.run, self.kept = run, kept

    def __call__(self, step: int, iterations: int, losses: dict[str, float]) -> None:
        if step == COPIED:
            wait_for((self.run / "checkpoints" / checkpoint_file(CHECKPOINT)).exists)  # a thread writes it
            shutil.copytree(self.run, self.kept)


@ALL
def test_trains_resumes_and_predicts(name: str, tree: Path, tmp_path: Path) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    run = start(name, tree, whole, checkpoint_every=CHECKPOINT, report=Kill(whole, torn))
    log = [entry["losses"] for entry in run.read_log() if "losses" in entry]
    learned = next(iter(log[0]))  # the first loss that a method names is that of the classes
    assert log[-1][learned] < 0.9 * log[0][learned], [entry[learned] for entry in log]
    assert load_checkpoint(torn / "checkpoints" / checkpoint_file(CHECKPOINT)).step == CHECKPOINT

    again = resume(torn, device="cpu")
    assert [entry["losses"] for entry in again.read_log() if "losses" in entry] == log
    first, second = run.load_weights("selected"), again.load_weights("selected")
    assert [n for n in first if not torch.equal(first[n], second[n])] == []

    score = METHODS[name].score
    records = [evaluate(path, scores=[score], device="cpu") for path in (whole, whole, torn)]
    assert records[0]["scores"] == records[1]["scores"] == records[2]["scores"]
    assert records[0]["n_unknown"] == 8
    one, two = (Predictions.load(path / "target-selected.npz") for path in (whole, torn))
    assert np.array_equal(one.logits, two.logits)


@ALL
@pytest.mark.parametrize("sources", [2, 4])
def test_two_and_four_source_domains(name: str, sources: int, tree: Path, tmp_path: Path) -> None:
    """With two of them the one-vs-all head is trained too, where a method offers it."""
    head = {"ova": True} if sources == 2 and hasattr(METHODS[name].Config, "ova") else {}
    run = start(name, tree, tmp_path / "run", sources=sources, iterations=3, chosen=SHORT.get(name, {}) | head)
    assert ("bcls" in evaluate(run.path, device="cpu")["scores"]) or not head
    assert all(torch.isfinite(tensor).all() for tensor in run.load_weights("selected").values())


@ALL
@pytest.mark.parametrize(("domains", "batch"), [(2, 3), (4, 1), (8, 1)])
def test_tasks_keep_their_sizes_and_none_is_empty(name: str, domains: int, batch: int) -> None:
    pool, random = full_pool(domains, 6), np.random.default_rng(0)
    first, *later = ([len(pool.draw(task, random)) for task in tasks] for tasks in some_tasks(name, pool, batch))
    assert min(first) > 0
    assert later == [first] * len(later)


def some_tasks(name: str, pool: Pool, batch: int) -> list[list[Task]]:
    method, random = make_method(name), np.random.default_rng(1)
    return [method.tasks(pool, batch, step, random) for step in range(4)]


@ALL
def test_one_source_is_enough_or_refused(name: str, tree: Path, tmp_path: Path) -> None:
    if make_method(name).min_sources > 1:
        with pytest.raises(OpenDGError, match=r"needs \d or more source domains"):
            start(name, tree, tmp_path / "run", sources=1, iterations=2)
        assert not (tmp_path / "run").exists()
    else:
        assert start(name, tree, tmp_path / "run", sources=1, iterations=2).finished


def test_how_many_sources_it_takes_follows_the_split_of_domains(tree: Path, tmp_path: Path) -> None:
    chosen = {"domain_split": False}
    assert start("medic", tree, tmp_path / "medic", sources=1, iterations=2, chosen=chosen).finished
    with pytest.raises(OpenDGError, match="Class-wise meta-learning needs 2 or more source domains"):
        start("classwise", tree, tmp_path / "classwise", sources=1, iterations=2, chosen={"domain_split": True})
    assert {make_method(name).min_sources for name in ("medic", "mldg", "medic++", "arith", "ebil-hads")} == {2}


@ALL
def test_a_transformer_carries_it_or_is_refused(name: str, tree: Path, tmp_path: Path) -> None:
    """Its blocks give rows of tokens, no maps of channels, and it has no BatchNorm."""
    if said := refusal(name, "test_vit"):
        assert said.endswith("such as resnet18.tv_in1k.")
    else:
        assert start(name, tree, tmp_path / "run", iterations=1, backbone="test_vit", batch=1).finished


@ALL
def test_one_vs_all_head_as_asked_for(name: str) -> None:
    """`ova` adds the head or leaves it out; a method that cannot do without it refuses or offers no choice."""
    offered = hasattr(METHODS[name].Config, "ova")
    for settings in ({"ova": True}, {"ova": False}) if offered else ({},):
        try:
            classifier = build(name, carrier(name), **settings).eval()
        except OpenDGError:
            assert settings == {"ova": False}
            continue
        side = classifier.backbone.input.size[0]
        with torch.no_grad():
            outputs = classifier(torch.zeros(2, 3, side, side))
        assert outputs.logits.shape == (2, 4)
        assert not settings or (outputs.ova is not None) == settings["ova"]
        assert outputs.ova is None or outputs.ova.shape == (2, 2, 4)


def test_weights_that_a_loss_does_not_depend_on_have_a_gradient_of_zero() -> None:
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    found = gradients((3 * used).sum(), {"used": used, "unused": unused})
    assert {name: gradient.tolist() for name, gradient in found.items()} == {"used": [3, 3], "unused": [0, 0]}


def updates(name: str, **settings: Any) -> list[Update]:
    """Those of an iteration on noise, in the middle of a run."""
    method, pool, random = make_method(name, settings), full_pool(3, 4), np.random.default_rng(0)
    classifier = build(name, carrier(name), **settings).train()
    tasks = method.tasks(pool, 2, 0, random)
    rows = [pool.draw(task, random) for task in tasks]
    positions = torch.from_numpy(np.concatenate(rows))
    domains, labels = positions // 20, positions // 5 % 4
    images = torch.randn(len(positions), 3, *classifier.backbone.input.size)
    episode = Episode(images, labels, domains, positions, sizes=tuple(map(len, rows)), batch=2)
    state = State(torch.tensor(0), torch.tensor(0.5).double(), torch.Generator(), method.state(classifier, pool))
    return list(method.step(classifier, episode, state))


@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if hasattr(METHODS[name].Config, "ova_scale")])
def test_the_scale_asked_for_is_that_of_the_one_vs_all_loss(name: str) -> None:
    """At 0 nothing else pulls at the one-vs-all layer."""
    alone = {"crossmatch": {"entropy": 0.0, "consistency": 0.0}, "mvdg": {"inner_decay": 0.0, "trajectories": 1}}
    for scale in (0.0, 1.0):
        found = updates(name, ova=True, ova_scale=scale, **alone.get(name, {}))
        slopes = [slope for update in found for key, slope in update.gradients.items() if ".ova." in key]
        assert slopes
        assert any(slope.any() for slope in slopes) == (scale > 0)


@ALL
def test_an_iteration_has_six_batches_of_images_or_says_so(name: str) -> None:
    """So one learning rate means the same to all: MEDIC++ and Arith take 9 B, MVDG nine splits of B a domain."""
    (tasks, *_), more = some_tasks(name, full_pool(3, 6), 8), {"medic++": 9, "arith": 9, "mvdg": 27}
    assert sum(task.size for task in tasks) == 8 * more.get(name, 6)


@ALL
def test_a_backbone_that_cannot_carry_it_is_refused_in_a_sentence(name: str) -> None:
    said = refusal(name)
    assert not said or re.fullmatch(r"[A-Z][^\n]*: [^\n]*\.", said), "what was wrong: what to try."
    build(name, "test_resnet")


@ALL
def test_says_what_it_is(name: str) -> None:
    method = METHODS[name]
    assert method.name == name
    assert re.search(r"\b(19|20)\d\d\b.*https://\S+$", method.paper), method.paper
    assert re.fullmatch(r"[A-Z][^\n]*\.", method.idea)
    assert method.score in SCORES
    described = f"{inspect.getmodule(method).__doc__}\n{inspect.cleandoc(method.__doc__ or '')}"
    assert "https://" in described + method.paper
    assert re.search(r"^    .*(=|min|<-)", described, re.MULTILINE), "no formula, set off by four blanks"


@ALL
def test_config_is_frozen_and_has_defaults(name: str) -> None:
    config = METHODS[name]().config
    hints = get_type_hints(type(config))
    fields = dataclasses.fields(config)
    assert fields
    for field in fields:
        assert field.default is not dataclasses.MISSING
        kind = hints[field.name]
        assert not isinstance(kind, type) or type(field.default) is kind, field.name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, fields[0].name, None)
    assert make_method(name, {f.name: str(f.default) for f in fields}).config == config  # as `--set` brings them


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("rsc", {"images": "0.5"}, (0.5,)),
        ("rsc", {"images": "0,0.5"}, (0.0, 0.5)),
        ("rsc", {"images": [0]}, (0.0,)),
        ("mixstyle", {"stages": "1"}, ("1",)),
        ("mixstyle", {"stages": "1,2"}, ("1", "2")),
        ("mixstyle", {"stages": "['stem', 1]"}, ("stem", "1")),
        ("mixstyle", {"stages": [1, "2"]}, ("1", "2")),
    ],
)
def test_a_list_may_be_one_value_and_numbers_are_its_kind(
    name: str, setting: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    found = getattr(make_method(name, setting).config, next(iter(setting)))
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("rsc", {"images": "('a', 0.5)"}, r"--set images=\('a', 0.5\) does not fit: a list of numbers, .*expected\.$"),
        ("rsc", {"images": "true"}, "a list of numbers"),
        ("rsc", {"images": None}, "a list of numbers"),
        ("rsc", {"images": {"a": 1}}, "a list of numbers"),
        ("mixstyle", {"stages": "1.5"}, "--set stages=1.5 does not fit: a list of texts"),
        ("mixstyle", {"stages": [True]}, "a list of texts"),
        ("mixstyle", {"stages": "none"}, "a list of texts"),
    ],
)
def test_a_list_of_another_kind_is_refused(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        make_method(name, setting)


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("metareg", {"meta": "1"}, "meta is 1.0 and must be below 1"),
        ("metareg", {"meta": "-0.1"}, "meta is -0.1 and must be 0 or more"),
        ("metareg", {"meta": math.nan}, "meta is nan and must be 0 or more"),
        ("medic", {"alpha": "-0.01"}, "alpha is -0.01 and must be 0 or more"),
        ("erm", {"ova_scale": -1}, "ova_scale is -1.0 and must be 0 or more"),
        ("metareg", {"steps": "0"}, "steps is 0 and must be 1 or more"),
        ("swad", {"tolerance": "0.9"}, "tolerance is 0.9 and must be 1 or more"),
        ("arpl", {"temperature": "0"}, "temperature is 0.0 and must be above 0"),
        ("arpl", {"temperature": "-1"}, "temperature is -1.0 and must be above 0"),
        ("selfreg", {"beta": "0"}, "beta is 0.0 and must be above 0"),
        ("daml", {"own": "0"}, "own is 0.0 and must be above 0"),
        ("daml", {"other": "-0.2"}, "other is -0.2 and must be above 0"),
        ("daml", {"temperature": "0"}, "temperature is 0.0 and must be above 0"),
        ("ebil-hads", {"dropout": "1"}, "dropout is 1.0 and must be below 1"),
        ("ebil-hads", {"dropout": "-0.1"}, "dropout is -0.1 and must be 0 or more"),
        ("mvdg", {"scale": math.nan}, "scale is nan and must be above 0"),
    ],
)
def test_a_number_out_of_range_is_refused(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=rf"^The settings of {name} do not fit: {re.escape(sentence)}\.$"):
        make_method(name, setting)


def test_a_long_list_of_names_ends_in_three_dots() -> None:
    with pytest.raises(OpenDGError, match=r"expected one of: medic, .*[a-z] \.\.\.$"):
        make_method("zzz")


@pytest.mark.parametrize("name", sorted(name for name in METHODS if METHODS[name].authors))
def test_authors_recipe_can_be_made(name: str) -> None:
    authors = METHODS[name].authors
    assert isinstance(authors, Authors)
    assert dataclasses.replace(Recipe(), **authors.recipe) != Recipe() or authors.settings
    make_method(name, authors.settings)


def test_the_command_lists_them_all() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "opendg", "methods", "--json"], capture_output=True, text=True, check=True
    )
    listed = {row["name"]: row for row in json.loads(said.stdout)}
    assert set(listed) == set(METHODS)
    for name, row in listed.items():
        assert row["settings"] == json.loads(json.dumps(dataclasses.asdict(METHODS[name]().config)))
        assert row["paper"] == METHODS[name].paper
