"""The ledger: states, and locks that end with their holder."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from opendg.bench import ledger as room
from opendg.bench.cells import Cell
from opendg.bench.ledger import Ledger
from opendg.errors import OpenDGError

HOLD = """
import sys, time
from pathlib import Path
from opendg.bench.ledger import Ledger
with Ledger(Path(sys.argv[1])).hold("one") as mine:
    print(mine, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path)
    made.prepare()
    return made


def test_a_lock_ends_with_the_process_that_holds_it(ledger: Ledger) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(ledger.runs)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with ledger.hold("one", patience=0) as mine:
            assert not mine
        assert ledger.state("one") == "running"
        holder.kill()
        holder.wait()
    with ledger.hold("one", patience=0) as mine:
        assert mine, "the lock file is still there, but nobody holds it"
    assert ledger.state("one") == "left"


def test_a_folder_that_may_not_be_written_to_is_looked_at(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.begin("one", Cell("erm", "pacs", "sketch"))
    with ledger.hold("one"):
        pass
    whole = os.open

    def of_a_read_only_disk(path: str, flags: int, *more: Any, **named: Any) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return whole(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", of_a_read_only_disk)
    assert ledger.state("one") == "interrupted"
    with pytest.raises(OpenDGError, match="may not be written to: choose another place"), ledger.hold("one"):
        pass


def test_those_who_look_do_not_see_one_another(ledger: Ledger) -> None:
    with ledger.hold("one"):
        pass
    with (ledger.folder / "one.lock").open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        assert not ledger.is_held("one")


def test_a_run_is_seen_to_be_held_where_there_is_no_fcntl(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert not ledger.is_held("one")
    assert not (ledger.folder / "one.lock").exists()
    with ledger.hold("one"):
        assert ledger.is_held("one")
    assert not ledger.is_held("one")


def test_the_life_of_a_run(ledger: Ledger) -> None:
    cell = Cell("erm", "pacs", "sketch")
    assert ledger.state("one") == "left"
    ledger.begin("one", cell)
    assert ledger.state("one") == "interrupted"
    ledger.end("one", outcome="failed", error="No luck.")
    assert (ledger.state("one"), ledger.read("one").error) == ("failed", "No luck.")
    ledger.begin("one", cell)
    assert ledger.state("one") == "interrupted"
    ledger.end("one", outcome="done", scores=["cls"])
    assert ledger.state("one") == "interrupted", "without a record nothing is done"
    (ledger.runs / "one").mkdir()
    (ledger.runs / "one" / "evaluation-selected.json").write_text("{}")
    assert ledger.state("one") == "done"
    assert ledger.state("one", ("cls",)) == "done"
    assert ledger.state("one", ("energy",)) == "interrupted", "another score is asked for"
    assert len(ledger.read("one").attempts) == 2


def test_a_worker_that_dies_before_it_begins_leaves_earlier_attempts_as_they_were(ledger: Ledger) -> None:
    ledger.begin("one", Cell("erm", "pacs", "sketch"))
    ledger.end("one", outcome="done", scores=[])
    ledger.end("one", outcome="failed", error="Gone.")
    assert [attempt["outcome"] for attempt in ledger.read("one").attempts] == ["done", "failed"]


def test_a_damaged_ledger_is_a_sentence(ledger: Ledger) -> None:
    (ledger.folder / "one.json").write_text("{")
    with pytest.raises(OpenDGError, match="The ledger of 'one' is damaged"):
        ledger.read("one")


def test_steps_are_read_from_a_torn_log(ledger: Ledger) -> None:
    assert ledger.steps("one") == 0
    (ledger.runs / "one").mkdir()
    (ledger.runs / "one" / "log.jsonl").write_text('{"step": 50, "losses": {}}\n{"step": 100, "lo')
    assert ledger.steps("one") == 50


def test_a_plan_is_not_written_without_its_lock(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 0.01)
    with (
        FileLock(ledger.folder / "plans" / "mine.lock"),
        pytest.raises(OpenDGError, match="ledger of mine .*try again"),
    ):
        ledger.keep_plan("mine", {})
    assert not ledger.plans()


def test_an_attempt_that_stopped_has_not_ended(ledger: Ledger) -> None:
    cell = Cell("erm", "pacs", "sketch")
    ledger.begin("one", cell)
    assert ledger.read("one").ended == 0
    ledger.begin("one", cell)
    ledger.end("one", outcome="failed", error="No luck.")
    entry = ledger.read("one")
    assert (entry.ended, entry.failed_since(0), entry.failed_since(1)) == (1, True, False)


def test_the_newest_checkpoint_is_where_a_run_will_go_on(ledger: Ledger) -> None:
    assert ledger.checkpoint("one") == 0
    folder = ledger.runs / "one" / "checkpoints"
    folder.mkdir(parents=True)
    for step in (50, 100):
        (folder / f"step-{step:08d}.json").touch()
    assert ledger.checkpoint("one") == 100


def test_runners_that_have_each_a_part_of_a_plan_add_up(ledger: Ledger) -> None:
    """Status counts what all of them were asked for, and not what a changed plan has put another run in place of."""

    def ask(names: list[str], notes: tuple[str, ...] = (), **recipe: int) -> None:
        cells = {name: Cell("erm", "pacs", "sketch", int(name[-1]), recipe=recipe, notes=notes) for name in names}
        said = {name: {"cell": cell.to_json(), "iterations": 8, "seconds": 1.0} for name, cell in cells.items()}
        ledger.keep_plan("mine", said)

    ask(["long-0", "long-1"])
    ask(["long-2"])
    ask(["long-1"])
    assert set(ledger.plans()["mine"]) == {"long-0", "long-1", "long-2"}
    ask(["short-0", "short-1"], iterations=3)
    assert set(ledger.plans()["mine"]) == {"short-0", "short-1", "long-2"}
    ask(["tuned-0", "tuned-1", "tuned-2"], ("Found by a search.",), iterations=5)
    assert set(ledger.plans()["mine"]) == {"tuned-0", "tuned-1", "tuned-2"}


def test_a_damaged_plan_is_a_sentence(ledger: Ledger) -> None:
    (ledger.folder / "plans" / "mine.json").write_text("{")
    with pytest.raises(OpenDGError, match=r"What 'mine' asked for is damaged in the ledger .*: remove .*mine\.json"):
        ledger.plans()
