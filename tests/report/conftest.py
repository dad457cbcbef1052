from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import opendg
from opendg.report.build import write_report
from tests.tiny import quick, write_tree

OVA = {"chosen": {"ova": True}}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "medic-wood": ("medic", {}),
    "medic-ink": ("medic", {"target": "ink"}),
    "erm-wood": ("erm", OVA),
    "erm-ink": ("erm", OVA | {"target": "ink"}),
    "plain-wood": ("erm", {}),  # no one-vs-all head: another setting, and no bcls
    "other-wood": ("erm", OVA | {"unknown": ["dot"]}),  # another protocol
}


@pytest.fixture(scope="session")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("data") / "signs", each=16)


@pytest.fixture(scope="session")
def runs(signs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of trained and evaluated runs. Tests that change one copy it first."""
    folder = tmp_path_factory.mktemp("trained") / "runs"
    for name, (method, asked) in TRAINED.items():
        run = opendg.train(method, str(signs), out=folder / name, **quick(iterations=25, batch=4, **asked))
        opendg.evaluate(run.path, device="cpu")
    return folder


@pytest.fixture(scope="session")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "page.html"
    write_report([runs], out, points=100, mistakes=6)
    return out
