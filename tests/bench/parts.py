"""Plans for a small tree of real images, and a runner that works in this process."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from typer.testing import CliRunner

from opendg.bench.plan import Plan, parse_plan
from opendg.bench.work import Order, Outcome, perform
from opendg.cli import app
from opendg.errors import OpenDGError

# What makes a search or a run small on the command line.
FLAGS = ["--unknown", "ring", "--backbone", "convnet", "--augment", "digits", "--batch", "2", "--device", "cpu"]


class Inline:
    """The work itself, in a thread of this process: for what does not need a process of its own."""

    slots, told = 1, "this process"

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(1)
        self.orders: list[str] = []

    def submit(self, order: Order) -> Future[Outcome]:
        self.orders.append(order.name)
        return self.threads.submit(perform, order)

    def close(self) -> None:
        self.threads.shutdown()


def signs(tree: Path, more: str = "", methods: str = '[{ method = "erm" }, { method = "medic" }]') -> str:
    """A plan for the tree, as text."""
    return f"""
        title = "Signs"
        data = "{tree}"
        targets = ["ink", "wood"]
        unknown = ["ring"]
        backbone = "convnet"
        recipe = {{ iterations = 4, batch = 2, augment = "digits" }}
        methods = {methods}
        {more}
    """


def plan_of(tree: Path, more: str = "", **options: str) -> Plan:
    return parse_plan("signs", signs(tree, more, **options))


def refused(*words: str) -> str:
    """The sentence with which a command refuses."""
    said = CliRunner().invoke(app, words)
    assert isinstance(said.exception, OpenDGError), said.output
    return str(said.exception)
