from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.tiny import quick, write_tree

sys.path.insert(0, str(Path(__file__).parent))  # tests share `small`

SHARED = Path(__file__).parents[2] / "shared"

# A machine at work elsewhere, or a first import inside an example, is no fault of the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real data and weights that lie beside the clone."""
    if not SHARED.is_dir():
        pytest.skip("needs the real data in ../shared, which is not here")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees the data of the one who runs it, or writes into their cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENDG_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("OPENDG_DATA", raising=False)
        yield


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small dataset of `tiny`. Tests that change it make their own."""
    return write_tree(tmp_path_factory.mktemp("data") / "signs")


@pytest.fixture(scope="session")
def trained(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of MEDIC on it that has learnt something. Tests that change it copy it."""
    from opendg.training.train import train

    asked = quick(iterations=60, batch=3, optimizer="adam", lr=1e-3, average_over=0.5)
    return train("medic", str(tree), out=tmp_path_factory.mktemp("runs") / "trained", **asked).path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
