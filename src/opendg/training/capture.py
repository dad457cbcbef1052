"""The whole step in one CUDA graph: what the host says once, the device repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

WARM_UP = 3


def capture(
    step: Callable[[], None], tensors: Iterable[Tensor], generators: Iterable[torch.Generator]
) -> Callable[[], None]:
    """A function that does what `step` does, replayed from a graph.

    `step` reads and writes tensors in place; all that it changes must be among `tensors` and `generators`, for the
    warm-up steps that capture needs are undone: after this call they hold what they held before.
    """
    tensors, generators = list(tensors), list(generators)
    before = [tensor.detach().clone() for tensor in tensors]
    states = [random.get_state() for random in generators]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    _restore(tensors, before, generators, states)
    graph = torch.cuda.CUDAGraph()
    for random in generators:
        graph.register_generator_state(random)
    # On its own stream: libraries keep a workspace for each, and graphs that share one must not run side by side.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # the feed's thread goes on
        step()
    _restore(tensors, before, generators, states)
    return graph.replay


def _restore(
    tensors: list[Tensor], before: list[Tensor], generators: list[torch.Generator], states: list[Tensor]
) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
    for random, state in zip(generators, states, strict=True):
        random.set_state(state)
