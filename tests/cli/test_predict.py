"""What `opendg predict` writes: names that its output cannot encode, and rows as they come."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import threading
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from opendg.cli import main


@pytest.mark.parametrize("kind", ["table", "csv"])
@pytest.mark.parametrize(
    ("encoding", "shown"), [("utf-8", [r"\udcff.png", "ä.png"]), ("ascii", [r"\udcff.png", r"\xe4.png"])]
)
def test_a_name_that_cannot_be_written_is_spelled_out(
    trained: Path,
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    encoding: str,
    shown: list[str],
) -> None:
    for name in (b"\xff.png", "ä.png".encode()):
        shutil.copy(tree / "ink" / "bar" / "000.png", os.fsencode(tmp_path) + b"/" + name)
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding))  # as PYTHONIOENCODING sets it up
    monkeypatch.setattr(sys, "argv", ["opendg", "predict", str(trained), ".", "--format", kind])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main()
    sys.stdout.flush()
    assert not end.value.code
    assert all(name in written.getvalue().decode(encoding) for name in shown)


SLOW = """
import sys
from opendg.cli import main
from opendg.deploy.recognizer import Recognizer
read = Recognizer._read
def wait(self, image, number):
    if number == 64:
        sys.stdin.read()
    return read(self, image, number)
Recognizer._read = wait
main()
"""


def test_rows_of_csv_are_there_when_their_batch_is_done(trained: Path, tree: Path) -> None:
    """The second batch waits until the rows of the first have been read. They end as lines do."""
    words = [sys.executable, "-c", SLOW, "predict", trained, tree, "--format", "csv"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        patience = threading.Timer(60, process.kill)
        patience.start()
        first = [process.stdout.readline().decode() for _ in range(65)]
        process.stdin.close()
        rest = process.stdout.readlines()
        patience.cancel()
    assert process.returncode == 0, "the rows were never written"
    assert [row["error"] for row in csv.DictReader(first)] == [""] * 64
    assert len(rest) == 128
    assert "\r" not in "".join(first)
