"""OSCR curves of runs: every run and score has its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import opendg
from opendg.errors import OpenDGError
from opendg.evaluation.curves import draw_oscr
from opendg.evaluation.evaluate import evaluate
from tests.tiny import quick


def test_each_score_with_its_area(trained: Path, tmp_path: Path) -> None:
    record = evaluate(trained, device="cpu")
    _, svg = draw_oscr([trained], tmp_path / "curves")
    for name in ("cls", "bcls"):
        assert f"medic ({name})  {100 * record['scores'][name]['oscr']:.1f}" in svg.read_text()


def test_runs_of_one_method_and_one_name_are_told_apart(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(trained, device="cpu")
    for seed in ("0", "1"):
        shutil.copytree(trained, tmp_path / seed / "run")
    monkeypatch.chdir(tmp_path)
    _, svg = draw_oscr([f"{seed}/run" for seed in ("0", "1")], tmp_path / "curves", scores=["cls"])
    for seed in ("0", "1"):
        assert f"medic (cls), {seed}/run " in svg.read_text()


def test_a_run_without_unknown_classes(tree: Path, tmp_path: Path) -> None:
    run = opendg.train("erm", data=str(tree), out=tmp_path / "run", **quick(iterations=1, unknown=[])).path
    evaluate(run, device="cpu")
    with pytest.raises(OpenDGError, match="needs unknown images, and .*run' has no unknown class: leave the figure"):
        draw_oscr([run], tmp_path / "curves")
    assert not list(tmp_path.glob("curves*"))


def test_a_run_that_was_not_evaluated(trained: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "target-averaged.npz").unlink(missing_ok=True)
    with pytest.raises(OpenDGError, match="cannot be read .* evaluate the run again"):
        draw_oscr([run], tmp_path / "curves")
