"""Figures: real files, whole, the same each time, with what was asked for in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from opendg.errors import OpenDGError
from opendg.evaluation import figures, metrics

RANDOM = np.random.default_rng(0)
KNOWN, RIGHT, UNKNOWN = RANDOM.beta(4, 2, 300), RANDOM.random(300) < 0.8, RANDOM.beta(2, 3, 120)
AT = np.linspace(0, 1, 50)
H = metrics.h_curve(KNOWN, RIGHT, UNKNOWN, AT).h
CURVE = (*metrics.oscr_curve(KNOWN, RIGHT, UNKNOWN), metrics.oscr(KNOWN, RIGHT, UNKNOWN))

DRAW: dict[str, Callable[[Path], list[Path]]] = {
    "oscr": lambda path: figures.oscr_figure({"medic bcls": CURVE, "erm & co <cls>": CURVE}, path),
    "threshold": lambda path: figures.threshold_figure(AT, {"medic": H, "erm": H**2}, {"medic": H[::-1]}, path),
    "log-odds": lambda path: figures.threshold_figure(1 / (1 + np.exp(-24 * AT + 8)), {"medic": H}, {"medic": H}, path),
    "narrow": lambda path: figures.threshold_figure(0.26 + 0.3 * AT, {"medic": H}, {"medic": H}, path),
    "confusion": lambda path: figures.confusion_figure(np.eye(4) * 9 + 1, ["dog", "house", "unseen"], path),
    "embedding": lambda path: figures.embedding_figure(RANDOM.normal(0, 1, (40, 2)), np.arange(40) < 30, path),
    "openness": lambda path: figures.openness_figure([0.1, 0.5], {"medic": [0.7, 0.8], "erm": [0.6, 0.7]}, path),
}
SAYS = {
    "oscr": ["medic bcls", f"{100 * CURVE[2]:.1f}", "unknown images accepted"],
    "threshold": ["medic", "erm", "source, with unknown", "best on source"],
    "log-odds": ["0.001", "0.5", "0.999", "1-10^{-6}"],
    "narrow": ["<!-- 0.3 -->", "<!-- 0.4 -->", "<!-- 0.5 -->"],
    "confusion": ["dog", "house", "unseen", "unknown", "true class"],
    "embedding": ["known (30)", "unknown (10)"],
    "openness": ["medic", "OSCR", "openness"],
}


@pytest.mark.parametrize("name", DRAW)
def test_png_and_svg_are_whole_and_say_what_they_show(name: str, tmp_path: Path) -> None:
    png, svg = DRAW[name](tmp_path / "resnet18.tv_in1k")
    assert [path.name for path in (png, svg)] == ["resnet18.tv_in1k.png", "resnet18.tv_in1k.svg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [png.name, svg.name]
    with Image.open(png) as image:
        assert min(image.size) > 400
        assert len(image.convert("RGB").getcolors(10**6) or []) > 10
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    text = svg.read_text()
    for words in SAYS[name]:
        assert words in text


def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = DRAW["oscr"](tmp_path / "one.png"), DRAW["oscr"](tmp_path / "two.svg")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_settings_of_matplotlib_are_left_alone(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    DRAW["confusion"](tmp_path / "figure")
    assert dict(matplotlib.rcParams) == before


def test_many_curves_look_different() -> None:
    looks = [str(style) for style, _ in zip(figures._lines(), range(30), strict=False)]
    assert len(set(looks)) == 30


def test_many_curves_of_thresholds_look_different(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []

    def keep(figure: Figure, *where: object, **options: object) -> None:
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    curves = {f"method {number}": H for number in range(20)}
    figures.threshold_figure(AT, curves, {}, tmp_path / "many")
    lines = [line for line in drawn[0].axes[0].lines if str(line.get_label()).startswith("method")]
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == len(curves)


def test_classes_without_images_and_large_tables(tmp_path: Path) -> None:
    counts = np.diag(np.arange(61))
    png, _ = figures.confusion_figure(counts, [f"class {k}" for k in range(60)], tmp_path / "large")
    with Image.open(png) as image:
        assert max(image.size) <= 2000


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="could not be written"):
        DRAW["oscr"](tmp_path / "nowhere" / "figure")


def test_arrays_of_the_wrong_shape(tmp_path: Path) -> None:
    with pytest.raises(OpenDGError, match="3 classes needs 4 rows"):
        figures.confusion_figure(np.eye(3), ["a", "b", "c"], tmp_path / "figure")
    with pytest.raises(OpenDGError, match="two coordinates for each of 5"):
        figures.embedding_figure(np.zeros((5, 3)), np.ones(5, bool), tmp_path / "figure")
    assert not list(tmp_path.iterdir())
