from __future__ import annotations

import struct
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from opendg.data.store import Store
from opendg.data.tree import scan
from opendg.errors import OpenDGError
from opendg.models.backbones import Input
from opendg.models.classifier import Classifier
from opendg.predictions import Predictions, predict, predict_rows
from small import small_backbone
from tests.tiny import write_tree

CPU = torch.device("cpu")


def some(n: int = 5) -> Predictions:
    random = np.random.default_rng(0)
    return Predictions(
        keys=np.array([f"d/c/{i}.png" for i in range(n)]), domain=np.array(["d"] * n),
        label=np.array([0, 1, -1, 2, -1][:n]), features=random.normal(size=(n, 4)).astype(np.float32),
        logits=np.eye(3, dtype=np.float32)[[0, 2, 1, 2, 0][:n]], ova=random.normal(size=(n, 2, 3)).astype(np.float32),
    )  # fmt: skip


def test_what_follows_from_the_arrays() -> None:
    found = some()
    assert len(found) == 5
    assert found.predicted.tolist() == [0, 2, 1, 2, 0]
    assert found.known.tolist() == [True, True, False, True, False]
    assert found.correct.tolist() == [True, False, False, True, False]


@pytest.mark.parametrize("rows", [np.array([3, 0]), np.array([True, False, False, True, False])])
def test_taking_rows(rows: np.ndarray) -> None:
    found, whole = some().take(rows), some()
    assert len(found) == 2
    assert sorted(found.keys) == ["d/c/0.png", "d/c/3.png"]
    for name in ("label", "features", "logits", "ova"):
        assert np.array_equal(getattr(found, name), getattr(whole, name)[rows])
    assert replace(whole, ova=None).take(rows).ova is None


@pytest.mark.parametrize("without", [(), ("ova",)])
def test_a_file_brings_back_the_arrays(tmp_path: Path, without: tuple[str, ...]) -> None:
    whole = replace(some(), **dict.fromkeys(without))
    (tmp_path / "file.npz").write_bytes(whole.pack())
    found = Predictions.load(tmp_path / "file.npz")
    assert (found.ova is None) == ("ova" in without)
    for name in ("keys", "domain", "label", "features", "logits"):
        assert np.array_equal(getattr(found, name), getattr(whole, name))
    if whole.ova is not None:
        assert np.array_equal(found.ova, whole.ova)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ({"label": np.array([0])}, "does not go with 1 images"),
        ({"label": np.zeros(5)}, "label is float64"),
        ({"logits": np.zeros(5, np.float32)}, r"logits is float32 \(5,\)"),
        ({"logits": np.zeros((4, 3), np.float32)}, r"logits is float32 \(4, 3\)"),
        ({"ova": np.zeros((1, 2, 3), np.float32)}, r"ova is float32 \(1, 2, 3\)"),
        ({"ova": np.zeros((0, 2, 3), np.float32)}, r"ova is float32 \(0, 2, 3\)"),
        ({"ova": np.zeros((5, 2, 4), np.float32)}, "does not go with logits"),
        ({"ova": np.zeros((5, 3, 3), np.float32)}, "does not go with logits"),
        ({"features": np.array(["a"] * 5)}, "features is"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(tmp_path: Path, damage: dict[str, Any], sentence: str) -> None:
    """One label for five images would else be compared with all of them."""
    (tmp_path / "file.npz").write_bytes(replace(some(), **damage).pack())
    with pytest.raises(OpenDGError, match=f"cannot be read .*{sentence}"):
        Predictions.load(tmp_path / "file.npz")


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def with_header(text: str) -> bytes:
    """An .npz file whose label says this of itself."""
    header = text.encode() + b"\n"
    label = np.lib.format.magic(1, 0) + struct.pack("<H", len(header)) + header
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name, data in members(some().pack()).items():
            written.writestr(name, label if name == "label.npy" else data)
    return file.getvalue()


def locked() -> bytes:
    """An .npz file whose members say that they need a password."""
    data = bytearray(some().pack())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(mark)
        while place >= 0:
            data[place + flags] |= 1
            place = data.find(mark, place + 4)
    return bytes(data)


def torn_within() -> bytes:
    """An .npz file whose first member cannot be unpacked."""
    data = bytearray(some().pack())
    start = data.find(b"keys.npy") + len("keys.npy") + int.from_bytes(data[28:30], "little")
    data[start : start + 4] = b"\xff" * 4
    return bytes(data)


def of_no_arrays() -> bytes:
    """An .npz file whose members are plain bytes, which have no shape."""
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name in ("keys", "domain", "label", "features", "logits"):
            written.writestr(name, b"12345")
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        locked(),
        torn_within(),
        of_no_arrays(),
        with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (100000000000000,)}"),
        with_header("{'descr': '<i8', 'fortran_order': False, 'shape': (5L,"),
    ],
    ids=["password", "torn within", "no arrays", "larger than memory", "unfinished header"],
)
def test_a_strangers_file_is_refused_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file.npz").write_bytes(content)
    with pytest.raises(OpenDGError, match=r"^The predictions in .* cannot be read \(.*\): train or evaluate"):
        Predictions.load(tmp_path / "file.npz")


def images(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("head", ["closed", "dual", "shared"])
@pytest.mark.parametrize("training", [True, False])
def test_outputs_in_batches_are_those_of_the_network(head: str, training: bool) -> None:
    """In evaluation mode, in whatever batches; the network keeps its mode and its statistics."""
    classifier = Classifier(small_backbone(batchnorm=True), 4, head).train(training)
    classifier.backbone.input = Input((7, 10), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    before = classifier.backbone.net[0][1].running_mean.clone()
    pixels, asked = images(11), list[tuple[int, int]]()

    def give(a: int, b: int) -> torch.Tensor:
        asked.append((a, b))
        return pixels[a:b]

    found = [predict(classifier, give, 11, CPU, batch=size) for size in (4, 11, 256)]
    assert asked == [(0, 4), (4, 8), (8, 11), (0, 11), (0, 11)]
    assert classifier.training == training
    assert torch.equal(classifier.backbone.net[0][1].running_mean, before)
    with torch.no_grad():
        resized = F.interpolate(pixels.permute(0, 3, 1, 2).float() / 255, (7, 10), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(values)[:, None, None] for values in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
        expected = classifier.eval()((resized - mean) / std)
    assert set(found[0]) == ({"features", "logits"} if head == "closed" else {"features", "logits", "ova"})
    for one in found:
        for name, value in one.items():
            assert value.dtype == np.float32
            np.testing.assert_allclose(value, getattr(expected, name).numpy(), rtol=1e-4, atol=1e-5)


def test_rows_keep_their_order_whatever_it_is(tmp_path: Path) -> None:
    index = scan(write_tree(tmp_path / "signs", domains=("ink", "wood"), each=2))
    rows = np.array([13, 2, 9, 0])
    store = Store.open(index, np.arange(len(index)), progress=False)
    classifier = Classifier(small_backbone(), 4)
    labels = index.label + 5
    together = predict_rows(classifier, store, index, labels, rows, CPU)
    assert together.keys.tolist() == [index.keys[row] for row in rows]
    assert together.domain.tolist() == [key.split("/")[0] for key in together.keys]
    assert together.label.tolist() == labels[rows].tolist()
    for place, row in enumerate(rows):
        alone = predict_rows(classifier, store, index, labels, np.array([row]), CPU)
        np.testing.assert_allclose(together.logits[place], alone.logits[0], rtol=1e-4, atol=1e-5)
