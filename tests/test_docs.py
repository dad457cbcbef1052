"""The documents: the site builds without a complaint or a network, every command in them exists, tables are true."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer.main

from opendg.bench.folds import make_folds
from opendg.bench.space import LR, METHODS, Range
from opendg.cli import app
from opendg.protocol import Protocol
from opendg.training.job import make_job, plan
from opendg.training.recipe import Recipe
from opendg.training.train import start, train

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

# The site


class Outside(HTMLParser):
    """What a page loads from elsewhere when it is opened. Links to follow are no such thing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loaded = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
        where = dict(attrs).get(loaded.get(tag, ""))
        if where and re.match(r"(https?:)?//", where):
            self.found.append(f"{tag} {where}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing = [name for name in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers") if not find_spec(name)]
    if missing:
        pytest.skip("needs the extra opendg[docs], which is not installed")
    folder = tmp_path_factory.mktemp("site")
    nowhere = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https")}  # what is fetched fails
    environment = os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page(site: Path) -> None:
    built = {path.parent.name for path in site.glob("*/index.html")}
    assert {page.stem for page in DOCS.glob("*.md")} - {"index"} <= built


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        parser = Outside()
        parser.feed(page.read_text())
        assert not parser.found, f"{page.relative_to(site)} loads {parser.found}"
    parser.feed('<script src="https://example.org/a.js"></script><a href="https://example.org">x</a>')
    assert parser.found == ["script https://example.org/a.js"]


def test_the_api_page_has_the_public_names(site: Path) -> None:
    page = (site / "api" / "index.html").read_text()
    names = ["training.train.train", "training.train.resume", "evaluation.evaluate.evaluate", "evaluation.metrics.oscr"]
    for name in [*names, "deploy.recognizer.Recognizer.predict", "methods.registry.list_methods"]:
        assert f'id="opendg.{name}"' in page


# Commands


def lines_of_code(text: str) -> Iterator[str]:
    """Lines of indented and of fenced blocks, but for those in another language; continued ones as one."""
    fence, rest = None, ""
    for line in text.splitlines():
        if (mark := re.match(r"\s*```(\w*)", line)) and (fence is None or not mark[1]):
            fence = mark[1] or "text" if fence is None else None
            continue
        if fence in ("text", "bash", "sh", "console", "shell") or (fence is None and line.startswith("    ")):
            rest += line.strip()
            if rest.endswith("\\"):
                rest = rest[:-1]
                continue
            yield rest
            rest = ""


def commands_of(text: str) -> Iterator[list[str]]:
    """The `opendg ...` commands of the blocks: without prompt, environment, launcher, redirection and comment."""
    for line in lines_of_code(text):
        for part in re.split(r"\s(?:&&|\|)\s|;\s", line):
            if found := re.match(
                r"(?:\$ )?(?:\w+=\S* )*(?:srun |(?:uv run )|torchrun .*-m )?(opendg .*|opendg$)", part
            ):
                yield shlex.split(re.sub(r"\s\d?>\s?.*", "", found[1]), comments=True)[1:]


def inline_of(text: str) -> Iterator[list[str]]:
    """Commands in running text: `opendg train --resume RUN`. They may leave things out."""
    for found in re.findall(r"`opendg ([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)):
        yield found.split()


def parse(words: list[str], group: Any = None, context: Any = None) -> None:
    """Go through the command line's own parser, up to the point where it would run the command."""
    group = group or typer.main.get_command(app)
    context = group.make_context(group.name or "opendg", list(words), parent=context)
    if hasattr(group, "resolve_command"):
        left = [*getattr(context, "_protected_args", []), *context.args]
        name, command, rest = group.resolve_command(context, left)
        if hasattr(command, "resolve_command"):
            parse(rest, command, context)
        else:
            command.make_context(name, list(rest), parent=context)


def look_up(words: list[str]) -> None:
    """That the command and its options exist, whatever else is left out."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands") or not re.fullmatch(r"[a-z]+", word):
            break
        assert word in command.commands, f"there is no command {word!r}"
        command = command.commands[word]
    options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(words)):
        assert option in options | {"--help", "--debug", "--version"}, f"there is no option {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    text = page.read_text()
    for words in commands_of(text):
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{page.name}: opendg {shlex.join(words)}: {getattr(error, 'message', None) or error!r}")
    for words in inline_of(text):
        look_up(words)


def test_there_are_commands_to_look_at() -> None:
    found = [words for page in PAGES for words in commands_of(page.read_text())]
    assert len(found) > 25
    assert {"train", "evaluate", "predict", "tune", "data"} <= {words[0] for words in found}


@pytest.mark.parametrize(
    "line",
    [
        "opendg trian medic",
        "opendg train medic --no-such 1",
        "opendg tune medic --trials many",
        "opendg data fetch pacs",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    (words,) = commands_of(f"    $ {line} > file  # comment\n")
    assert words == line.split()[1:]
    with pytest.raises(Exception, match=r"trian|--no-such|many|--to|") as found:
        parse(words)
    assert type(found.value).__name__ in ("UsageError", "NoSuchOption", "BadParameter", "MissingParameter")
    with pytest.raises(AssertionError):
        look_up(["data", "fletch"])


# Tables


def test_the_arguments_of_train_are_all_there() -> None:
    table = re.findall(r"^\| (`.*?) \|", (DOCS / "api.md").read_text(), flags=re.M)
    listed = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    taken = {name for function in (train, start, plan, make_job) for name in inspect.signature(function).parameters}
    taken |= {field.name for field in fields(Recipe)}
    assert listed == taken - {"asked", "targets", "names"}


def test_the_folds_of_the_tuning_page_are_those_of_pacs() -> None:
    sources, known = ("art_painting", "cartoon", "photo"), ("dog", "elephant", "giraffe", "guitar", "horse", "house")
    protocol = Protocol("pacs", "shared", sources, ("sketch",), known, ("person",), (known,) * 3, known)
    page = (DOCS / "tuning.md").read_text()
    for fold in make_folds(protocol, None, 0):
        cells = [fold.held, *(", ".join(names) for names in (fold.sources, fold.known, fold.unknown))]
        assert f"| {' | '.join(cells)} |" in page


def test_the_ranges_of_the_tuning_page_are_those_searched() -> None:
    page = (DOCS / "tuning.md").read_text()
    assert LR == (1 / 3, 5)
    assert "a third to five times" in page
    for name, values in METHODS["medic"].items():
        assert isinstance(values, Range)
        assert f"`{name}` {values.low:g} to {values.high:g}" in page
