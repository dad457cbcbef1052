"""DSON: each source domain has normalisation layers of its own, which mix batch and instance statistics.

Seo, Suh, Kim, Kim, Han, Han, ECCV 2020, https://arxiv.org/abs/1907.04275. Every BatchNorm layer becomes, for an image
of source domain d,

    y = gamma_d (x - mu) / sqrt(s + eps) + beta_d
    mu = w_d mu_image + (1 - w_d) mu_batch,    s = v_d s_image + (1 - v_d) s_batch

with the statistics of the image (mu_image, s_image) and of the images of d in the batch (mu_batch, s_batch; running
averages in evaluation). w_d and v_d are one number each for a layer and a domain, the softmax of two learnt values that
start equal; gamma_d, beta_d and the running averages start as copies of the layer that is replaced. The loss is ERM's.

In evaluation an image goes through the layers of every source domain, and the S softmax outputs are averaged. The
logits given out say the same: log mean_d softmax(z_d) + mean_d logsumexp(z_d), so that their softmax is that average
and their energy the average energy; one-vs-all outputs and features are averaged as well.

Needs BatchNorm: a backbone without it (the ConvNet) is refused. Domains must have equally many images in a batch, as
they do. Cost: that of ERM in images, 2.5 times in time, for no fused kernel is made for this layer; S
times in evaluation.
What to expect: half of the statistics of every layer are at first the image's own, which pretrained weights do not
know. On PACS (ResNet-18, common recipe, one seed) its training loss is after 2,000 iterations where ERM's is after 700;
it gains on targets whose style is far off (sketch, cartoon), and with target photo it takes more unknowns for known.
Deviations: the authors' code is not public (the notes know a copy of their module elsewhere, whose running variance
starts at 0; ours at the pretrained value). That predictions are averaged, and not logits, is a choice.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from opendg.errors import OpenDGError
from opendg.methods.erm import ERM
from opendg.models.backbones import Backbone
from opendg.models.classifier import Classifier, Outputs
from opendg.models.parted import log_mean, mean_logits
from opendg.models.stages import Touch, style


class DomainNorm(nn.Module):
    """In the place of a BatchNorm2d. Its input holds equally many images of each domain, one domain after the other."""

    weight: nn.Parameter  # these four: (S, C)
    bias: nn.Parameter
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: nn.BatchNorm2d, domains: int) -> None:
        super().__init__()
        self.domains, self.eps, self.momentum = domains, norm.eps, norm.momentum or 0.1
        for name, start in (("weight", torch.ones), ("bias", torch.zeros)):
            found = getattr(norm, name) if norm.affine else start(norm.num_features)
            self.register_parameter(name, nn.Parameter(found.detach().repeat(domains, 1)))
        self.mean_mix, self.variance_mix = (nn.Parameter(torch.ones(domains, 2)) for _ in range(2))  # image, batch
        for name, start in (("running_mean", torch.zeros), ("running_var", torch.ones)):
            found = getattr(norm, name) if norm.track_running_stats else start(norm.num_features)
            self.register_buffer(name, found.detach().repeat(domains, 1))
        self.then = nn.Sequential(*norm.children())  # timm's BatchNormAct2d holds what follows it

    def forward(self, images: Tensor) -> Tensor:
        mean, variance = (part.view(self.domains, -1, images.shape[1]) for part in style(images))  # (S, m, C)
        batch_mean, batch_variance = self.statistics(mean, variance, images[0, 0].numel())
        mean = _mix(self.mean_mix, mean, batch_mean)
        scale = self.weight[:, None] / (_mix(self.variance_mix, variance, batch_variance) + self.eps).sqrt()
        shift = self.bias[:, None] - mean * scale
        each = (len(images), -1, 1, 1)
        y = (images * scale.view(each) + shift.view(each)).to(images.dtype)
        found: Tensor = self.then(y)
        return found

    def statistics(self, mean: Tensor, variance: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
        """Mean and variance over the images of each domain, (S, C): of this batch, or the running ones."""
        if not self.training:
            return self.running_mean, self.running_var
        count = mean.shape[1] * pixels
        variance = variance.mean(1) + mean.var(1, correction=0)  # within the images and between them
        mean = mean.mean(1)
        with torch.no_grad():
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = variance * (count / max(count - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return mean, variance


def _mix(raw: Tensor, image: Tensor, batch: Tensor) -> Tensor:
    """(S, m, C) from the statistics of images (S, m, C) and of batches (S, C), with a share for each domain."""
    image_share, batch_share = raw.softmax(1)[:, :, None, None].unbind(1)
    return image_share * image + batch_share * batch[:, None]


class DomainClassifier(Classifier):
    """A Classifier whose BatchNorm layers know S domains; in evaluation an image is seen as one of each."""

    def __init__(self, backbone: Backbone, classes: int, head: str, domains: int) -> None:
        super().__init__(backbone, classes, head)
        self.domains = domains
        for name, module in list(backbone.named_modules()):
            if isinstance(module, nn.BatchNorm2d):
                parent, _, last = name.rpartition(".")
                setattr(backbone.get_submodule(parent), last, DomainNorm(module, domains))

    def forward(self, images: Tensor, touches: Mapping[str, Touch] | None = None) -> Outputs:
        if self.training:
            return super().forward(images, touches)
        return averaged(super().forward(images.repeat(self.domains, 1, 1, 1), touches), self.domains)


def averaged(outputs: Outputs, domains: int) -> Outputs:
    """The outputs for S copies of a batch as one: means of features, of softmax outputs, of energies."""
    features, logits = (part.unflatten(0, (domains, -1)) for part in (outputs.features, outputs.logits))
    ova = None if outputs.ova is None else log_mean(outputs.ova.unflatten(0, (domains, -1)).log_softmax(2))
    return Outputs(features.mean(0), mean_logits(logits), ova)


class DSON(ERM):
    name = "dson"
    title = "DSON"
    paper = "Seo et al., Learning to Optimize Domain Specific Normalization for Domain Generalization, ECCV 2020, https://arxiv.org/abs/1907.04275"
    idea = "Normalise each domain by itself, with a learnt mix of batch and instance statistics."
    kind = "normalisation"
    cost = "2.5x (its normalisation is no fused kernel); S times in evaluation"
    authors = None

    def build(self, backbone: Backbone, classes: int, domains: int) -> Classifier:
        if not any(isinstance(module, nn.BatchNorm2d) for module in backbone.modules()):
            raise OpenDGError(
                f"DSON replaces the BatchNorm layers of a backbone, and {backbone.name!r} has none: choose one that "
                "has, such as resnet18.tv_in1k."
            )
        return DomainClassifier(backbone, classes, self.head, domains)
