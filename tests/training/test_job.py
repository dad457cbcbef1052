from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from opendg.errors import OpenDGError
from opendg.training.job import Job, make_job, plan
from opendg.training.recipe import Recipe
from tests.tiny import CLASSES, DOMAINS, write_tree


def planned(tree: Path, method: str = "medic", targets: tuple[str, ...] = ("wood",), **asked: Any) -> Job:
    return plan(method, str(tree), targets, **asked)[0]


def test_what_is_not_asked_for_follows_the_dataset(tree: Path, shared: Path) -> None:
    mine = planned(tree, unknown=["ring"])
    assert (mine.backbone, mine.weights, mine.recipe.augment) == ("resnet18.tv_in1k", "imagenet", "photo")
    assert mine.protocol.dataset == "signs"
    digits = plan("medic", "digits-dg", ["svhn"], root=shared / "data")[0]
    assert (digits.backbone, digits.weights, digits.recipe.augment) == ("convnet", "none", "digits")
    assert digits.protocol.unknown == ("6", "7", "8", "9")
    pacs = plan("medic", "pacs", ["sketch"], root=shared / "data")[0]
    assert pacs.protocol.unknown == ("person",)


def test_the_defaults_of_medic_are_the_recipe_that_was_measured(tree: Path) -> None:
    job = planned(tree)
    assert job.recipe == Recipe(
        iterations=4000, batch=8, lr=1e-4, optimizer="sgd", weight_decay=5e-4, schedule="step", average_over=0.0,
        select="last", augment="photo", precision="auto",
    )  # fmt: skip
    expected = {"order": 1, "alpha": 0.01, "beta": 1.0, "ova": True, "ova_scale": 0.5, "batchnorm": "merged"}
    assert expected.items() <= job.settings.items()
    assert job.settings["domain_order"] == "cycle"


def test_names_are_enough_for_a_job(tree: Path) -> None:
    names = SimpleNamespace(dataset="signs", domains=DOMAINS, classes=CLASSES)
    assert make_job("medic", str(tree), ["wood"], names, unknown=["ring"]) == planned(tree, unknown=["ring"])


def test_a_misspelt_method_is_named_before_data_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="did you mean 'medic'"):
        planned(tmp_path / "nowhere", "medik")


def test_a_root_may_be_text_or_a_path(shared: Path) -> None:
    jobs = [plan("erm", "digits-dg", ["svhn"], root=root)[0] for root in (shared / "data", str(shared / "data"))]
    assert jobs[0] == jobs[1]


@pytest.mark.parametrize("asked", [{}, {"known": 2}, {"chosen": {"order": "2", "beta": "0.5"}}])
def test_run_json_brings_back_the_job(tree: Path, asked: dict[str, Any]) -> None:
    job = planned(tree, **asked)
    assert Job.from_json(json.loads(json.dumps(job.to_json() | {"format": "x", "commit": "y"}))) == job


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"method": "medik"}, r"no method 'medik': did you mean 'medic'[^?]*\?$"),  # too many to list
        ({"chosen": {"ordre": "2"}}, "no setting 'ordre' of medic: did you mean 'order'"),
        ({"chosen": {"order": "3"}}, "order is 3 and must be one of 1, 2"),
        ({"chosen": {"order": "two"}}, "--set order=two does not fit: a whole number was expected"),
        ({"chosen": {"beta": "true"}}, "--set beta=True does not fit: a number was expected"),
        ({"targets": ("wod",)}, r"no domain 'wod' in signs: did you mean 'wood'\? Choose chalk, ink, neon or wood\.$"),
        ({"unknown": ["rings"]}, "no class 'rings' in signs: did you mean 'ring'"),
        ({"targets": DOMAINS[:3]}, "MEDIC needs 2 or more source domains, and 1 is left .wood.: name fewer targets"),
        ({"sources": ["ink"]}, "MEDIC needs 2 or more source domains, and 1 is left .ink."),
        ({"on_bad_image": "ignore"}, "no --on-bad-image 'ignore': choose error or skip"),
        ({"iterations": 0}, "^--iterations 0 must be 1 or more"),
        ({"batch": 0}, "^--batch 0 must be 1 or more"),
        ({"lr": 0.0}, "--lr 0.0 must be above 0"),
        ({"lr": float("nan")}, "--lr nan must be above 0"),
        ({"lr": float("inf")}, "--lr inf must be above 0"),
        ({"weight_decay": float("nan")}, "--weight-decay nan"),
        ({"weight_decay": -1.0}, "--weight-decay -1.0"),
        ({"average_over": 1.5}, "--average-over 1.5 is out of range"),
        ({"average_start": 0.1}, "--average-start 0.1 needs --average"),
        ({"average_start": 1.0, "average_over": 0.5}, "--average-start 1.0 is out of range"),
        ({"select": "best"}, "no selection rule 'best': choose last or source-accuracy"),
        ({"precision": "fp8"}, "no precision 'fp8'"),
        ({"optimizer": "sgdd"}, "no optimiser 'sgdd': did you mean 'sgd'"),
        ({"schedule": "steps"}, "no schedule 'steps': did you mean 'step'"),
        ({"augment": "foto"}, "no augmentation 'foto': did you mean 'photo'"),
        ({"recipe": "mine"}, "no recipe 'mine': choose common .* or authors"),
        ({"protocol": "daml", "known": 3}, "DAML's protocol chooses its classes itself"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_spent(tree: Path, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        planned(tree, **asked)


def test_erm_trains_on_one_domain(tree: Path) -> None:
    assert planned(tree, "erm", sources=["ink"]).protocol.sources == ("ink",)


def test_data_that_have_moved_are_found_by_root(tree: Path, tmp_path: Path) -> None:
    job = planned(tree)
    moved = write_tree(tmp_path / "elsewhere")
    index, _ = job.open_data(moved)
    assert index.files[0].is_relative_to(moved)


def test_a_named_dataset_keeps_its_name_where_it_has_moved(tree: Path) -> None:
    job = replace(planned(tree), data="pacs", root="before")
    assert job.place() == ("pacs", Path("before"))
    assert job.place("now") == ("pacs", Path("now"))


@pytest.mark.parametrize(("weights", "lr"), [("none", 2e-3), ("imagenet", 1e-4), ("file.safetensors", 1e-4)])
def test_a_network_from_scratch_takes_larger_steps(tree: Path, weights: str, lr: float) -> None:
    assert planned(tree, backbone="resnet18", weights=weights).recipe.lr == lr


def test_data_that_have_moved_home_are_found_there(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_tree(tmp_path / "signs", each=2)
    assert len(planned(tree).open_data("~/signs")[0]) == 4 * 4 * 2


def test_a_run_can_be_opened_from_another_folder(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    job = planned(Path("signs"), weights="file.safetensors", root="somewhere")
    monkeypatch.chdir(tmp_path)
    assert len(job.open_data()[0]) > 0
    assert job.weights == str(tree.parent / "file.safetensors")
    assert job.root == str(tree.parent / "somewhere")


def test_a_run_with_older_averaged_weights_is_refused(tree: Path) -> None:
    said = planned(tree).to_json()
    assert Job.from_json(said | {"recipe": said["recipe"] | {"average": 0.0}}) == planned(tree)
    with pytest.raises(OpenDGError, match="The run has averaged weights by a decay .*, as an older OpenDG made them"):
        Job.from_json(said | {"recipe": said["recipe"] | {"average": 0.9995}})


def test_a_folder_with_the_name_of_a_dataset_is_remembered_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENDG_DATA", raising=False)
    folder = write_tree(tmp_path / "here" / "vlcs")
    monkeypatch.chdir(folder.parent)
    job = planned(Path("vlcs"))
    monkeypatch.chdir(tmp_path)
    assert job.data == str(folder)
    assert len(job.open_data()[0]) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"method": 3}, {"settings": ["order"]}, {"settings": {"order": [1]}}, {"data": None}, {"root": 7},
        {"protocol": []}, {"protocol": {"known": 3}}, {"backbone": ["resnet18"]}, {"weights": 1}, {"seed": "x"},
        {"recipe": {"lr": "fast"}}, {"recipe": {"speed": 1}}, {"recipe": None}, {"on_bad_image": {}},
        {"recipe": {"optimizer": 3}}, {"recipe": {"select": []}},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_run_json_is_refused_in_a_sentence(tree: Path, change: dict[str, Any]) -> None:
    values = planned(tree).to_json()
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(values[key], dict) and key != "settings"
        values[key] = values[key] | value if both else value
    with pytest.raises(OpenDGError):
        Job.from_json(values).make_method()
