"""The public surface: what `import opendg` offers, and what it does not drag in."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

import opendg

SURFACE = {
    "OpenDGError": "type",
    "evaluate": "function",
    "list_datasets": "function",
    "list_methods": "function",
    "list_scores": "function",
    "load": "function",
    "metrics": "module",
    "resume": "function",
    "train": "function",
}
METRICS = ("aupr", "auroc", "fpr_at_tpr", "h_score", "oracle_h_score", "oscr", "oscr_curve")
HEAVY = {"torch", "torchvision", "timm", "matplotlib", "sklearn", "scipy", "lightning_fabric", "PIL"}


def test_the_surface_is_this_list() -> None:
    assert {name: type(getattr(opendg, name)).__name__ for name in opendg.__all__} == SURFACE
    assert set(dir(opendg)) == set(SURFACE)


@pytest.mark.parametrize("name", [name for name in SURFACE if name != "metrics"])
def test_what_is_public_says_what_it_does(name: str) -> None:
    assert inspect.getdoc(getattr(opendg, name))


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'tarin'"):
        _ = opendg.tarin  # type: ignore[attr-defined]


def test_metrics_are_those_of_the_readme() -> None:
    assert all(callable(getattr(opendg.metrics, name)) for name in METRICS)
    assert opendg.metrics.auroc([2.0, 3.0], [1.0, 2.0]) == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("lister", "some"),
    [("list_methods", {"medic", "erm", "mldg"}), ("list_datasets", {"pacs", "glyphs"}), ("list_scores", {"bcls"})],
)
def test_lists_take_wildcards(lister: str, some: set[str]) -> None:
    give = getattr(opendg, lister)
    assert some <= set(give())
    first = sorted(some)[0]
    assert first in give(first[:3] + "*")
    assert give("no such *") == []


def loaded(program: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `program`."""
    tail = f"\nimport json, sys\nprint(json.dumps([name for name in {sorted(HEAVY)} if name in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program + tail], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "command", [["--help"], ["train", "--help"], ["predict", "--help"], ["data", "check", "--help"], ["--version"]]
)
def test_help_does_not_wait_for_torch(command: list[str]) -> None:
    call = f"import sys\nsys.argv = ['opendg', *{command}]\nfrom opendg.cli import main\n"
    assert loaded(f"{call}try:\n    main()\nexcept SystemExit as end:\n    assert not end.code") == set()


def test_importing_opendg_is_light() -> None:
    assert loaded("import opendg; opendg.list_datasets()") == set()
    assert "torch" in loaded("import opendg; opendg.train")  # so that the test above can fail
