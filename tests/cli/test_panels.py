"""The help of long commands: options by kind, and room to read them at 80 columns."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from opendg.cli import app
from opendg.cli.panels import PANEL_OF, PANELS

LONG = {"train": ["train"], "tune": ["tune"], "reproduce": ["reproduce"], "bench run": ["bench", "run"]}


def command_of(words: list[str]) -> Any:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return command


def panels_of(words: list[str]) -> dict[str, str]:
    """The panels of a command's help at 80 columns, by title."""
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0
    return dict(re.findall(r"\u256d\u2500 (.+?) \u2500+\u256e\n(.*?)\u2570", done.output, flags=re.DOTALL))


@pytest.mark.parametrize("words", LONG.values(), ids=LONG)
def test_each_option_stands_in_its_panel(words: list[str]) -> None:
    shown = panels_of(words)
    options = [each for each in command_of(words).params if each.opts[0].startswith("--")]
    for option in options:
        panel = PANEL_OF.get(str(option.name), "Options")
        assert re.search(rf"^\u2502 {option.opts[0]} ", shown[panel], flags=re.MULTILINE), (
            f"{option.opts[0]} in {panel}"
        )
    assert len(shown["Options"].splitlines()) < 30


def test_no_panel_names_what_no_command_has() -> None:
    there = {option.name for words in LONG.values() for option in command_of(words).params}
    assert set(PANEL_OF) <= there
    assert sum(map(len, PANELS.values())) == len(PANEL_OF), "an option has one panel"


def test_what_an_option_means_has_half_of_a_narrow_terminal() -> None:
    """Flags with a negation need a wide column; they leave the others theirs."""
    shown = panels_of(["train"])
    for panel in ("Data", "Network and recipe", "Options"):
        lines = shown[panel].splitlines()
        begins = {found.end() for line in lines if (found := re.match(r"\u2502 --\S+ .*?(?:<\w+>|KEY=VALUE) +", line))}
        assert max(begins) < 40
