"""MetaReg: learn a weighted L1 penalty on the classifier that helps from domain to domain, then train with it.

Balaji, Sankaranarayanan, Chellappa, MetaReg: Towards Domain Generalization using Meta-Regularization, NeurIPS 2018,
https://papers.nips.cc/paper/2018/hash/647bba344396e7c8170902bcf2e15551-Abstract.html. With w the K x d weights of the
closed-set layer on the features f:

    R_phi(w) = sum_i phi_i |w_i|
    first   a shared network with a head w_a for each source domain;  for domains a != b:
            w^  = w_a after some steps w <- w - alpha grad [ CE_a(w) + R_phi(w) ] on images of a
            phi <- max(0, phi - eta grad_phi CE_b(w^)),  back through all those steps, on images of b
    then    phi stays as it is; the network starts anew:  min CE + R_phi(w) on all domains

Both parts are one run: the first takes the share `meta` of its iterations, after which weights and BatchNorm statistics
go back to where they started. The features that phi is learned on are those of the iteration's own images, fixed.

Needs the pooled features. Cost: that of ERM and some fifty small products an iteration (only the head is unrolled); the
final network sees 1 - `meta` of the iterations. A copy of the weights. Under the common recipe, whose rate falls at
80 % of the run, that is half of ERM's training: of 2,000 iterations on PACS, its loss ends where ERM's is after 800.
The authors' code is not public. Chosen here: the lengths of the parts (10 and 15 epochs) and the number of steps from a
public re-implementation, alpha small enough for the curvature of a head on ReLU features, eta so that phi comes to
matter within a thousand iterations; phi starts at 0 and is kept from going negative. One batch serves all the steps
from w_a. The optimiser's moments live on over the new start; a mean of weights would reach back over it, so
`--average-over` is refused. No `--recipe authors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from opendg.episodes import Episode, Pool
from opendg.losses import cross_entropy
from opendg.methods.base import Method, State, Update, gradients
from opendg.methods.chance import permutation
from opendg.methods.checks import at_least, below
from opendg.methods.erm import ERM, classification_losses, scaled, total
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Weights


class DomainHeads(nn.Module):
    """One linear layer a source domain, side by side."""

    def __init__(self, width: int, classes: int, domains: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(domains, classes, width))
        self.bias = nn.Parameter(torch.zeros(domains, classes))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight, gain=0.1)

    def forward(self, features: Tensor) -> Tensor:
        """(S, n, d) features of each domain to (S, n, K) logits of its own head."""
        return torch.baddbmm(self.bias[:, None], features, self.weight.mT)


class MetaRegClassifier(Classifier):
    def __init__(self, backbone: Backbone, classes: int, head: str, domains: int) -> None:
        super().__init__(backbone, classes, head)
        self.domain_heads = DomainHeads(backbone.width, classes, domains)


class MetaReg(Method):
    name = "metareg"
    title = "MetaReg"
    paper = (
        "Balaji et al., MetaReg: Towards Domain Generalization using Meta-Regularization, NeurIPS 2018, "
        "https://papers.nips.cc/paper/2018/hash/647bba344396e7c8170902bcf2e15551-Abstract.html"
    )
    idea = "Meta-learn a weighted L1 penalty on the classifier across source domains, then train anew with it."
    kind = "meta-learning"
    cost = "1.3x"
    min_sources = 2

    @dataclass(frozen=True)
    class Config(ERM.Config):
        weight: float = 1.0  # of R_phi in the second part
        meta: float = 0.4  # share of the run that learns phi
        steps: int = 20  # unrolled steps of a domain's head
        alpha: float = 1e-3  # rate of these steps
        eta: float = 1e-2  # rate of phi

        def __post_init__(self) -> None:
            at_least(self, meta=0, steps=1)
            below(self, meta=1)

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.restarts = self.config.meta > 0

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        return MetaRegClassifier(backbone, classes, self.head, domains)

    def state(self, classifier: Classifier, pool: Pool) -> Weights:
        phi = torch.zeros_like(_layer(classifier).weight)
        start = {f"start.{name}": tensor.detach().clone() for name, tensor in classifier.moving().items()}
        return start | {"phi": phi, "learning": torch.ones((), dtype=phi.dtype, device=phi.device)}

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        assert isinstance(classifier, MetaRegClassifier)
        learning = (state.fraction < self.config.meta).to(classifier.precise)
        start_anew(classifier, state.own, learning)
        weights = classifier.weights()
        outputs = classifier.at(weights, episode.images)
        losses = classification_losses(outputs, episode, self.config.ova_scale)
        penalty = (state.own["phi"] * _layer(classifier).weight.abs()).sum()
        losses["metareg"] = self.config.weight * scaled(penalty, episode)
        features = torch.stack(outputs.features.split(episode.sizes))
        labels = torch.stack(episode.labels.split(episode.sizes))
        apart = cross_entropy(classifier.domain_heads(features).flatten(0, 1), labels.flatten()).sum() / episode.batch
        slope = self.slope(classifier.domain_heads, features.detach(), labels, episode.batch, state)
        yield Update(losses | {"heads": apart}, gradients(learning * apart + (1 - learning) * total(losses), weights))
        with torch.no_grad():
            state.own["phi"].sub_(self.config.eta * learning * slope).clamp_(min=0)

    def slope(self, heads: DomainHeads, features: Tensor, labels: Tensor, batch: int, state: State) -> Tensor:
        """grad_phi CE_b(w^), for a and b drawn at random; CE_b is a sum over images divided by B."""
        pair = permutation(state, len(features))[:2]
        (train, test), (answers, questions) = features[pair], labels[pair]
        phi = state.own["phi"].detach().clone().requires_grad_()
        weight, bias = (tensor.detach()[pair[:1]].squeeze(0) for tensor in (heads.weight, heads.bias))
        weight, bias = unroll(weight, bias, phi, train, answers, self.config.alpha, self.config.steps)
        loss = cross_entropy(test @ weight.T + bias, questions).sum() / batch
        return gradients(loss, {"phi": phi})["phi"]


def unroll(
    weight: Tensor, bias: Tensor, phi: Tensor, features: Tensor, labels: Tensor, alpha: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Steps of a linear head on mean CE + R_phi, the gradient written out so that phi can be differentiated through."""
    wanted = (labels[:, None] == torch.arange(len(bias), device=labels.device)).to(features.dtype)
    for _ in range(steps):
        error = (features @ weight.T + bias).softmax(1) - wanted
        weight = weight - alpha * (error.T @ features / len(features) + phi * weight.detach().sign())
        bias = bias - alpha * error.mean(0)
    return weight, bias


@torch.no_grad()
def start_anew(classifier: Classifier, own: Weights, learning: Tensor) -> None:
    """Weights and statistics as at the start of the run, in the first iteration that no longer learns phi."""
    back = own["learning"] * (1 - learning)
    own["learning"].copy_(learning)
    moving = classifier.moving()
    tensors, start = list(moving.values()), [own[f"start.{name}"] for name in moving]
    torch._foreach_mul_(tensors, 1 - back)
    torch._foreach_add_(tensors, torch._foreach_mul(start, back))


def _layer(classifier: Classifier) -> nn.Linear:
    layer = classifier.head.linear
    assert isinstance(layer, nn.Linear)
    return layer
