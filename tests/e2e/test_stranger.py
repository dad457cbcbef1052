"""A run from a stranger: opening it runs nothing of theirs and touches nothing of the user's."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import opendg as library
from opendg.errors import OpenDGError
from tests.e2e.conftest import Command
from tests.e2e.test_bad_input import refused
from tests.tiny import quick


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "exploded"


@pytest.fixture(scope="module")
def short(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is resumed from its start in no time."""
    out = tmp_path_factory.mktemp("short") / "run"
    return library.train("medic", data=str(tree), out=out, **quick(iterations=2, average_over=0.5)).path


@pytest.fixture
def run(short: Path, tmp_path: Path) -> Path:
    return shutil.copytree(short, tmp_path / "run")


def use(opendg: Command, run: Path, tree: Path) -> list[Any]:
    """Everything that a user may do with a finished run, and with one that is not."""
    said = [opendg("evaluate", run), opendg("predict", run, tree / "ink" / "bar"), opendg("train", "--resume", run)]
    (run / "weights.safetensors").unlink(missing_ok=True)
    return [*said, opendg("train", "--resume", run)]


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_the_bomb_works(mark: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "weights.safetensors", "averaged.safetensors", "source-val-averaged.npz", "target-averaged.npz", "run.json",
        "manifest.json", "log.jsonl", "checkpoints/step-00000007.safetensors", "checkpoints/step-00000007.json",
    ],
)  # fmt: skip
def test_pickles_under_the_names_of_a_run(opendg: Command, run: Path, tree: Path, mark: Path, name: str) -> None:
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(pickle.dumps(Bomb(mark)))
    said = use(opendg, run, tree)
    assert all(one.code in (0, 2) and "Traceback" not in one.err for one in said), said
    assert not mark.exists()


def test_pickles_under_names_that_others_load(opendg: Command, run: Path, tree: Path, mark: Path) -> None:
    for name in ("model.pt", "weights.pth", "pytorch_model.bin", "checkpoints/last.ckpt", "state.pkl"):
        (run / name).parent.mkdir(exist_ok=True)
        torch.save({"state": Bomb(mark)}, run / name)
    (run / "conftest.py").write_text(f"import os; os.mkdir({str(mark)!r})")
    (run / "sitecustomize.py").write_text(f"import os; os.mkdir({str(mark)!r})")
    use(opendg, run, tree)
    assert not mark.exists()


def test_arrays_of_objects_are_refused(opendg: Command, run: Path, tree: Path, mark: Path) -> None:
    arrays = dict(np.load(run / "source-val-averaged.npz"))
    np.savez(run / "source-val-averaged.npz", **arrays | {"keys": np.array([Bomb(mark)] * len(arrays["keys"]))})
    refused(opendg("predict", run, tree / "ink" / "bar"), "The predictions in", "cannot be read")
    assert not mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        "../../evil", "os.system", "__import__('os').mkdir('x')", "hf-hub:stranger/model", "local-dir:.", "medic\n",
        "erm.__class__", "", "/etc/passwd", "${HOME}", "a" * 5000, "hf_hub:x/y", "resnet18.hf-hub:x/y",
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["method", "backbone"])
def test_names_are_looked_up_and_not_followed(
    opendg: Command, run: Path, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    for name in ("run.json", "manifest.json"):
        edit(run / name, lambda values: values.update({key: value}) if key in values else None)
    said = opendg("predict", run, tree / "ink" / "bar")
    assert said.code == 2
    assert said.err.startswith(f"Error: There is no {key} ")
    assert set(tmp_path.rglob("*")) == before


def test_settings_are_values_and_not_code(opendg: Command, run: Path, tree: Path, mark: Path) -> None:
    edit(run / "run.json", lambda values: values["settings"].update(alpha=f"__import__('os').mkdir({str(mark)!r})"))
    refused(opendg("predict", run, tree / "ink" / "bar"), "does not fit: a number was expected")
    edit(run / "run.json", lambda values: values.update(settings={"__class__": 1}))
    refused(opendg("predict", run, tree / "ink" / "bar"), "no setting '__class__'")
    assert not mark.exists()


def test_links_are_not_written_through(opendg: Command, run: Path, tree: Path, tmp_path: Path) -> None:
    """target-*.npz, evaluation-*.json and log.jsonl of a stranger may be links to what the user holds dear."""
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("target-averaged.npz", "evaluation-averaged.json", "log.jsonl"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(precious)
    assert opendg("evaluate", run).code == 0
    (run / "weights.safetensors").unlink()
    assert opendg("train", "--resume", run).code == 0
    assert precious.read_text() == "mine"


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("head.linear.weight"),
        lambda tensors: tensors.update(extra=torch.zeros(3)),
        lambda tensors: tensors.update({"head.linear.weight": torch.zeros(9, 256)}),
    ],
    ids=["missing", "extra", "shape"],
)
def test_weights_that_do_not_fit(opendg: Command, run: Path, tree: Path, change: Any) -> None:
    tensors = load_file(run / "averaged.safetensors")
    change(tensors)
    save_file(tensors, run / "averaged.safetensors")
    refused(opendg("predict", run, tree / "ink" / "bar"), "The weights of", "do not fit its run.json", "train it anew")


def junk() -> list[Any]:
    return [None, 7, -1.5, "text", "", [], ["a", {}], {}, {"a": 1}, True, 1e400]


@pytest.mark.parametrize("name", ["run.json", "manifest.json"])
def test_any_damage_is_a_sentence(run: Path, tree: Path, name: str) -> None:
    """Each value of each file in turn replaced by junk of every kind, or taken out: an answer or a sentence."""
    text = (run / name).read_text()
    values = json.loads(text)
    places = [(key,) for key in values] + [
        (key, inner) for key, value in values.items() if isinstance(value, dict) for inner in value
    ]
    answers = 0
    for number, place in enumerate(places):
        for value in [*junk()[number % 4 :: 4], KeyError]:
            changed = json.loads(text)
            inside = changed if len(place) == 1 else changed[place[0]]
            if value is KeyError:
                del inside[place[-1]]
            else:
                inside[place[-1]] = value
            (run / name).write_text(json.dumps(changed))
            answers += answer_or_sentence(run, tree, f"{place} = {value!r}")
    assert answers > 5


def answer_or_sentence(run: Path, tree: Path, damage: str) -> bool:
    """Whether a damaged run still answers; else it must say a sentence."""
    try:
        library.load(run, device="cpu").predict(tree / "ink" / "bar" / "000.png")
    except OpenDGError:
        return False
    except Exception as error:
        raise AssertionError(f"{damage} gives {error!r}") from error
    return True
