"""Arith: arithmetic meta-learning, the inner steps of MEDIC++ with weights that fall evenly.

Wang, Zhang, Qi, Shi, Balanced Direction from Multifarious Choices: Arithmetic Meta-Learning for Domain Generalization,
CVPR 2025, https://arxiv.org/abs/2503.18987. The steps are those of MEDIC++; the outer gradient is

    sum_s eta_s g_s,   eta_s = 2 (m - s) / (m + 1),   s = 0 .. m - 1:   1.5, 1, 0.5 for three steps

which points from theta to the mean of theta_1 .. theta_m, scaled so that the weights sum to m: a plain sequence of
steps ends near the optimum of the last task, their mean lies in the middle of all.

Needs from the backbone: nothing. Cost: that of MEDIC++.

Deviations: a preset of `medic++` with its tasks, one-vs-all head and score; the paper's own setting, closed-set with
domains alone as tasks, is `task_c=1`, `ova=false`. The authors' code multiplies eta_s by 1 / alpha = 100, which under
SGD is a hundredfold learning rate; here the gradient keeps the scale of MEDIC++ and both train with the same rate.
"""

from __future__ import annotations

from opendg.methods.medicpp import MEDICpp


class Arith(MEDICpp):
    name = "arith"
    title = "Arith"
    paper = "Wang et al., Balanced Direction from Multifarious Choices, CVPR 2025, https://arxiv.org/abs/2503.18987"
    idea = "Weight the inner steps in falling arithmetic progression, so that no last task wins."
    authors = None

    def step_weights(self, steps: int) -> list[float]:
        return [2 * (steps - step) / (steps + 1) for step in range(steps)]
