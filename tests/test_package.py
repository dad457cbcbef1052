"""The frame: what is shipped, which versions, and what must not be in the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import opendg

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())

# What only the machine of the one who wrote it would understand.
ABSOLUTE_PATH = re.compile(r"(?<![\w.~)}\]/-])/(?:root|home|Users|work|workspace|mnt|opt|tmp)/\w")
HOST = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|index[-]url|find[-]links"
    r"|\b(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}\b"
)


def run(*command: str, **options: Any) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, **options).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    return folder / run(sys.executable, "-c", build, str(folder), cwd=ROOT).split()[-1]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
        described = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    source = ROOT / "src"
    written = {str(path.relative_to(source)) for path in source.rglob("*.py")} | {"opendg/py.typed"}
    assert written <= shipped
    assert all(name.startswith("opendg/") and "__pycache__" not in name for name in shipped)
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE"} <= described


def test_the_wheel_runs_on_its_own(wheel: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(wheel)}
    program = "import opendg; print(opendg.__file__, opendg.__version__)"
    place, version = run(sys.executable, "-c", program, cwd=tmp_path, env=environment).split()
    assert place.startswith(str(wheel))
    assert version == PROJECT["version"]
    assert "train" in run(sys.executable, "-m", "opendg", "--help", cwd=tmp_path, env=environment)


def test_one_version_everywhere() -> None:
    assert opendg.__version__ == PROJECT["version"] == CITATION["version"]
    assert re.search(
        rf"^## \[(Unreleased|{re.escape(PROJECT['version'])})\]", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def constraints() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pair = re.compile(r"[a-z0-9-]+==\d+(\.\d+)*((a|b|rc)\d+)?")
    assert all(pair.fullmatch(line) for line in lines), "names and versions only"
    pairs = [tuple(line.split("==")) for line in lines]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def test_what_make_installs_has_a_tested_version() -> None:
    tested = constraints()
    extras = PROJECT["optional-dependencies"]
    wanted = [Requirement(line) for line in PROJECT["dependencies"] + extras["dev"] + extras["fetch"]]
    for requirement in wanted:
        if requirement.name != "opendg":
            assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), requirement


def test_the_core_does_without_the_extras() -> None:
    core = {Requirement(line).name for line in PROJECT["dependencies"]}
    extras = {Requirement(line).name for lines in PROJECT["optional-dependencies"].values() for line in lines}
    assert not core & extras


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git clone")
    return [ROOT / name for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0") if name]


@pytest.mark.parametrize("pattern", [ABSOLUTE_PATH, HOST], ids=["absolute paths", "hosts"])
def test_no_tracked_file_names_a_machine(pattern: re.Pattern[str]) -> None:
    found = []
    for path in tracked():
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(lines, 1)
            if pattern.search(line)
        ]
    assert not found, "\n".join(found)


def test_no_lock_file_is_tracked() -> None:
    assert not [path.name for path in tracked() if path.name.endswith(".lock")]


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("see /" + "home/me/data", ABSOLUTE_PATH),
        ('"/' + 'work/main"', ABSOLUTE_PATH),
        ("https://" + "pypi." + "org/simple", HOST),
        ("--extra-" + "index-" + "url x", HOST),
        ("http://10." + "0.0.7:8080", HOST),
    ],
)
def test_the_patterns_find_what_they_look_for(line: str, pattern: re.Pattern[str]) -> None:
    assert pattern.search(line)


@pytest.mark.parametrize(
    "line", ["docs/home/page", "../work/x", "{root}/work/x", "http://127.0.0.1:80", "version 1.2.3"]
)
def test_the_patterns_let_other_lines_pass(line: str) -> None:
    assert not ABSOLUTE_PATH.search(line)
    assert not HOST.search(line)


def test_the_licence_is_mit() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.startswith("MIT License\n\nCopyright (c)")
    assert "OpenDG contributors" in text
    assert PROJECT["license"] == CITATION["license"] == "MIT"


def test_the_citation_names_the_project_and_the_paper() -> None:
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert CITATION["message"]
    assert CITATION["authors"] == [{"name": "OpenDG contributors"}]
    (paper,) = CITATION["references"]
    assert paper["type"] == "conference-paper"
    assert [author["family-names"] for author in paper["authors"]] == ["Wang", "Zhang", "Qi", "Shi"]
    assert (paper["year"], paper["start"], paper["end"]) == (2023, 11564, 11573)
    assert paper["identifiers"][0]["value"] == "arXiv:2308.09391"


def make(*arguments: str) -> list[str]:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    # These tests may themselves have been started by make, with settings of its own.
    ours = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "WORKERS"}}
    return run("make", "-n", *arguments, cwd=ROOT, env=ours).splitlines()


def test_make_test_sets_up_and_runs_every_check(tmp_path: Path) -> None:
    said = "\n".join(make(f"VENV={tmp_path / 'venv'}", "test"))
    steps = ("-m venv", ".[dev]", "ruff check", "ruff format --check", "bin/mypy", "bin/lint-imports", "pytest -n 2")
    places = [said.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
    assert "--constraint constraints.txt" in said


def test_make_installs_once(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    assert any("pip install" in line or "$pip install" in line for line in make(f"VENV={venv}", "demo"))
    (venv / ".opendg").touch()
    assert make(f"VENV={venv}", "demo") == [f"{venv}/bin/opendg demo"]


def test_the_script_of_continuous_integration_can_run() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    run("bash", "-n", str(script))
