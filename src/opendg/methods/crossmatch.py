"""CrossMatch: adversarial images that no one-vs-all classifier claims teach the closed-set classifier to doubt.

Zhu, Li, CrossMatch: Cross-Classifier Consistency Regularization for Open-Set Single Domain Generalization, ICLR 2022,
https://openreview.net/forum?id=48RBsJwGkJf. Two kinds of images are made from source images x by `ascent` steps on
their pixels (f is the feature, q_k the one-vs-all probability of class k, p the closed-set softmax):

    known-like     max  CE + L_ova - g mean (f(x~) - f(x))^2
    unknown-like   max  -log q_y + sum_{j != y} log(1 - q_j) - g mean (f(x~) - f(x))^2       (leave y, join no other)

and the network minimises

    CE + L_ova on source and known-like images
    + L_ent on unknown-like ones: the entropy of (q_k, 1 - q_k), mean over k
    + a L_ccr on unknown-like ones: sum_k ||(q_k, 1 - q_k) - (p_k, 1 - p_k)||^2

Needs both heads (`ova=false` is refused). Confidence is -H(p), the entropy score; cls and bcls can be asked for.
The ascent runs in evaluation mode, so that it leaves BatchNorm alone. Cost: `share` of the images in each kind, each
made by `ascent` passes forward and back; with the defaults (1/12 and 5) 1.9 times ERM in images, more in time on a GPU
that such small passes leave idle.
Deviations: the authors' code is not known; the formulas are those of third-party notes, a = 1 and equal weights are
choices. Theirs alternates between training and the making of images that are kept, 15 steps of plain gradient ascent
each as in ADA; ours makes few new ones in every iteration from the weights of that moment, with 5 steps of a fixed
length: plain steps throw the images of a network with steep features far off, and 15 would cost 3.4 times ERM. The
change of the feature is a mean over its dimensions: as a sum it holds the images where they are. The method is made for
one source domain; here the source domains are pooled. Images that were made share the BatchNorm batch of those that
they were made from, and their pixels may leave the range of an image.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from opendg.episodes import Episode
from opendg.methods.base import Method, State, Update, gradients
from opendg.methods.chance import permutation
from opendg.methods.erm import ERM, classification_losses, image_losses, total
from opendg.models.classifier import Classifier, Outputs
from opendg.models.modes import evaluating


class CrossMatch(Method):
    name = "crossmatch"
    title = "CrossMatch"
    paper = "Zhu & Li, CrossMatch: Cross-Classifier Consistency Regularization, ICLR 2022, https://openreview.net/forum?id=48RBsJwGkJf"
    idea = "Make images that no one-vs-all classifier claims, and let the closed-set one agree on them."
    kind = "augmentation"
    cost = "2.6x (1.9x in images: the ascent runs in small passes)"
    score = "entropy"

    @dataclass(frozen=True)
    class Config(ERM.Config):
        ova: bool = True  # the method lives on the one-vs-all head
        share: float = 1 / 12  # of the images, at least one: made known-like, and as many unknown-like; 0 is ERM
        ascent: int = 5  # steps on the pixels
        reach: float = 1.0  # length of a step, over all normalised pixels of an image
        distance: float = 1.0  # g, what a change of the feature costs
        entropy: float = 1.0  # weight of L_ent
        consistency: float = 1.0  # a, weight of L_ccr

        def __post_init__(self) -> None:
            if not self.ova:
                raise ValueError("ova is false, and CrossMatch needs the one-vs-all head: leave it true")
            if not 0 <= self.share <= 1 or self.ascent < 0:
                raise ValueError(f"share is {self.share} (0 to 1) and ascent {self.ascent} (0 or more)")

    def step(self, classifier: Classifier, episode: Episode, state: State) -> Iterator[Update]:
        weights, share = classifier.weights(), self.config.share
        made = max(1, int(share * len(episode.labels))) if share else 0
        chosen = permutation(state, len(episode.labels))[:made]
        images = self.ascend(classifier, episode.images[chosen], episode.labels[chosen]) if made else episode.images[:0]
        outputs = classifier.at(weights, torch.cat([episode.images, images]))
        known, unknown = split(outputs, len(episode.labels) + made)
        labelled = replace(episode, labels=torch.cat([episode.labels, episode.labels[chosen]]))
        losses = classification_losses(known, labelled, self.config.ova_scale)
        losses["entropy"] = self.config.entropy * binary_entropy(margins(unknown)).mean(1).sum() / episode.batch
        losses["consistency"] = self.config.consistency * disagreement(unknown).sum() / episode.batch
        yield Update(losses, gradients(total(losses), weights))

    def ascend(self, classifier: Classifier, images: Tensor, labels: Tensor) -> Tensor:
        """The known-like images and after them the unknown-like ones, both made from the given images."""
        moved = images.repeat(2, 1, 1, 1).detach()
        with evaluating(classifier):
            with torch.no_grad():
                anchor = classifier(moved).features
            for _ in range(self.config.ascent):
                moved = moved.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.aim(classifier(moved), anchor, labels).sum(), moved)
                length = slope.flatten(1).norm(dim=1).clamp_min(torch.finfo(slope.dtype).tiny).view(-1, 1, 1, 1)
                moved = torch.add(moved, slope / length, alpha=self.config.reach)
        return moved.detach()

    def aim(self, outputs: Outputs, anchor: Tensor, labels: Tensor) -> Tensor:
        """What the pixels climb, an image each."""
        known, unknown = split(outputs, len(labels))
        wrong = image_losses(known, labels, self.config.ova_scale)
        far = (outputs.features - anchor).square().mean(1)
        price: float = self.config.distance
        return torch.cat([wrong, unclaimed(margins(unknown), labels)]) - price * far


def split(outputs: Outputs, at: int) -> tuple[Outputs, Outputs]:
    """The outputs for the first `at` images, and those for the others."""
    features, logits, ova = outputs
    assert ova is not None
    return Outputs(features[:at], logits[:at], ova[:at]), Outputs(features[at:], logits[at:], ova[at:])


def margins(outputs: Outputs) -> Tensor:
    """log q_k / (1 - q_k), (n, K)."""
    assert outputs.ova is not None
    return outputs.ova[:, 1] - outputs.ova[:, 0]


def unclaimed(margin: Tensor, labels: Tensor) -> Tensor:
    """-log q_y + sum_{j != y} log(1 - q_j), an image each."""
    own = torch.zeros_like(margin, dtype=torch.bool).scatter(1, labels[:, None], True)
    return torch.where(own, F.softplus(-margin), -F.softplus(margin)).sum(1)


def binary_entropy(margin: Tensor) -> Tensor:
    """H(q_k, 1 - q_k) from the margin m: q softplus(-m) + (1 - q) softplus(m)."""
    q = margin.sigmoid()
    return q * F.softplus(-margin) + (1 - q) * F.softplus(margin)


def disagreement(outputs: Outputs) -> Tensor:
    """sum_k ||(q_k, 1 - q_k) - (p_k, 1 - p_k)||^2 = 2 sum_k (q_k - p_k)^2, an image each."""
    return 2 * (margins(outputs).sigmoid() - outputs.logits.softmax(1)).square().sum(1)
