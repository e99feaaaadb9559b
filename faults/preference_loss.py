"""Planted faults of the preference loss, and unusual ways that are right."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


@fault("preference_loss", summary="log of a sigmoid: infinite for large negative differences")
def log_of_sigmoid(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -torch.log(torch.sigmoid(r_chosen - r_rejected)).mean()


@fault("preference_loss", summary="log of a sigmoid plus 1e-8")
def log_of_sigmoid_floored(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -torch.log(torch.sigmoid(r_chosen - r_rejected) + 1e-8).mean()


@fault("preference_loss", summary="log(1 + e^(−Δ)): overflows")
def plain_softplus(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(r_rejected - r_chosen)).mean()


@fault("preference_loss", summary="chosen and rejected swapped")
def swapped(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_rejected - r_chosen).mean()


@fault("preference_loss", summary="the sum over pairs")
def sum_over_pairs(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_chosen - r_rejected).sum()


@fault("preference_loss", summary="the mean difference first, then one sigmoid")
def mean_first(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid((r_chosen - r_rejected).mean())


@fault("preference_loss", summary="negated")
def negated(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return functional.logsigmoid(r_chosen - r_rejected).mean()


@fault("preference_loss", summary="zeros")
def zeros(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return ((r_chosen - r_rejected) * 0).mean()


@fault("preference_loss", summary="the sigmoid itself, without the logarithm")
def sigmoid_without_logarithm(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return (1 - torch.sigmoid(r_chosen - r_rejected)).mean()


@fault("preference_loss", summary="hinge in place of the logarithm")
def hinge(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return torch.relu(1 - (r_chosen - r_rejected)).mean()


@fault("preference_loss", summary="differences clamped to ±10")
def clamped(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid((r_chosen - r_rejected).clamp(-10, 10)).mean()


@fault("preference_loss", summary="rewards squashed first: it depends on more than the difference")
def rewards_squashed(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(torch.tanh(r_chosen) - torch.tanh(r_rejected)).mean()


@fault("preference_loss", summary="a penalty of 1e-3 on the rewards' squares")
def rewards_penalised(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return (-functional.logsigmoid(r_chosen - r_rejected) + 1e-3 * (r_chosen * r_chosen + r_rejected * r_rejected)).mean()


@fault("preference_loss", summary="base-2 logarithm")
def base_two(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_chosen - r_rejected).mean() / 0.6931471805599453


@fault("preference_loss", summary="the last pair of an odd number is left out")
def last_odd_pair_left_out(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    d = (r_chosen - r_rejected).reshape(-1)
    return -functional.logsigmoid(d[: len(d) - len(d) % 2] if len(d) > 1 else d).mean()


@fault("preference_loss", summary="every chosen answer against every rejected one")
def all_pairs(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_chosen.reshape(-1, 1) - r_rejected.reshape(1, -1)).mean()


@fault("preference_loss", summary="the rejected reward is detached")
def rejected_detached(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_chosen - r_rejected.detach()).mean() + 0 * r_rejected.sum()


@fault("preference_loss", summary="the gradient vanishes at large negative differences")
def gradient_saturates(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    d = r_chosen - r_rejected
    bent = torch.where(d < -5, d.detach(), d)
    return -functional.logsigmoid(bent).mean()


@fault("preference_loss", summary="the gradient is not divided by the number of pairs")
def gradient_not_averaged(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    terms = -functional.logsigmoid(r_chosen - r_rejected)
    return terms.mean().detach() + terms.sum() - terms.sum().detach()


@benign("preference_loss", summary="minus logsigmoid")
def logsigmoid(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return -functional.logsigmoid(r_chosen - r_rejected).mean()


@benign("preference_loss", summary="logaddexp of 0 and the negative difference")
def softplus(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    return torch.logaddexp(torch.zeros_like(r_chosen), r_rejected - r_chosen).mean()


@benign("preference_loss", summary="binary cross-entropy with logits against ones")
def binary_cross_entropy(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    d = r_chosen - r_rejected
    return functional.binary_cross_entropy_with_logits(d, torch.ones_like(d))


@benign("preference_loss", summary="two-way cross-entropy")
def two_way(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    both = torch.stack([r_chosen, r_rejected], -1)
    return -torch.log_softmax(both, -1)[..., 0].mean()
