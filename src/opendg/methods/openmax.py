"""OpenMax: ERM, read with the score `openmax`.

Bendale and Boult, Towards Open Set Deep Networks, CVPR 2016, https://arxiv.org/abs/1511.06233. Training is ERM's; after
it, Weibull tails F_k of the distances of source images to their class mean mu_k in logit space revise the logits:

    z'_k = z_k w_k,    z'_0 = sum_k z_k (1 - w_k),    w_k = 1 - omega_k F_k(||z - mu_k||),
    confidence = max_{k >= 1} P_k,    P = softmax(z'_0, z'_1 .. z'_K)

omega_k falls with the rank of class k among the logits. `opendg.scores.openmax` has the whole formula and how it
differs from public codes; the run keeps the tails. Any other run can be read with it too (`--score openmax`).

Needs logits only. Cost: that of ERM and one pass over the source images when the score is fitted.
"""

from __future__ import annotations

from opendg.methods.erm import ERM


class OpenMax(ERM):
    name = "openmax"
    title = "OpenMax"
    paper = "Bendale and Boult, Towards Open Set Deep Networks, CVPR 2016, https://arxiv.org/abs/1511.06233"
    idea = "ERM; logits are revised by how far an image lies from its class, with an added unknown output."
    kind = "open-set"
    score = "openmax"
    authors = None
