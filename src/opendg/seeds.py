"""Named random numbers: every use of chance has its own seed, derived from the run's, so one never shifts another."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, *names: str | int) -> int:
    """A seed of 63 bits for one named use."""
    text = ":".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *names: str | int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))
