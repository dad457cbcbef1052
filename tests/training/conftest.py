from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import write_tree


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small dataset. Tests that change it make their own."""
    return write_tree(tmp_path_factory.mktemp("data") / "signs")
