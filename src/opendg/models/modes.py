"""Training and evaluation mode of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """While this is open the network is in evaluation mode; then it is in the mode that it was in."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
