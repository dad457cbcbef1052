"""The one setting for all targets: how it is chosen, from which searches, and where it is written."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from opendg.bench.combine import NOTE, Place, find_searches, ranks
from opendg.bench.combine import combine as combine_searches
from opendg.bench.search import FORMAT, Trial
from opendg.cli import app
from opendg.errors import OpenDGError
from opendg.runs.directory import Run
from opendg.training.config import read_config
from tests.bench.parts import FLAGS, refused

pytest.importorskip("optuna", reason="needs the extra opendg[tune]")


def combine(folders: list[Path], out: Path, score: str | None = None) -> list[Place]:
    return combine_searches(find_searches(folders), out, score)


def written(folder: Path, target: str, values: list[float | None], **facts: Any) -> Path:
    """A search as `tune` leaves it, with the given OSCR of each trial; None is one that failed."""
    said = {
        "format": FORMAT, "method": "medic", "dataset": "signs", "targets": [target], "known": ["bar"], "seed": 0,
        "sources": ["x"], "backbone": "convnet", "weights": "none", "sampler": "list", "space": {},
        "defaults": {"recipe.iterations": 500}, "fixed": {"recipe.batch": 4}, "score": "bcls", "folds": [{"held": "x"}],
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


def test_of_the_shares_on_one_training_the_best_is_ranked(tmp_path: Path) -> None:
    """Trials 0 to 2 are one training, 3 and 4 another. Ranked one by one, trial 1 would be first: 5/3 against 2."""
    folders = [
        written(tmp_path / "a", "photo", [0.59, 0.62, 0.61, 0.58, 0.50]),
        written(tmp_path / "b", "sketch", [0.10, 0.52, 0.51, 0.90, 0.50]),
        written(tmp_path / "c", "art", [0.10, 0.52, 0.51, 0.53, 0.20]),
    ]
    for folder in folders:
        trials = json.loads((folder / "trials.json").read_text())
        for trial in trials:
            trial["values"] |= {"recipe.average_start": 0.1 * trial["number"], "recipe.lr": 0.5 + trial["number"] // 3}
        (folder / "trials.json").write_text(json.dumps(trials))
    places = combine(folders, tmp_path / "best.toml")
    assert [place.trial.number for place in places] == [3, 1]
    assert places[0].ranks == {"photo": 2, "sketch": 1, "art": 1}
    assert places[1].ranks == {"photo": 1, "sketch": 2, "art": 2}
    assert tomllib.loads((tmp_path / "best.toml").read_text())["recipe"]["lr"] == 1.5


def test_the_budget_counts_trainings_where_trials_share_them(tmp_path: Path) -> None:
    folders = [written(tmp_path / name, name, [0.1, 0.2, 0.3, 0.4]) for name in ("a", "b")]
    for folder in folders:
        trials = json.loads((folder / "trials.json").read_text())
        for trial in trials:
            trial["values"] |= {"recipe.average_start": 0.1 * trial["number"], "recipe.lr": 0.5 + trial["number"] // 3}
        (folder / "trials.json").write_text(json.dumps(trials))
    combine(folders, tmp_path / "best.toml")
    spent = "4 trials for each target, on 2 trainings of 500 iterations in every fold"
    assert spent in (tmp_path / "best.toml").read_text()


@pytest.mark.parametrize(("decay", "said"), [(0.0, None), (0.9995, "Trial 0 has averaged weights by a decay")])
def test_older_searches_give_a_config_that_can_be_used_or_none(tmp_path: Path, decay: float, said: str | None) -> None:
    folders = [written(tmp_path / name, name, [0.2, 0.1]) for name in ("a", "b")]
    for folder in folders:
        trials = json.loads((folder / "trials.json").read_text())
        for trial in trials:
            trial["values"]["recipe.average"] = decay
        (folder / "trials.json").write_text(json.dumps(trials))
    out = tmp_path / "best.toml"
    if said is None:
        combine(folders, out)
        assert "average" not in read_config(out).recipe
    else:
        with pytest.raises(OpenDGError, match=said):
            combine(folders, out)
        assert not out.exists()


def test_the_budget_says_when_trials_were_in_fast_motion(tmp_path: Path) -> None:
    """Also where tune.json does not name the pace, as those of before."""
    folders = [written(tmp_path / name, name, [0.1], fixed={"recipe.iterations": 2000}) for name in ("a", "b")]
    assert [search.trials[0].pace for search in find_searches(folders)] == [1.0, 1.0]  # as the trials say
    combine(folders, tmp_path / "best.toml")
    assert "500 iterations at 4 times the learning rate in every fold; folds" in (tmp_path / "best.toml").read_text()


def test_searches_that_do_not_name_their_pace_can_be_read() -> None:
    kept = Path(__file__).parents[2] / "results" / "pacs-resnet18" / "tune" / "medic"
    searches = find_searches([kept])
    assert [search.folder.name for search in searches] == ["art_painting", "cartoon", "photo", "sketch"]
    assert {search.facts["pace"] for search in searches} == {4.0}
    assert {trial.pace for search in searches for trial in search.trials} == {4.0}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    from scipy.stats import rankdata

    assert ranks([float(v) for v in values]) == rankdata([-v for v in values]).tolist()


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        ({"seed": 1}, r"differ \(seed: 1 and 0\)"),
        ({"method": "erm"}, r"differ \(method: erm and medic\)"),
        ({"weights": "imagenet"}, r"differ \(weights: imagenet and none\)"),
        (
            {"defaults": {"recipe.iterations": 500, "recipe.augment": "photo"}},
            r"differ \(augment: photo and not given\)",
        ),
        ({"fixed": {}}, r"differ \(batch: not given and 4\)"),
        ({"score": "cls"}, r"went by different scores \(bcls, cls\): choose one with --score"),
        ({"sampler": "tpe"}, "chose its own settings"),
        ({"targets": ["photo"]}, "same target"),
    ],
)
def test_searches_that_differ_are_not_combined(second: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", "photo", [0.1]), written(tmp_path / "b", "sketch", [0.1], **second)]
    with pytest.raises(OpenDGError, match=sentence):
        combine(folders, tmp_path / "best.toml")
    assert not (tmp_path / "best.toml").exists()


def test_searches_by_different_scores_are_combined_by_one_that_is_named(tmp_path: Path) -> None:
    folders = [written(tmp_path / "a", "photo", [0.1, 0.2]), written(tmp_path / "b", "ink", [0.1, 0.2], score="cls")]
    assert combine(folders, tmp_path / "best.toml", score="cls")[0].trial.number == 0


def test_other_folders_and_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="is no search"):
        combine([tmp_path], tmp_path / "best.toml")
    folders = [written(tmp_path / name, name, [0.1]) for name in ("a", "b")]
    with pytest.raises(OpenDGError, match="'energy' was not measured"):
        combine(folders, tmp_path / "best.toml", score="energy")


@pytest.mark.parametrize("text", ["[]", "{}", '{"format": "opendg-tune-1", "me', f'{{"format": "{FORMAT}"}}', "3"])
def test_a_damaged_tune_json_is_named(text: str, tmp_path: Path) -> None:
    (written(tmp_path / "a", "photo", [0.1]) / "tune.json").write_text(text)
    with pytest.raises(OpenDGError, match="a/tune.json' is damaged: tune anew, in another folder"):
        find_searches([tmp_path / "a"])


def test_a_search_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="not a search of this version"):
        find_searches([written(tmp_path / "a", "photo", [0.1], format="opendg-tune-0")])


@pytest.mark.parametrize("text", ['[{"number": 0, "val', "{}", "3", "[3]", '[{"number": 0}]', '[{"number": 7}]'])
def test_a_damaged_trials_json_is_named(text: str, tmp_path: Path) -> None:
    (written(tmp_path / "a", "photo", [0.1]) / "trials.json").write_text(text)
    with pytest.raises(OpenDGError, match="a/trials.json' is damaged: remove it, and the same `opendg tune` makes it"):
        find_searches([tmp_path / "a"])


# The command line


def ask(*words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_from_a_search_for_each_target_to_a_trained_run(tree: Path, tmp_path: Path) -> None:
    budget = ["--trials", "2", "--iterations", "2", "--folds", "1"]
    places = ["--data", str(tree), "--each-target", "ink,wood", "--out", str(tmp_path / "tune")]
    said = ask("tune", "medic", *places, *FLAGS, *budget, "--set", "beta=0.5")
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
    assert run.config["settings"]["alpha"] == values["settings.alpha"]
    assert run.config["settings"]["beta"] == 0.5


def test_trials_that_failed_are_null_in_json(tmp_path: Path) -> None:
    folders = [written(tmp_path / name, name, [0.5, None]) for name in ("photo", "sketch")]
    done = CliRunner().invoke(app, ["tune", "--combine", *map(str, folders), "--json"])
    assert "Infinity" not in done.stdout
    assert [trial["mean_oscr"] for trial in json.loads(done.stdout)["trials"]] == [0.5, None]
    assert "inf" not in CliRunner().invoke(app, ["tune", "--combine", *map(str, folders)]).stdout


def test_a_folder_that_holds_searches_stands_for_them(tmp_path: Path) -> None:
    folders = [written(tmp_path / "medic" / name, name, [0.5, 0.6]) for name in ("photo", "sketch")]
    (tmp_path / "medic" / "notes").mkdir()
    said = ask("tune", "--combine", str(tmp_path / "medic"))
    assert Path(said["config"]) == tmp_path / "medic" / "best.toml"
    assert said == ask("tune", "--combine", *map(str, folders))


def test_one_search_keeps_its_own_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one search, nor two from inside of one, are written in the place of its own settings."""
    folder, other = (written(tmp_path / "medic" / name, name, [0.5]) for name in ("photo", "sketch"))
    (folder / "best.toml").write_text("its own")
    monkeypatch.chdir(folder)
    assert "name two or more to combine" in refused("tune", "--combine", ".")
    assert "is a search with settings of its own: choose another --out" in refused(
        "tune", "--combine", ".", str(other), "--out", "best.toml"
    )
    assert Path(ask("tune", "--combine", ".", str(other))["config"]) == tmp_path / "medic" / "best.toml"
    assert (folder / "best.toml").read_text() == "its own"


def test_combine_takes_folders_and_little_else(tmp_path: Path) -> None:
    folders = [str(written(tmp_path / name, name, [0.5])) for name in ("a", "b")]
    said = refused("tune", "--combine", *folders, "--data", "nonsense", "--trials", "8", "--score", "cls")
    assert said.startswith("--data and --trials would be without effect: searches are combined as they were asked for")
    assert refused("tune", "--combine").startswith("--combine needs folders of searches")
    said = refused("tune", "--combine", *folders, "--out", str(tmp_path / "a" / "tune.json" / "x" / "best.toml"))
    assert "could not be written" in said


def test_all_targets_are_checked_before_the_first_search(tree: Path, tmp_path: Path) -> None:
    words = ["tune", "erm", "--data", str(tree), "--out", str(tmp_path / "tune"), *FLAGS, "--iterations", "2"]
    assert "no domain 'wod' in signs: did you mean 'wood'" in refused(*words, "--each-target", "ink,wod")
    assert "The target 'ink' is named twice" in refused(*words, "--each-target", "ink,ink")
    assert refused(*words, "--each-target", "all", "--target", "ink") == "Give --target or --each-target, not both."
    assert not (tmp_path / "tune").exists()


def test_one_target_of_each_is_a_search_like_others(tree: Path, tmp_path: Path) -> None:
    words = ["erm", "--data", str(tree), "--out", str(tmp_path / "tune"), *FLAGS, "--iterations", "2"]
    said = ask("tune", *words, "--trials", "1", "--folds", "1", "--each-target", "ink")
    assert Path(said["config"]) == tmp_path / "tune" / "ink" / "best.toml"
