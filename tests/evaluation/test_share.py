"""Another share of the starting weights: the run that training with it would have given, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import save_file

import opendg
from opendg.errors import OpenDGError
from opendg.evaluation.evaluate import evaluate
from opendg.evaluation.share import with_share
from opendg.models.backbones import build_backbone
from opendg.runs.directory import Run
from tests.tiny import quick, write_tree


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that starts from weights in a file is asked for."""
    folder = tmp_path_factory.mktemp("begun")
    save_file(build_backbone("convnet").net.state_dict(), folder / "start.safetensors")
    weights = str(folder / "start.safetensors")
    return quick(data=str(write_tree(folder / "signs")), weights=weights, average_over=0.5, lr=0.05)


def same(one: Path, other: Path) -> bool:
    a, b = load_file(one), load_file(other)
    return a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a)


@pytest.mark.parametrize(("method", "precision"), [("medic", "fp32"), ("openmax", "bf16")])
def test_it_is_the_run_that_was_trained_with_that_share(
    begun: dict[str, Any], tmp_path: Path, method: str, precision: str
) -> None:
    plain = opendg.train(method, out=tmp_path / "plain", **begun, precision=precision)
    trained = opendg.train(method, out=tmp_path / "trained", **begun, precision=precision, average_start=0.3)
    mixed = with_share(plain, 0.3, tmp_path / "mixed", device="cpu")
    assert same(mixed.weight_file("averaged"), trained.weight_file("averaged"))
    assert not same(mixed.weight_file("averaged"), plain.weight_file("averaged"))
    assert same(mixed.weight_file("selected"), trained.weight_file("selected"))
    for which in ("averaged", "selected"):
        assert mixed.val_file(which).read_bytes() == trained.val_file(which).read_bytes()
    fitted = [file.name for file in plain.path.glob("score-*-averaged.*")]
    assert [file.name for file in mixed.path.glob("score-*")] == fitted
    assert all(same(mixed.path / name, trained.path / name) for name in fitted)
    assert bool(fitted) == (method == "openmax")
    records = [evaluate(run.path, device="cpu") for run in (mixed, trained, plain)]
    for record in records:
        del record["created"], record["command"]
    assert records[0] == records[1] != records[2]
    assert records[0]["recipe"]["average_start"] == 0.3


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_from_a_share_to_another(begun: dict[str, Any], tmp_path: Path, share: float) -> None:
    held = opendg.train("erm", out=tmp_path / "held", **begun, average_start=0.3)
    trained = opendg.train("erm", out=tmp_path / "trained", **begun, average_start=share)
    mixed = with_share(held, share, tmp_path / "mixed", device="cpu")
    ours, theirs = load_file(mixed.weight_file("averaged")), load_file(trained.weight_file("averaged"))
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-6)
    assert evaluate(mixed.path, device="cpu")["recipe"] == evaluate(trained.path, device="cpu")["recipe"]


def test_without_averaged_weights_there_is_nothing_to_mix(begun: dict[str, Any], tmp_path: Path) -> None:
    run = opendg.train("erm", out=tmp_path / "run", **(begun | {"average_over": 0.0}))
    with pytest.raises(OpenDGError, match="has no averaged weights"):
        with_share(run, 0.1, tmp_path / "mixed", device="cpu")
    assert not (tmp_path / "mixed").exists()


def test_a_device_that_there_is_not_is_refused(begun: dict[str, Any], tmp_path: Path) -> None:
    run = opendg.train("erm", out=tmp_path / "run", **begun)
    with pytest.raises(OpenDGError, match="no device 'gpu'"):
        with_share(run, 0.1, tmp_path / "mixed", device="gpu")
    assert not (tmp_path / "mixed").exists()


def test_other_starting_weights_are_refused(begun: dict[str, Any], tmp_path: Path) -> None:
    weights = tmp_path / "start.safetensors"
    weights.write_bytes(Path(begun["weights"]).read_bytes())
    opendg.train("erm", out=tmp_path / "run", **(begun | {"weights": str(weights)}))
    save_file(build_backbone("convnet").net.state_dict(), weights)
    with pytest.raises(OpenDGError, match="are not those that .* started from"):
        with_share(Run.open(tmp_path / "run"), 0.1, tmp_path / "mixed", device="cpu")
    assert not (tmp_path / "mixed").exists()


@pytest.mark.parametrize("part", ["train", "val", "test-known"])
def test_other_source_images_are_refused(begun: dict[str, Any], tmp_path: Path, part: str) -> None:
    """The target's are not looked at."""
    run = opendg.train("erm", out=tmp_path / "run", **begun)
    run.manifest["files"][part] = "0" * 64
    if part == "test-known":
        assert with_share(run, 0.1, tmp_path / "mixed", device="cpu").finished
    else:
        with pytest.raises(OpenDGError, match=f"The {part} images differ from those of the run"):
            with_share(run, 0.1, tmp_path / "mixed", device="cpu")
        assert not (tmp_path / "mixed").exists()
