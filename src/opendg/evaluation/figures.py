"""Figures from plain arrays, each as PNG and SVG: small, for print and for colour-blind readers.

Lines differ in colour (Okabe and Ito's palette) and in dash or marker, so that grey prints can be read too. `path` may
carry a suffix or not; its folder must exist. Matplotlib is imported when a figure is drawn, and without pyplot: no
window, no global state.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from opendg.errors import OpenDGError
from opendg.runs.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Five, so that pairs of colour and dash repeat late.
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (8, 2)))
SUFFIXES: dict[str, Any] = {".png": {"dpi": 200}, ".svg": {"metadata": {"Date": None}}}  # with how each is drawn
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # 7 for 6 colours: pairs repeat late here too
STYLE: Any = {
    "font.family": "DejaVu Sans", "font.size": 8, "legend.fontsize": 7.5, "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#E6E6E6", "grid.linewidth": 0.6, "lines.linewidth": 1.6,
    "xtick.major.width": 0.7, "ytick.major.width": 0.7, "svg.hashsalt": "opendg",
}  # fmt: skip


def check_figure(path: Path) -> None:
    """Refuse a name that a user has given and that no figure would have, before there is anything to draw."""
    if path.suffix not in ("", *SUFFIXES):
        raise OpenDGError(
            f"A figure is written as PNG and as SVG, and {path.name!r} ends in {path.suffix}: let it end in .png, .svg "
            "or nothing."
        )
    if not path.parent.is_dir():
        raise OpenDGError(f"There is no folder {str(path.parent)!r} for the figure: make it, or choose another.")
    if not os.access(path.parent, os.W_OK):
        raise OpenDGError(f"The folder {str(path.parent)!r} of the figure may not be written to: choose another.")


def oscr_figure(curves: Mapping[str, tuple[ArrayLike, ArrayLike, float]], path: Path, title: str = "") -> list[Path]:
    """Right answers on known images against accepted unknown ones: a label -> (fpr, ccr, area) of `oscr_curve`."""
    with _figure(path, title) as (figure, axes, written):
        for (label, (fpr, ccr, area)), style in zip(curves.items(), _lines(), strict=False):
            axes.plot(np.asarray(fpr), np.asarray(ccr), label=f"{label}  {100 * area:.1f}", **style)
        axes.set(
            xlabel="unknown images accepted", ylabel="known images accepted and right", xlim=(0, 1), ylim=(0, 1.005)
        )
        _percent(axes, "xy")
        axes.legend(title="area (OSCR)", loc="best", title_fontsize=7.5, alignment="left")
        figure.set_size_inches(3.4, 3.0)
    return written


def threshold_figure(
    thresholds: ArrayLike, target: Mapping[str, ArrayLike], source: Mapping[str, ArrayLike], path: Path,
    title: str = "",
) -> list[Path]:  # fmt: skip
    """H against the threshold, a label -> H at each: on the target solid, on the source domains with unknown images
    dashed. A vertical line marks the best source threshold, a large marker what it gives on the target.

    Thresholds between 0 and 1 are laid out by their log-odds: probabilities crowd near 1, and that is where they part.
    """
    at = np.asarray(thresholds, dtype=np.float64)
    dashed: Any = {"linestyle": (0, (4, 1.5)), "linewidth": 1.1}
    dotted: Any = {"linestyle": (0, (1, 1.5)), "linewidth": 0.9}
    with _figure(path, title) as (figure, axes, written):
        for (label, h), colour, marker in zip(target.items(), cycle(COLOURS), cycle(MARKERS), strict=False):
            axes.plot(at, np.asarray(h), color=colour, label=label, marker=marker, markersize=3, markevery=0.15)
            if label in source:
                best = int(np.argmax(source[label]))
                axes.plot(at, np.asarray(source[label]), color=colour, **dashed)
                axes.axvline(at[best], color=colour, **dotted)
                axes.plot(at[best], np.asarray(h)[best], marker, color=colour, markersize=6.5, markeredgecolor="white")
        for look, meaning in (({}, "target"), (dashed, "source, with unknown"), (dotted, "best on source")):
            axes.plot([], [], color="#7F7F7F", label=meaning, **look)
        if at.min() > 0 and at.max() < 1:
            _log_odds(axes, at.min(), at.max())
        axes.set(xlabel="threshold", ylabel="H-score", ylim=(0, 1.005), xlim=(at.min(), at.max()))
        _percent(axes, "y")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
        figure.set_size_inches(4.6, 2.7)
    return written


def confusion_figure(counts: ArrayLike, classes: Sequence[str], path: Path, title: str = "") -> list[Path]:
    """Shares of each true class (row) by answer (column), "unknown" last of both, from the counts of `confusion`."""
    matrix = np.asarray(counts, dtype=np.float64)
    names = [*classes, "unknown"]
    if matrix.shape != (len(names), len(names)):
        raise OpenDGError(
            f"A confusion figure of {len(classes)} classes needs {len(names)} rows and columns, got {matrix.shape}."
        )
    totals = matrix.sum(axis=1, keepdims=True)
    shares = np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0)
    with _figure(path, title) as (figure, axes, written):
        axes.grid(False)
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        if len(names) <= 20:
            _cells(axes, shares)
        places, text = np.arange(len(names)), min(8.0, 400 / len(names))
        axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor", fontsize=text)
        axes.set_yticks(places, names, fontsize=text)
        axes.axhline(len(classes) - 0.5, color="black", linewidth=0.8)
        axes.axvline(len(classes) - 0.5, color="black", linewidth=0.8)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set(xlabel="answer", ylabel="true class")
        axes.set_title("share of the true class, %", loc="left", fontsize=8)
        side = min(10.0, 1.4 + 0.36 * len(names))
        figure.set_size_inches(side, side)
    return written


def embedding_figure(points: ArrayLike, known: ArrayLike, path: Path, title: str = "") -> list[Path]:
    """Images as points in the plane (n, 2), t-SNE of features for one: known as dots, unknown as crosses."""
    where, is_known = np.asarray(points, dtype=np.float64), np.asarray(known, dtype=np.bool_)
    if where.shape != (len(is_known), 2):
        raise OpenDGError(
            f"An embedding figure needs two coordinates for each of {len(is_known)} images: {where.shape}."
        )
    size = float(np.clip(4000 / max(1, len(where)), 1.5, 12))
    with _figure(path, title) as (figure, axes, written):
        for name, part, look in (
            ("known", where[is_known], {"s": size, "color": COLOURS[0], "alpha": 0.55, "linewidths": 0}),
            ("unknown", where[~is_known], {"s": 1.6 * size, "color": COLOURS[1], "marker": "x", "linewidths": 0.7}),
        ):
            axes.scatter(part[:, 0], part[:, 1], label=f"{name} ({len(part)})", rasterized=True, **look)  # type: ignore[arg-type]
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.spines[:].set(visible=True, color="#BBBBBB")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=2, markerscale=np.sqrt(18 / size))
        width, height = np.ptp(where, axis=0).clip(1e-12)
        figure.set_size_inches(3.4, 0.35 + 3.3 * float(np.clip(height / width, 0.5, 2)))
    return written


def openness_figure(openness: ArrayLike, oscr: Mapping[str, ArrayLike], path: Path) -> list[Path]:
    """OSCR against openness, the share of unknown classes in the target."""
    at = np.asarray(openness, dtype=np.float64)
    with _figure(path) as (figure, axes, written):
        for (label, area), style, marker in zip(oscr.items(), _lines(), cycle(MARKERS), strict=False):
            axes.plot(
                at, np.asarray(area), label=label, marker=marker, markersize=5.5, markeredgecolor="white", **style
            )
        axes.set(xlabel="openness (share of unknown classes)", ylabel="OSCR")
        _percent(axes, "xy")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
        figure.set_size_inches(4.2, 2.7)
    return written


@contextmanager
def _figure(path: Path, title: str = "") -> Iterator[tuple[Figure, Axes, list[Path]]]:
    """A figure to draw on; afterwards it stands at `path` with .png and .svg, whole or not at all."""
    import matplotlib
    from matplotlib.figure import Figure

    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        figure = Figure(layout="constrained")
        if title:
            figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=8.5, fontweight="bold")
        yield figure, figure.add_subplot(), written
        for suffix, options in SUFFIXES.items():
            drawn = BytesIO()
            figure.savefig(drawn, format=suffix[1:], **options)
            written.append(path.with_name(path.name.removesuffix(".png").removesuffix(".svg") + suffix))
            write_atomic(written[-1], drawn.getvalue())


def _lines() -> Iterator[dict[str, Any]]:
    return ({"color": colour, "linestyle": dash} for colour, dash in zip(cycle(COLOURS), cycle(DASHES), strict=False))


def _percent(axes: Axes, which: str) -> None:
    from matplotlib.ticker import FuncFormatter

    for name in which:
        getattr(axes, f"{name}axis").set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def _log_odds(axes: Axes, low: float, high: float) -> None:
    """The x axis from `low` to `high` in log-odds; of the probabilities 10^-k and 1 - 10^-k those that find room.

    Where less than two decades are seen, tenths between them too.
    """
    decades = np.log10(high / (1 - high)) - np.log10(low / (1 - low))
    step = 1 + int(decades > 5) + int(decades > 9)
    tenths = [5] if decades >= 2 else range(1, 10, 1 + int(decades >= 1))
    names = {tenth / 10: f"{tenth / 10:g}" for tenth in tenths}
    for power in range(step, 10, step):
        tail = 10.0**-power
        names |= {tail: f"{tail:g}" if power < 4 else f"$10^{{-{power}}}$"}
        names |= {1 - tail: f"{1 - tail:g}" if power < 4 else f"$1-10^{{-{power}}}$"}
    seen = {at: name for at, name in names.items() if low <= at <= high}
    axes.set_xscale("logit")
    axes.set_xticks(list(seen), list(seen.values()))
    axes.minorticks_off()


def _cells(axes: Axes, shares: NDArray[np.float64]) -> None:
    """The number in each cell; zeros are left out, so that the eye finds the errors."""
    for (row, column), share in np.ndenumerate(shares):
        if share >= 0.005:
            colour = "white" if share > 0.55 else "black"
            axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
