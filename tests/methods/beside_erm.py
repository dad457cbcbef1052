"""A method beside ERM on the same small network and images, in float64: which gradients differ?"""

from __future__ import annotations

import torch
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Method, State
from opendg.methods.erm import ERM
from opendg.models.classifier import Classifier
from small import small_classifier, small_episode, small_state

DOMAINS = (4, 4, 4)  # images of three source domains, a task each


def domain_episode(sizes: tuple[int, ...] = DOMAINS, classes: int = 4) -> Episode:
    """As ERM's tasks make it: one domain after the other."""
    plain = small_episode(sizes, classes)
    domains = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Episode(plain.images, plain.labels, domains, plain.positions, sizes, plain.batch)


def pair(method: Method, batchnorm: bool = True) -> tuple[Classifier, Classifier]:
    """The method's network and ERM's with the same weights."""
    mine = small_classifier(method, batchnorm=batchnorm)
    plain = small_classifier(ERM(ERM.Config(ova=method.config.ova)), batchnorm=batchnorm)
    shared = {name: tensor for name, tensor in mine.state_dict().items() if name in plain.state_dict()}
    plain.load_state_dict(shared)
    return mine, plain


def gradients_of(
    method: Method, classifier: Classifier, episode: Episode, state: State | None = None
) -> dict[str, Tensor]:
    """All gradients of one step, of whichever update; no update is applied."""
    found: dict[str, Tensor] = {}
    for update in method.step(classifier, episode, state or small_state()):
        assert not set(found) & set(update.gradients)
        found |= update.gradients
    return found


def compare(method: Method, state: State | None = None, episode: Episode | None = None) -> dict[str, bool]:
    """For each weight of ERM's network: is the method's gradient bit by bit ERM's?"""
    mine, plain = pair(method)
    episode = episode or domain_episode()
    found = gradients_of(method, mine, episode, state)
    expected = gradients_of(ERM(ERM.Config(ova=method.config.ova)), plain, episode)
    return {name: torch.equal(found[name], gradient) for name, gradient in expected.items()}


def equals_erm(method: Method, state: State | None = None) -> bool:
    return all(compare(method, state).values())
