"""Tuning: what it opens, what it measures, how it goes on after a kill."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from safetensors.torch import save_file
from typer.testing import CliRunner

from opendg.bench import space as space_room
from opendg.bench.folds import make_folds
from opendg.bench.search import Search
from opendg.bench.space import fast_motion
from opendg.bench.tune import prepare, tune
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.models.backbones import build_backbone
from opendg.training.config import Config, read_config, write_config
from opendg.training.job import plan
from tests.bench.parts import FLAGS, refused
from tests.bench.test_space import small_protocol
from tests.tiny import DOMAINS, write_tree

pytest.importorskip("optuna", reason="needs the extra opendg[tune]")

QUICK: dict[str, Any] = {
    "unknown": ["ring"], "backbone": "convnet", "augment": "digits", "batch": 2, "device": "cpu", "iterations": 2,
}  # fmt: skip


def small(tree: Path, out: Path, method: str = "erm", target: str = "wood", **more: Any) -> Search:
    return tune(method, str(tree), target, out=out, **(QUICK | {"trials": 2} | more))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("data") / "signs")


def spoil(domain: Path) -> None:
    for image in domain.rglob("*.png"):
        image.write_bytes(b"no image at all")


# What is opened


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """The names of all files that this process opens. An audit hook cannot be taken off, so it is told to rest."""
    names: list[str] = []
    listening = [True]

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if listening and event == "open" and isinstance(arguments[0], str):
            names.append(arguments[0])

    sys.addaudithook(hear)
    yield names
    listening.clear()


def test_no_image_of_the_target_is_opened(tmp_path: Path, opened: list[str]) -> None:
    tree = write_tree(tmp_path / "signs")
    spoil(tree / "wood")
    opened.clear()
    search = small(tree, tmp_path / "search", target="wood")
    assert len(search.trials) == 2
    assert all(0 <= trial.value("cls") <= 1 for trial in search.trials)
    assert any(name.startswith(str(tree / "ink")) for name in opened)  # so that the next line can fail
    assert not [name for name in opened if name.startswith(str(tree / "wood"))]
    with pytest.raises(OpenDGError, match="wood/.* is broken"):
        small(tree, tmp_path / "other", target="ink")


def test_a_domain_that_plays_the_target_is_not_opened_in_training(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    spoil(tree / "chalk")  # the first after `wood`
    steps: list[int] = []
    with pytest.raises(OpenDGError, match="chalk/.* is broken"):  # when it is measured
        small(tree, tmp_path / "search", folds=1, report=lambda done, of, losses: steps.append(done))
    assert steps[-1] == QUICK["iterations"]  # it was trained by then


def test_every_source_is_held_out_with_classes_of_its_own(tree: Path, tmp_path: Path) -> None:
    search = small(tree, tmp_path / "search", trials=1)
    records = [json.loads(path.read_text()) for path in sorted((tmp_path / "search" / "records").iterdir())]
    assert [record["target"] for record in records] == ["chalk", "ink", "neon"]
    for record in records:
        assert set(record["sources"]) == {"chalk", "ink", "neon"} - {record["target"]}
        assert {*record["known"], *record["unknown"]} == {"bar", "cross", "dot"}  # never `ring`
        assert (record["n_known"], record["n_unknown"]) == (24, 12)
        assert record["scores"]["cls"]["oscr"] == search.trials[0].oscr["cls"][record["target"]]
    assert sorted(record["unknown"][0] for record in records) == ["bar", "cross", "dot"]


def test_a_fold_without_an_unknown_image_is_refused_before_training(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    fold = make_folds(small_protocol(("chalk", "ink", "neon")), None, 0)[1]
    shutil.rmtree(tree / fold.held / fold.unknown[0])
    with pytest.raises(OpenDGError, match=f"'{fold.held}' has no image of {fold.unknown[0]}, which would play"):
        small(tree, tmp_path / "search")
    assert not (tmp_path / "search").exists()


def test_a_class_of_one_source_domain_is_told_with_the_words_of_the_user(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    shutil.copytree(tree / "ink" / "dot", tree / "ink" / "a star")
    sentence = "Tuning holds out 'ink', .* class 'a star': make it unknown, with --unknown 'ring,a star'"
    with pytest.raises(OpenDGError, match=sentence):
        small(tree, tmp_path / "search")


# Searches


def test_a_killed_search_goes_on_to_the_same_end(tree: Path, tmp_path: Path) -> None:
    whole = small(tree, tmp_path / "whole")
    program = f"""
import os, signal
from opendg.bench.tune import tune

def report(done, of, losses):
    if done == 8:  # trial 1, its first fold measured, in the second
        os.kill(os.getpid(), signal.SIGKILL)

tune("erm", {str(tree)!r}, "wood", trials=2, out={str(tmp_path / "killed")!r}, report=report, **{QUICK!r})
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == -signal.SIGKILL
    records = tmp_path / "killed" / "records"
    before = {path.name: path.stat().st_mtime_ns for path in records.iterdir()}
    assert len(before) >= 3
    again = small(tree, tmp_path / "killed")
    assert again.trials == whole.trials
    assert {name: (records / name).stat().st_mtime_ns for name in before} == before  # none was done twice
    assert (tmp_path / "killed" / "best.toml").exists()
    assert not (tmp_path / "killed" / "runs").exists()


def test_more_trials_go_on_with_a_search_and_optuna_knows_them(tree: Path, tmp_path: Path) -> None:
    import optuna

    first = small(tree, tmp_path / "search", trials=1)
    more = small(tree, tmp_path / "search", trials=3)
    assert more.trials[:1] == first.trials
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "search" / "study.log"))
    )
    study = optuna.load_study(study_name="opendg", storage=storage)
    assert [trial.value for trial in study.trials] == [trial.value("cls") for trial in more.trials]
    assert study.best_trial.number == more.best("cls").number
    assert [trial.params for trial in study.trials] == [trial.values for trial in more.trials]


def test_tpe_learns_from_the_list_and_can_be_repeated(tree: Path, tmp_path: Path) -> None:
    found = [small(tree, tmp_path / name, trials=4, folds=1, sampler="tpe") for name in ("one", "two")]
    assert found[0].trials == found[1].trials
    listed = small(tree, tmp_path / "list", trials=4, folds=1)
    assert found[0].trials[:2] == listed.trials[:2]
    assert found[0].trials[2].values != listed.trials[2].values


def test_a_killed_search_that_is_asked_for_more_does_not_mix_two_settings(tree: Path, tmp_path: Path) -> None:
    """With four trials trial 2 is TPE's; with eight it is from the list, and no fold of the other counts for it."""
    killed = tmp_path / "killed"
    small(tree, killed, trials=4, sampler="tpe", folds=2)
    trials = json.loads((killed / "trials.json").read_text())
    (killed / "trials.json").write_text(json.dumps(trials[:2]))  # as if killed with one fold of trial 2 measured
    first, second = sorted((killed / "records").glob("002-*"))
    second.unlink()
    for record in (killed / "records").glob("003-*"):
        record.unlink()
    again = small(tree, killed, trials=8, sampler="tpe", folds=2)
    assert again.trials[2].values != trials[2]["values"]
    recipes = [json.loads(path.read_text())["recipe"] for path in (first, second)]
    assert [recipe["lr"] for recipe in recipes] == [again.trials[2].values["recipe.lr"]] * 2
    listed = small(tree, tmp_path / "list", trials=3, folds=2)
    assert again.trials[2] == listed.trials[2]


def test_settings_that_do_not_train_are_a_result(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_room, "LR", (1e20, 1e30))
    search = small(tree, tmp_path / "search", folds=1)
    assert search.trials[0].error is None
    assert "finite" in str(search.trials[1].error)
    assert search.best("cls").number == 0
    assert search.trials[1].value("cls") == float("-inf")


def test_what_is_no_fault_of_the_settings_stops_the_search(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    small(tree, tmp_path / "search", trials=1, folds=1)
    for domain in tree.iterdir():
        spoil(domain)
    with pytest.raises(OpenDGError, match="image"):
        small(tree, tmp_path / "search", trials=2, folds=1)
    assert len(Search.open(tmp_path / "search").trials) == 1


def test_a_trial_is_read_with_its_averaged_weights(tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1, average_over=0.5)
    (record,) = (tmp_path / "search" / "records").iterdir()
    assert json.loads(record.read_text())["weights"] == "averaged"


@pytest.mark.parametrize(("method", "searched"), [("erm", True), ("swad", False), ("metareg", False)])
def test_averages_are_searched_only_where_a_run_may_have_them(
    tree: Path, tmp_path: Path, method: str, searched: bool
) -> None:
    asked = {name: value for name, value in QUICK.items() if name != "iterations"}
    assert ("recipe.average_over" in prepare(method, str(tree), "wood", out=tmp_path, **asked).space) is searched


def test_pretrained_weights_may_be_kept_in_the_average(tree: Path, tmp_path: Path) -> None:
    """Only where a search is of averaged weights, and they start at something that is worth keeping."""
    start = tmp_path / "start.safetensors"
    save_file(build_backbone("convnet").net.state_dict(), start)
    given: dict[str, Any] = {"lr": 0.01, "schedule": "step", "average_over": 0.5, "folds": 1}
    search = small(tree, tmp_path / "search", trials=3, weights=str(start), **given)
    kept = [trial.values["recipe.average_start"] for trial in search.trials]
    assert kept[0] == 0
    assert 0 < kept[1] < 0.5
    trained = [json.loads(path.read_text()) for path in sorted((search.folder / "records").iterdir())]
    assert [record["recipe"]["average_start"] for record in trained] == kept
    assert read_config(search.folder / "best.toml").recipe["average_start"] in kept
    with pytest.raises(OpenDGError, match="Every setting that could be searched is fixed"):
        small(tree, tmp_path / "scratch", weights="none", **given)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The runs that a search starts to train."""
    from opendg.bench import tuner as room

    runs: list[Path] = []

    def noted(**asked: Any) -> Any:
        runs.append(asked["out"])
        return really(**asked)

    really = room.start
    monkeypatch.setattr(room, "start", noted)
    return runs


@pytest.fixture
def averaging(tmp_path: Path) -> dict[str, Any]:
    """A search in which the share of the starting weights is tried."""
    start = tmp_path / "start.safetensors"
    save_file(build_backbone("convnet").net.state_dict(), start)
    return {"weights": str(start), "schedule": "step", "average_over": 0.5, "folds": 2}


def test_shares_of_the_start_are_tried_on_one_training(
    tree: Path, tmp_path: Path, begun: list[Path], averaging: dict[str, Any]
) -> None:
    """And what it gives is what trainings of their own give, which a search that was killed in between makes."""
    given = averaging
    whole = small(tree, tmp_path / "whole", trials=8, **given)
    assert [trial.values["recipe.average_start"] for trial in whole.trials] == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0, 0.1]
    assert len({trial.values["recipe.lr"] for trial in whole.trials}) == 2
    assert len(begun) == 2 * 2  # two learning rates, two folds
    for number in (0, 1, 2, 4, 8):
        small(tree, tmp_path / "parts", trials=max(number, 1), **given)
    assert [trial.oscr for trial in Search.open(tmp_path / "parts").trials] == [trial.oscr for trial in whole.trials]
    assert not (tmp_path / "whole" / "runs").exists()


def test_a_training_that_fails_is_not_tried_with_other_shares(
    tree: Path, tmp_path: Path, begun: list[Path], averaging: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space_room, "LR", (1e20, 1e30))
    search = small(tree, tmp_path / "search", trials=15, **(averaging | {"folds": 1}))
    assert [trial.error is None for trial in search.trials] == [True] * 12 + [False] * 3
    assert len({trial.error for trial in search.trials[12:]}) == 1
    assert len(begun) == 3


def test_a_search_ends_when_every_combination_was_tried(tree: Path, tmp_path: Path) -> None:
    search = small(tree, tmp_path / "search", trials=8, folds=1, lr=0.01, average_over=0)
    assert [trial.values for trial in search.trials] == [{"recipe.schedule": name} for name in ("step", "cosine")]
    again = small(tree, tmp_path / "search", trials=8, folds=1, lr=0.01, average_over=0)
    assert again.trials == search.trials


def test_a_trial_is_the_run_to_be_in_fast_motion(tree: Path, tmp_path: Path) -> None:
    """9 / 2 as fast, on two domains of three and two classes of three: 4 / 9 of the images."""
    search = small(tree, tmp_path / "search", trials=1, folds=1, length=9, lr=0.01, average_over=0.5)
    (record,) = (search.folder / "records").iterdir()
    trial = json.loads(record.read_text())["recipe"]
    assert (trial["iterations"], trial["lr"], trial["average_over"]) == (2, 0.02, 0.5)
    best = read_config(search.folder / "best.toml").recipe
    assert (best["iterations"], best["lr"], best["average_over"]) == (9, 0.01, 0.5)
    assert "after 2 iterations at 2 times the learning rate" in (search.folder / "best.toml").read_text()
    trials = json.loads((search.folder / "trials.json").read_text())
    tuned = json.loads((search.folder / "tune.json").read_text())
    assert [kept["pace"] for kept in (json.loads(record.read_text()), trials[0], tuned)] == [2.0] * 3


def test_defaults_that_fast_motion_breaks_are_not_blamed_on_the_rate(tree: Path, tmp_path: Path) -> None:
    why = "At 59.3 times the learning rate the defaults do not train: give more --iterations, a smaller --for, or leave"
    hurried: dict[str, Any] = {"folds": 1, "lr": 1e18, "iterations": 3, "length": 400}
    with pytest.raises(OpenDGError, match=why):
        small(tree, tmp_path / "search", **hurried)
    with pytest.raises(OpenDGError, match="try a smaller --lr"):
        small(tree, tmp_path / "search", **(hurried | {"length": None, "lr": 1e20}))
    assert list(tmp_path.iterdir()) == []


def test_what_the_authors_recipe_sets_is_in_the_config(tree: Path, tmp_path: Path) -> None:
    """A run with it is one with --recipe authors, but for what was searched and given."""
    asked: dict[str, Any] = {"folds": 1, "trials": 1, "recipe": "authors", "batch": None, "augment": None}
    small(tree, tmp_path / "search", "cirl", **asked)
    config = read_config(tmp_path / "search" / "best.toml")
    _, beneath = config.beneath(None, {})
    authors, _, _ = plan("cirl", str(tree), ["wood"], backbone="convnet", recipe="authors")
    ours, _, _ = plan("cirl", str(tree), ["wood"], backbone="convnet", **beneath)
    assert ours.settings == authors.settings
    assert ours.recipe == authors.recipe  # trial 0 has the defaults, of the authors
    small(tree, tmp_path / "other", "medic++", **(asked | {"batch": 2}))
    recipe = read_config(tmp_path / "other" / "best.toml").recipe
    assert (recipe["batch"], recipe["iterations"]) == (2, 6000)


def test_fast_motion_of_gradient_flow_ends_where_the_run_does() -> None:
    """On a quadratic: a quarter of the steps at 4 times the rate goes as far as the run; at its rate it does not."""

    def end(steps: int, recipe: dict[str, Any]) -> tuple[float, float]:
        weight = average = 1.0
        decay = 1 - 1 / (recipe["average_over"] * steps)
        for t in range(1, steps + 1):
            weight -= recipe["lr"] * weight
            average += (1 - decay) / (1 - decay**t) * (weight - average)
        return weight, average

    slow = {"lr": 1e-4, "average_over": 0.5}
    assert end(2500, fast_motion(slow, 4)) == pytest.approx(end(10_000, slow), rel=2e-3)
    assert end(2500, slow) != pytest.approx(end(10_000, slow), rel=0.5)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"length": 8}, "--for: not given there, 8 here"),
        ({"target": "ink"}, "target: wood there, ink here"),
        ({"method": "medic"}, "method: erm there, medic here"),
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"split_seed": 1}, "split_seed: 0 there, 1 here"),
        ({"on_bad_image": "skip"}, "on_bad_image: error there, skip here"),
        ({"iterations": 3}, "iterations: 2 there, 3 here"),
        ({"augment": "photo"}, "augment: digits there, photo here"),
        ({"lr": 0.1}, "lr: 0.002 there, 0.1 here"),
        ({"lr": 0.002}, "lr: searched there, 0.002 here"),
        ({"folds": 2}, "folds: chalk without bar there, chalk without bar,ink without dot here"),
    ],
)
def test_a_folder_is_for_one_search(more: dict[str, Any], sentence: str, tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1)
    with pytest.raises(OpenDGError, match=rf"holds another search \({re.escape(sentence)}\): choose another --out"):
        small(tree, tmp_path / "search", **({"folds": 1} | more))


class Stopped(BaseException):
    """As Ctrl-C stops a search."""


def stop(done: int, of: int, losses: dict[str, float]) -> None:
    raise Stopped


def test_a_search_that_stops_before_its_first_record_leaves_nothing(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        small(tree, tmp_path / "deep" / "search", report=stop)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine" / "runs" / "wood-0").mkdir(parents=True)
    with pytest.raises(Stopped):
        small(tree, tmp_path / "mine", report=stop)
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["runs", "wood-0"]
    small(tree, tmp_path / "mine", trials=1, folds=1)
    assert (tmp_path / "mine" / "runs" / "wood-0").exists()


def test_a_killed_search_without_a_record_does_not_block_its_folder(tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1)
    (tmp_path / "search" / "trials.json").unlink()
    with pytest.raises(OpenDGError, match="holds another search"):  # it has a record
        small(tree, tmp_path / "search", trials=1, folds=1, lr=0.1)
    for record in (tmp_path / "search" / "records").iterdir():
        record.unlink()
    search = small(tree, tmp_path / "search", trials=1, folds=1, lr=0.1)
    assert search.facts["fixed"]["recipe.lr"] == 0.1
    assert Search.open(search.folder) == search


def test_a_record_that_is_cut_short_is_measured_anew(tree: Path, tmp_path: Path) -> None:
    search = small(tree, tmp_path / "search", trials=1, folds=1)
    (search.folder / "trials.json").unlink()
    (record,) = (search.folder / "records").iterdir()
    record.write_text(record.read_text()[:100])
    assert small(tree, tmp_path / "search", trials=1, folds=1).trials == search.trials


def test_another_search_at_work_is_left_alone(tree: Path, tmp_path: Path) -> None:
    """It may have no record yet."""
    begun = tmp_path / "search" / "runs" / "000-chalk"
    begun.mkdir(parents=True)
    with FileLock(tmp_path / "search" / ".lock"), pytest.raises(OpenDGError, match="Another process is tuning"):
        small(tree, tmp_path / "search")
    assert begun.exists()


def test_folds_that_were_measured_before_a_kill_count_as_done(tree: Path, tmp_path: Path) -> None:
    """The end of the bar is the end of the search."""
    whole, seen = small(tree, tmp_path / "search", trials=1), list[tuple[int, int]]()
    (whole.folder / "trials.json").unlink()
    (whole.folder / "records" / "000-neon.json").unlink()
    small(tree, tmp_path / "search", trials=1, report=lambda step, total, _: seen.append((step, total)))
    assert seen == [(6, 6)], "three folds of two iterations, of which one was lacking"


def test_two_at_once_in_a_folder_are_refused(tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1)
    with FileLock(tmp_path / "search" / ".lock"), pytest.raises(OpenDGError, match="Another process is tuning"):
        small(tree, tmp_path / "search", folds=1)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"score": "bcls"}, "The score 'bcls' cannot be read from erm .*: choose one of cls"),
        ({"score": "bcl"}, "no score 'bcl': did you mean 'bcls'"),
        ({"sampler": "lists"}, "no sampler 'lists': did you mean 'list'"),
        ({"trials": 0}, "--trials 0 is out of range"),
        ({"lanes": 0}, "--lanes 0 is out of range: give 1 or more"),
        ({"length": 1}, "--for 1 is less than --iterations 2, .*: give --iterations 1 or fewer, or leave --for out"),
        ({"length": 500, "iterations": 1000}, r"--for 500 is less than --iterations 1000 \(the default\), .*"),
        ({"length": 0}, "--for 0 is out of range: it is the iterations of the run to be, 1 or more"),
        ({"method": "medic", "sources": ["ink", "neon"]}, "MEDIC trains on 2 or more domains, and tuning holds one"),
        ({"lr": 0.1, "schedule": "step", "average_over": 0.0}, "Every setting that could be searched is fixed"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    more: dict[str, Any], sentence: str, tree: Path, tmp_path: Path
) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        small(tree, tmp_path / "search", **({"folds": 1} | more))


def test_without_optuna_there_is_a_sentence(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OpenDGError, match="needs Optuna, which is not installed: try pip install 'opendg\\[tune\\]'"):
        small(tree, tmp_path / "search")


# Configs


def test_a_config_comes_back_as_it_went(tmp_path: Path) -> None:
    config = Config("medic", {"lr": 1e-05, "schedule": "cosine", "batch": 4}, {"alpha": 0.02, "shared": True})
    write_config(tmp_path / "c.toml", config, ["a note", "and another"])
    assert read_config(tmp_path / "c.toml") == config
    assert (tmp_path / "c.toml").read_text().startswith("# a note\n# and another\n")


def test_what_is_given_wins_over_the_config() -> None:
    config = Config("medic", {"lr": 0.1, "batch": 4}, {"alpha": 0.02, "beta": 2.0})
    method, asked = config.beneath(None, {"lr": 0.3, "batch": None, "chosen": {"beta": "1"}, "seed": 0})
    assert method == "medic"
    assert asked == {"lr": 0.3, "batch": 4, "chosen": {"alpha": 0.02, "beta": "1"}, "seed": 0}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("method = 'medic'\nlr = 0.1", "no key 'lr' in the config"),
        ("method = 'medic'\n[recipes]\nlr = 0.1", "no key 'recipes' in the config .*: did you mean 'recipe'"),
        ("method = 'medic'\n[recipe]\nschedul = 'step'", "no part of the recipe 'schedul'.*: did you mean 'schedule'"),
        ("method = 'medic'\n[settings]\nalhpa = 1.0", "no setting 'alhpa' of medic: did you mean 'alpha'"),
        ("method = 'medik'", "no method 'medik': did you mean 'medic'"),
        ("[recipe]\nlr = 0.1", "does not name its method"),
        ("method = 'medic'\nrecipe = 3", "is not a table"),
        ("method = 'medic'\n[recipe]\naverage = 0.9995", "has averaged weights by a decay .*: use the version of"),
        ("method = 'medic'\nsettings = 3", "The settings in the config .* are not a table"),
        ("method = 'medic'\n[recipe]\nlr = 'fast'", "lr is 'fast' in .*: a number was expected"),
        ("method = 'medic'\n[recipe]\nlr = true", "lr is True"),
        ("method = 'medic'\n[recipe]\nlr = -1.0", "--lr -1.0 .*must be above 0"),
        ("method = ", "is not valid TOML"),
    ],
)
def test_a_config_with_a_mistake_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(OpenDGError, match=sentence):
        read_config(tmp_path / "c.toml")


def test_a_config_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="cannot be read"):
        read_config(tmp_path / "c.toml")
    with pytest.raises(OpenDGError, match="is for medic, not for erm"):
        Config("medic").beneath("erm", {})


# The command line


def test_no_folder_lies_below_a_file(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["tune", "erm", "--data", str(tree), "--target", "wood", *FLAGS]
    assert "could not be written" in refused(*words, "--out", str(tmp_path / "file" / "deep" / "x"))


def test_a_digit_that_is_no_number_is_a_name(tree: Path, tmp_path: Path) -> None:
    words = ["tune", "erm", "--data", str(tree), "--target", "wood", "--known", "\u00b2", "--out", str(tmp_path / "x")]
    with pytest.raises(OpenDGError, match="no class '\u00b2'"):
        raise CliRunner().invoke(app, words).exception or AssertionError


def test_the_table_says_that_the_target_was_not_opened(tree: Path, tmp_path: Path) -> None:
    words = ["tune", "erm", "--data", str(tree), "--target", "wood", *FLAGS, "--trials", "1", "--iterations", "2"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "search")])
    assert done.exit_code == 0, done.output
    assert "The target wood was not opened." in done.stdout
    assert all(name in done.stdout for name in DOMAINS)
    assert "Next: opendg train --config" in done.stdout
    assert "learning rates" not in done.stdout
    assert "--split-seed" not in done.stdout
    assert done.stderr == "" or "from scratch" not in done.stderr


def test_what_was_asked_for_is_in_the_next_command_and_haste_is_said(tree: Path, tmp_path: Path) -> None:
    words = ["tune", "erm", "--data", str(tree), "--target", "wood", *FLAGS, "--trials", "1", "--iterations", "2"]
    words += ["--for", "9", "--folds", "1", "--split-seed", "3", "--on-bad-image", "skip", "--known", "bar,cross,dot"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "search")])
    assert done.exit_code == 0, done.output
    (next_,) = [line for line in done.stdout.splitlines() if line.startswith("Next:")]
    assert "--known bar,cross,dot --unknown ring --split-seed 3 --backbone convnet --on-bad-image skip" in next_
    assert "trained at 2 times these learning rates" in done.stdout
    (caution,) = [line for line in done.stderr.splitlines() if "from scratch" in line]
    assert caution.startswith("--for trains at 2 times the learning rate")
