from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opendg.seeds import derive, generator


@given(seed=st.integers(-(2**70), 2**70), step=st.integers(0, 10**9))
def test_a_seed_fits_every_generator(seed: int, step: int) -> None:
    assert 0 <= derive(seed, "episodes", step) < 2**63


def test_seeds_are_the_same_everywhere() -> None:
    """Runs made elsewhere or long ago draw the same: this number must never change."""
    assert derive(0, "episodes", 0) == 8549066772430184664
    assert generator(3, "augment", 7).integers(2**32) == generator(3, "augment", 7).integers(2**32)


def test_every_use_and_every_step_has_its_own() -> None:
    uses = [(seed, name, step) for seed in range(3) for name in ("episodes", "augment", "init") for step in range(50)]
    assert len({derive(*use) for use in uses}) == len(uses)


def test_neighbouring_seeds_are_unrelated() -> None:
    draws = np.array([generator(0, "episodes", step).normal(size=64) for step in range(64)])
    correlation = np.corrcoef(draws)[~np.eye(64, dtype=bool)]
    assert abs(correlation.mean()) < 0.01
    assert abs(correlation).max() < 0.6
