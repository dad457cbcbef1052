from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from opendg.errors import OpenDGError
from opendg.runs.checkpoint import Checkpoint, latest_checkpoint, load_checkpoint, pack, save_checkpoint


def tensors(step: int) -> dict[str, Tensor]:
    return {"w": torch.full((3, 2), float(step)), "n": torch.tensor(step)}


def write(folder: Path, *steps: int, owner: str = "mine") -> None:
    for step in steps:
        save_checkpoint(folder, step, tensors(step), {"best": step}, owner)


def newest(folder: Path) -> tuple[Checkpoint, list[str]]:
    found, refused = latest_checkpoint(folder, "mine")
    assert found is not None
    assert torch.equal(found.tensors["w"], tensors(found.step)["w"])
    assert found.facts == {"best": found.step}
    return found, refused


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    strange = {
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(3, dtype=torch.int64), "double": torch.randn(3, dtype=torch.float64),
        "empty": torch.zeros(0, 4), "part": torch.arange(10)[::3], "generator": torch.Generator().get_state(),
        "bool": torch.tensor([True, False]), "bf16": torch.randn(5).bfloat16(),
    }  # fmt: skip
    save_checkpoint(tmp_path / "checkpoints", 7, strange, {"a": [1, None]}, "mine")
    found = load_checkpoint(tmp_path / "checkpoints/step-00000007.json", "mine")
    assert (found.step, found.facts) == (7, {"a": [1, None]})
    assert found.tensors.keys() == strange.keys()
    for name, tensor in strange.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert torch.equal(found.tensors[name], tensor)


def test_tensors_that_share_memory_are_stored_each(tmp_path: Path) -> None:
    one = torch.arange(6.0)
    (tmp_path / "x").write_bytes(pack({"a": one, "b": one.view(2, 3)}))
    save_checkpoint(tmp_path / "c", 1, {"a": one, "b": one}, {}, "mine")
    assert torch.equal(load_checkpoint(tmp_path / "c/step-00000001.json").tensors["b"], one)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    write(tmp_path, 5, 10, 15, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000015.json", "step-00000015.safetensors", "step-00000020.json", "step-00000020.safetensors",
    ]  # fmt: skip
    assert newest(tmp_path)[0].step == 20


def test_an_old_one_that_lost_its_tensors_goes_as_well(tmp_path: Path) -> None:
    write(tmp_path, 10)
    (tmp_path / "step-00000010.safetensors").unlink()
    write(tmp_path, 20, 30)
    assert not (tmp_path / "step-00000010.json").exists()


def test_without_tensors_there_is_no_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OpenDGError("The disk is full.")

    monkeypatch.setattr("opendg.runs.checkpoint.write_atomic", full)
    with pytest.raises(OpenDGError, match="full"):
        write(tmp_path, 10)
    assert not list(tmp_path.iterdir())


def test_there_may_be_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path, "mine") == (None, [])
    assert latest_checkpoint(tmp_path / "not there", "mine") == (None, [])


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda f: f.with_suffix(".safetensors").write_bytes(b""), "is torn"),
        (lambda f: os.truncate(f.with_suffix(".safetensors"), 50), "is torn"),
        (lambda f: flip(f.with_suffix(".safetensors"), -1), "is torn"),
        (lambda f: flip(f.with_suffix(".safetensors"), 3), "is torn"),
        (lambda f: f.with_suffix(".safetensors").unlink(), "cannot be read"),
        (lambda f: f.write_text(f.read_text()[:20]), "cannot be read"),
        (lambda f: f.write_text(""), "cannot be read"),
        (lambda f: f.write_text("[]"), "cannot be read"),
        (lambda f: f.write_text("{}"), "cannot be read"),
        (lambda f: f.write_bytes(b"\xff\xfe"), "cannot be read"),
        (lambda f: f.write_text(f.read_text().replace('"mine"', '"theirs"')), "is of another run"),
    ],
)
def test_a_torn_or_foreign_one_is_passed_over(tmp_path: Path, harm, sentence: str) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path, 10, 20)
    harm(tmp_path / "step-00000020.json")
    found, refused = newest(tmp_path)
    assert found.step == 10
    assert len(refused) == 1
    assert refused[0].startswith("The checkpoint 'step-00000020' ")
    assert sentence in refused[0]
    assert refused[0].endswith("the one before it will be used.")
    with pytest.raises(OpenDGError, match=sentence):
        load_checkpoint(tmp_path / "step-00000020.json", "mine")


def test_when_all_are_torn_there_is_none(tmp_path: Path) -> None:
    write(tmp_path, 10, 20)
    for path in tmp_path.glob("*.safetensors"):
        flip(path, 0)
    found, refused = latest_checkpoint(tmp_path, "mine")
    assert found is None
    assert len(refused) == 2


def test_what_is_torn_pushes_out_nothing_whole(tmp_path: Path) -> None:
    """A run that began anew as all of its checkpoints were torn: its next one is older than those by its name."""
    write(tmp_path, 10, 20)
    for path in tmp_path.glob("*.safetensors"):
        flip(path, 0)
    write(tmp_path, 5)
    assert newest(tmp_path)[0].step == 5


def test_a_hash_that_fits_does_not_make_tensors(tmp_path: Path) -> None:
    """A stranger can write the hash as well: what is no safetensors file is still refused."""
    write(tmp_path, 10, 20)
    bomb = b"\x80\x04\x95cos\nsystem\n(S'exit 1'\ntR."
    (tmp_path / "step-00000020.safetensors").write_bytes(bomb)
    said = json.loads((tmp_path / "step-00000020.json").read_text())
    (tmp_path / "step-00000020.json").write_text(json.dumps(said | {"sha256": hashlib.sha256(bomb).hexdigest()}))
    assert newest(tmp_path)[0].step == 10


def test_tensors_without_their_json_are_no_checkpoint(tmp_path: Path) -> None:
    """A kill between the two files: the JSON comes last."""
    write(tmp_path, 10)
    (tmp_path / "step-00000020.safetensors").write_bytes(save(tensors(20)))
    assert newest(tmp_path)[0].step == 10
    write(tmp_path, 20)
    assert newest(tmp_path)[0].step == 20
