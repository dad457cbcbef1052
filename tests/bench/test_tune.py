"""Tuning: what it opens, what it measures, how it goes on after a kill, and the one setting for all targets."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from opendg.bench import space as space_room
from opendg.bench.combine import NOTE, combine, ranks
from opendg.bench.folds import make_folds
from opendg.bench.search import FORMAT, Search, Trial
from opendg.bench.space import METHODS as SPACES
from opendg.bench.space import Choice, Range, candidates, fast_motion, space_of
from opendg.bench.tune import tune
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.methods.registry import METHODS
from opendg.protocol import Protocol
from opendg.runs.directory import Run
from opendg.training.config import Config, read_config, write_config
from tests.tiny import DOMAINS, write_tree

pytest.importorskip("optuna", reason="needs the extra opendg[tune]")

QUICK: dict[str, Any] = {
    "unknown": ["ring"], "backbone": "convnet", "augment": "digits", "batch": 2, "device": "cpu", "iterations": 2,
}  # fmt: skip
FLAGS = ["--unknown", "ring", "--backbone", "convnet", "--augment", "digits", "--batch", "2", "--device", "cpu"]


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
    with pytest.raises(OpenDGError, match="chalk/.* is broken"):  # when it is measured
        small(tree, tmp_path / "search", folds=1)
    assert Run.open(tmp_path / "search" / "runs" / "000-chalk").finished  # it was trained by then


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


# Folds


def make_small(sources: tuple[str, ...], known: tuple[str, ...] = ("bar", "cross", "dot")) -> Protocol:
    return Protocol("signs", "shared", sources, ("wood",), known, ("ring",), (known,) * len(sources), known)


@given(st.integers(2, 6), st.integers(3, 30), st.integers(0, 5))
def test_folds_hold_out_domains_and_classes(sources: int, classes: int, seed: int) -> None:
    protocol = make_small(tuple(f"d{i}" for i in range(sources)), tuple(f"c{i:02}" for i in range(classes)))
    folds = make_folds(protocol, None, seed)
    assert sorted(fold.held for fold in folds) == sorted(protocol.sources)
    for fold in folds:
        assert set(fold.sources) == set(protocol.sources) - {fold.held}
        assert set(fold.known) | set(fold.unknown) == set(protocol.known)
        assert not set(fold.known) & set(fold.unknown)
        assert len(fold.unknown) == max(1, classes // 3)
        assert len(fold.known) >= 2
    assert len({fold.unknown for fold in folds[:3]}) == min(3, sources)
    if sources == 3 and classes % 3 == 0:
        assert sorted(name for fold in folds for name in fold.unknown) == sorted(protocol.known)
    assert make_folds(protocol, 1, seed) == folds[:1]


def test_searches_of_one_fold_hold_out_every_domain_and_class_between_them() -> None:
    """Else one setting for all targets would rest on how one domain does."""
    domains, known = ("art", "cartoon", "photo", "sketch"), ("a", "b", "c", "d", "e", "f")
    folds = []
    for target in domains:
        sources = tuple(name for name in domains if name != target)
        protocol = Protocol("pacs", "shared", sources, (target,), known, ("g",), (known,) * 3, known)
        folds += make_folds(protocol, 1, 0)
    assert [fold.held for fold in folds] == ["cartoon", "photo", "sketch", "art"]
    assert {name for fold in folds for name in fold.unknown} == set(known)


@pytest.mark.parametrize(
    ("protocol", "count", "sentence"),
    [
        (make_small(("ink",)), None, "there are 1 sources and 3 known classes"),
        (make_small(("ink", "neon"), ("bar", "dot")), None, "there are 2 sources and 2 known classes"),
        (make_small(("ink", "neon")), 3, "--folds 3 is out of range: there are 2 source domains"),
    ],
)
def test_folds_that_cannot_be_are_refused(protocol: Protocol, count: int | None, sentence: str) -> None:
    with pytest.raises(OpenDGError, match=sentence):
        make_folds(protocol, count, 0)


def test_a_fold_without_an_unknown_image_is_refused_before_training(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "signs")
    fold = make_folds(make_small(("chalk", "ink", "neon")), None, 0)[1]
    shutil.rmtree(tree / fold.held / fold.unknown[0])
    with pytest.raises(OpenDGError, match=f"'{fold.held}' has no image of {fold.unknown[0]}, which would play"):
        small(tree, tmp_path / "search")
    assert not (tmp_path / "search").exists()


# The search space


def test_every_setting_that_is_searched_exists_and_its_default_lies_inside() -> None:
    for method, space in SPACES.items():
        defaults = {field.name: field.default for field in fields(METHODS[method].Config)}
        for name, values in space.items():
            assert name in defaults, f"{method} has no setting {name}"
            assert values.with_(defaults[name]) == values, f"{method}: {name} {defaults[name]} is not in its range"
            assert isinstance(defaults[name], float), f"{method}: {name} is searched as a float"


@given(st.floats(0, 1), st.floats(1e-4, 10), st.floats(1.01, 1e4), st.booleans())
def test_ranges_stay_inside(share: float, low: float, factor: float, log: bool) -> None:
    values = Range(low, low * factor, log)
    assert values.low <= values.at(share) <= values.high
    assert values.at(0) == pytest.approx(low, rel=1e-2)
    assert values.at(1) == pytest.approx(values.high, rel=1e-2)


def test_candidates_are_the_defaults_then_spread_points() -> None:
    defaults = {"recipe.lr": 1e-4, "recipe.schedule": "step", "recipe.average": 0.0, "settings.alpha": 0.01}
    space = space_of("medic++", defaults)
    listed = candidates(space, defaults, 9, seed=0)
    assert listed[0] == defaults
    assert candidates(space, defaults, 4, seed=0) == listed[:4]
    assert candidates(space, defaults, 9, seed=1) != listed
    rates = sorted(values["recipe.lr"] for values in listed[1:])
    assert rates[0] >= 1e-4 / 3
    assert rates[-1] <= 5e-4
    halves = [sum(rate < 1.29e-4 for rate in rates), sum(rate >= 1.29e-4 for rate in rates)]
    assert min(halves) >= 3  # evenly over the logarithm, though they be few
    assert {values["recipe.schedule"] for values in listed} == {"step", "cosine"}


def test_what_is_given_is_not_searched() -> None:
    defaults = {"recipe.lr": 3e-4, "recipe.schedule": "constant", "recipe.average": 0.0, "settings.weight": 1.0}
    space = space_of("coral", defaults, fixed=["recipe.lr", "settings.weight"])
    assert space == {"recipe.schedule": Choice(("step", "cosine", "constant")), "recipe.average": Choice((0.0, 0.9995))}


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


def test_a_trial_is_read_with_its_averaged_weights(tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1, average=0.9)
    (record,) = (tmp_path / "search" / "records").iterdir()
    assert json.loads(record.read_text())["weights"] == "averaged"


def test_a_trial_is_the_run_to_be_in_fast_motion(tree: Path, tmp_path: Path) -> None:
    search = small(tree, tmp_path / "search", trials=1, folds=1, length=8, lr=0.01, average=0.9)
    (record,) = (search.folder / "records").iterdir()
    trial = json.loads(record.read_text())["recipe"]
    assert (trial["iterations"], trial["lr"], trial["average"]) == (2, 0.04, pytest.approx(0.9**4))
    best = read_config(search.folder / "best.toml").recipe
    assert (best["iterations"], best["lr"], best["average"]) == (8, 0.01, 0.9)
    assert "after 2 iterations at 4 times the learning rate" in (search.folder / "best.toml").read_text()


def test_fast_motion_of_gradient_flow_ends_where_the_run_does() -> None:
    """On a quadratic: a quarter of the steps at 4 times the rate goes as far as the run; at its rate it does not."""

    def end(steps: int, recipe: dict[str, Any]) -> tuple[float, float]:
        weight = average = 1.0
        for _ in range(steps):
            weight -= recipe["lr"] * weight
            average = recipe["average"] * average + (1 - recipe["average"]) * weight
        return weight, average

    slow = {"lr": 1e-3, "average": 0.999}
    assert end(250, fast_motion(slow, 4)) == pytest.approx(end(1000, slow), rel=2e-3)
    assert end(250, slow) != pytest.approx(end(1000, slow), rel=0.5)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"length": 8}, "its fixed differs"),
        ({"seed": 1}, "holds another search .its (folds|seed) differs"),
        ({"iterations": 3}, "its defaults differs"),
        ({"lr": 0.1}, "its defaults differs"),
    ],
)
def test_a_folder_is_for_one_search(more: dict[str, Any], sentence: str, tree: Path, tmp_path: Path) -> None:
    small(tree, tmp_path / "search", trials=1, folds=1)
    with pytest.raises(OpenDGError, match=sentence):
        small(tree, tmp_path / "search", **({"folds": 1} | more))


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
        ({"length": 1}, "--for 1 is less than --iterations 2"),
        ({"method": "medic", "sources": ["ink", "neon"]}, "MEDIC trains on 2 or more domains, and tuning holds one"),
        ({"lr": 0.1, "schedule": "step", "average": 0.0}, "Every setting that could be searched is fixed"),
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


# One setting for all targets


def written(folder: Path, target: str, values: list[float | None], **facts: Any) -> Path:
    """A search as `tune` leaves it, with the given OSCR of each trial; None is one that failed."""
    said = {
        "format": FORMAT, "method": "medic", "dataset": "signs", "targets": [target], "known": ["bar"], "seed": 0,
        "backbone": "convnet", "sampler": "list", "space": {}, "defaults": {"recipe.iterations": 500},
        "fixed": {"recipe.batch": 4}, "score": "bcls", "folds": [{"held": "x"}],
    } | facts  # fmt: skip
    trials = [
        Trial(i, {"recipe.lr": 0.1 + i, "settings.alpha": 0.5}, {}, "diverged")
        if value is None
        else Trial(i, {"recipe.lr": 0.1 + i, "settings.alpha": 0.5}, {"bcls": {"x": value}, "cls": {"x": -value}})
        for i, value in enumerate(values)
    ]
    folder.mkdir(parents=True)
    (folder / "tune.json").write_text(json.dumps(said))
    (folder / "trials.json").write_text(json.dumps([asdict(trial) for trial in trials]))
    return folder


def test_the_one_setting_has_the_best_mean_rank(tmp_path: Path) -> None:
    """Trial 1 has the best mean OSCR, thanks to one target; trial 2 the best mean rank."""
    folders = [
        written(tmp_path / "a", "photo", [0.50, 0.99, 0.60, 0.55]),
        written(tmp_path / "b", "sketch", [0.50, 0.40, 0.60, 0.55]),
        written(tmp_path / "c", "art", [0.50, 0.40, 0.60, None]),
    ]
    places = combine(folders, tmp_path / "best.toml")
    assert [place.trial.number for place in places] == [2, 1, 0, 3]
    assert places[0].ranks == {"photo": 2, "sketch": 1, "art": 1}
    assert places[0].mean_rank == pytest.approx(4 / 3)
    assert places[3].ranks == {"photo": 3, "sketch": 2, "art": 4}  # what failed is last
    text = (tmp_path / "best.toml").read_text()
    assert all(sentence in text for sentence in NOTE.rstrip(".").split(". "))
    spent = "Budget: 4 trials for each target, each trained for 500 iterations in every fold; folds of all targets: 3."
    assert f"# {spent}\n" in text
    assert tomllib.loads(text) == {
        "method": "medic", "recipe": {"batch": 4, "lr": 2.1}, "settings": {"alpha": 0.5},
    }  # fmt: skip
    assert combine(folders, tmp_path / "cls.toml", score="cls")[0].trial.number == 0  # the order is turned round


def test_the_budget_says_when_trials_were_in_fast_motion(tmp_path: Path) -> None:
    combine([written(tmp_path / "a", "photo", [0.1], fixed={"recipe.iterations": 2000})], tmp_path / "best.toml")
    assert "500 iterations at 4 times the learning rate in every fold; folds" in (tmp_path / "best.toml").read_text()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    from scipy.stats import rankdata

    assert ranks([float(v) for v in values]) == rankdata([-v for v in values]).tolist()


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ({"seed": 1}, "differ in their seed"),
        ({"method": "erm"}, "differ in their method"),
        ({"sampler": "tpe"}, "chose its own settings"),
        ({"targets": ["photo"]}, "same target"),
    ],
)
def test_searches_that_differ_are_not_combined(second: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", "photo", [0.1]), written(tmp_path / "b", "sketch", [0.1], **second)]
    with pytest.raises(OpenDGError, match=sentence):
        combine(folders, tmp_path / "best.toml")
    assert not (tmp_path / "best.toml").exists()


def test_other_folders_and_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="is no search"):
        combine([tmp_path], tmp_path / "best.toml")
    with pytest.raises(OpenDGError, match="'energy' was not measured"):
        combine([written(tmp_path / "a", "photo", [0.1])], tmp_path / "best.toml", score="energy")


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
        ("method = 'medic'\n[recipe]\nlr = 'fast'", "lr is 'fast' in .*: int or float was expected"),
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


def ask(*words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_from_a_search_for_each_target_to_a_trained_run(tree: Path, tmp_path: Path) -> None:
    budget = ["--trials", "2", "--iterations", "2", "--folds", "1"]
    places = ["--data", str(tree), "--each-target", "ink,wood", "--out", str(tmp_path / "tune")]
    said = ask("tune", "medic", *places, *FLAGS, *budget, "--set", "alpha=0.05")
    assert said["note"] == NOTE
    assert Path(said["config"]) == tmp_path / "tune" / "best.toml"
    folders = [str(tmp_path / "tune" / name) for name in ("ink", "wood")]
    assert ask("tune", "--combine", *folders)["best"] == said["best"]
    values = said["values"]
    places = ["--data", str(tree), "--target", "wood", "--out", str(tmp_path / "run"), "--track", "none"]
    ask("train", "--config", said["config"], *places, *FLAGS[:4], "--device", "cpu", "--iterations", "2")
    run = Run.open(tmp_path / "run")
    assert run.config["method"] == "medic"
    assert run.config["recipe"]["lr"] == values["recipe.lr"]
    assert run.config["recipe"]["batch"] == 2
    assert run.config["settings"]["alpha"] == 0.05
    assert run.config["settings"]["beta"] == values["settings.beta"]


def test_trials_that_failed_are_null_in_json(tmp_path: Path) -> None:
    folders = [written(tmp_path / name, name, [0.5, None]) for name in ("photo", "sketch")]
    done = CliRunner().invoke(app, ["tune", "--combine", *map(str, folders), "--json"])
    assert "Infinity" not in done.stdout
    assert [trial["mean_oscr"] for trial in json.loads(done.stdout)["trials"]] == [0.5, None]
    assert "inf" not in CliRunner().invoke(app, ["tune", "--combine", *map(str, folders)]).stdout


def test_no_folder_lies_below_a_file(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    search = ["tune", "erm", "--data", str(tree), "--target", "wood", *FLAGS]
    combined = ["tune", "--combine", str(written(tmp_path / "a", "photo", [0.1]))]
    for words in (search, combined):
        done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "file" / "deep" / "x")])
        assert isinstance(done.exception, OpenDGError)
        assert "could not be written" in str(done.exception)


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
