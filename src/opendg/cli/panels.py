"""The options of long commands by what they are about: `--help` shows each kind in a panel of its own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

PANELS = {
    "Data": (
        "data", "root", "target", "targets", "sources", "known", "unknown", "protocol", "split_seed", "on_bad_image",
    ),
    "Network and recipe": (
        "backbone", "weights", "config", "recipe", "iterations", "batch", "lr", "optimizer", "weight_decay", "schedule",
        "average_over", "average_start", "select", "select_after", "augment", "precision", "seed", "set_",
    ),
    "Search": ("trials", "for_", "folds", "sampler", "combine"),
    "Several runs": ("each_target", "seeds", "methods", "lanes", "jobs", "on", "address", "cpus", "retry_failed"),
    "Machine": ("device", "devices", "capture", "compile_", "checkpoint_every", "track"),
}  # fmt: skip
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class Panelled(TyperCommand):
    """A command with its options in panels; those of no panel (what comes out, what goes on) stand first."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for parameter in self.params:
            if parameter.name in PANEL_OF and hasattr(parameter, "rich_help_panel"):
                parameter.rich_help_panel = PANEL_OF[parameter.name]
