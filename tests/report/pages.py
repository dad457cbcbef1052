"""What the tests of the report read out of a finished page."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def data_of(page: Path) -> dict[str, Any]:
    (text,) = DATA.findall(page.read_text())
    return dict(json.loads(text))


def run_of(data: dict[str, Any], name: str) -> dict[str, Any]:
    (run,) = [run for run in data["runs"] if run["name"] == name]
    return dict(run)


def unpack(text: str, kind: str) -> NDArray[Any]:
    return np.frombuffer(base64.b64decode(text), kind)


def record_of(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "evaluation-selected.json").read_text()))
