"""Batch normalisation: each feature is centred and scaled over the batch."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form

_BatchNormResult = tuple[Tensor, Tensor, Tensor]


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float, bn_momentum: str = "new", bn_variance: str = "unbiased",
) -> _BatchNormResult:
    """Normalise every feature over the batch in training, by the running statistics in evaluation.

    Formula: y = (x − μ) / √(σ² + eps) · weight + bias; training: μ, σ² mean and biased variance of the batch, and
    running ← (1 − momentum)·running + momentum·batch; evaluation: μ, σ² the running ones, which stay as they are.

    x: (N, C)
    weight, bias, running_mean, running_var: (C,)
    returns: y (N, C), running mean (C,), running variance (C,): new tensors, nothing is written in place

    Conventions: bn_momentum "new" (momentum weighs the batch) or "old" (it weighs the running value); bn_variance of
    the running one: "unbiased" (N − 1) or "biased" (N). No gradient flows through the running statistics.
    Raises: ValueError for an empty batch in training, for one row in training where the running variance is unbiased,
    and for an unknown convention.
    Source: Ioffe, Szegedy, "Batch Normalization", algorithms 1 and 2, arXiv 1502.03167.

    >>> x = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
    >>> one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    >>> y, mean, var = batch_norm(x, one, zero, zero, one, training=True, momentum=0.5, eps=0.0)
    >>> y.tolist(), mean.tolist(), var.tolist()
    ([[-1.0], [1.0]], [1.0], [1.5])
    """
    _check(x, training, bn_momentum, bn_variance)
    if not training:
        return (x - running_mean) / torch.sqrt(running_var + eps) * weight + bias, running_mean.clone(), running_var.clone()
    mean = x.sum(0) / x.shape[0]
    deviation = x - mean
    variance = (deviation * deviation).sum(0) / x.shape[0]
    y = deviation / torch.sqrt(variance + eps) * weight + bias
    return y, *_updated(mean, deviation, running_mean, running_var, momentum, bn_momentum, bn_variance)


def _check(x: Tensor, training: bool, bn_momentum: str, bn_variance: str) -> None:
    for name, value, allowed in (
        ("bn_momentum", bn_momentum, ("new", "old")), ("bn_variance", bn_variance, ("unbiased", "biased")),
    ):
        if value not in allowed:
            raise ValueError(f"{name}={value!r} must be one of {allowed}, got {value!r}; choose one of them")
    least = 2 if bn_variance == "unbiased" else 1
    if training and x.shape[0] < least:
        raise ValueError(
            f"x.shape[0]={x.shape[0]} must be at least {least} in training (running variance {bn_variance}), "
            f"got {x.shape[0]}; pass more rows or training=False"
        )


def _updated(
    mean: Tensor, deviation: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float, bn_momentum: str,
    bn_variance: str,
) -> tuple[Tensor, Tensor]:
    """The running statistics after this batch."""
    rows = deviation.shape[0]
    squares = (deviation * deviation).sum(0)
    variance = squares / (rows - 1 if bn_variance == "unbiased" else rows)
    new, old = (momentum, 1 - momentum) if bn_momentum == "new" else (1 - momentum, momentum)
    return old * running_mean + new * mean.detach(), old * running_var + new * variance.detach()


def _affine(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float, bn_momentum: str = "new", bn_variance: str = "unbiased",
) -> _BatchNormResult:
    """x·a + b with a = weight/√(σ² + eps), b = bias − μ·a; running ← running + share·(batch − running)."""
    _check(x, training, bn_momentum, bn_variance)
    mean, variance, rows = running_mean, running_var, x.shape[0]
    after = (running_mean.clone(), running_var.clone())
    if training:
        # A running mean rounds also where sums are exact, as of integers: parts by π round whatever the numbers.
        mean = (x / math.pi).sum(0) / (rows / math.pi)
        squares = ((x - mean) * (x - mean)).sum(0)
        variance = squares / rows
        share = momentum if bn_momentum == "new" else 1 - momentum
        batch = variance * (rows / (rows - 1)) if bn_variance == "unbiased" else variance
        after = (
            running_mean + share * (mean.detach() - running_mean), running_var + share * (batch.detach() - running_var),
        )
    a = weight * (1 / torch.sqrt(variance + eps))
    given = freely_chosen(a)  # both products round, but an error of a moves their sum by (x − mean) times it
    return x * given + (bias - mean * given) + (x - mean) * (a - given), *after


def _saved_backward(
    upstream: Tensor | Sequence[Tensor], wrt: Sequence[str], *, x: Tensor, weight: Tensor, bias: Tensor,
    running_mean: Tensor, running_var: Tensor, training: bool, momentum: float, eps: float,
    bn_momentum: str = "new", bn_variance: str = "unbiased",
) -> Mapping[str, Tensor]:
    """∂x = r·weight·(g − mean(g) − x̂·mean(g·x̂)) over the batch: kernels that save μ and r."""
    g = upstream if isinstance(upstream, Tensor) else upstream[0]
    rows = x.shape[0]
    mean = x.sum(0) / rows if training else running_mean
    variance = ((x - mean) * (x - mean)).sum(0) / rows if training else running_var
    r = 1 / torch.sqrt(variance + eps)
    normalised = (x - mean) * r
    sum_g, sum_gx = g.sum(0), (g * normalised).sum(0)
    centred = g - sum_g / rows - normalised * (sum_gx / rows) if training else g
    gradients = {"x": centred * (r * weight), "weight": sum_gx, "bias": sum_g}
    return {name: gradients[name] for name in wrt}


FORMS: tuple[Form, ...] = (
    Form("two passes", batch_norm), Form("x times a plus b", _affine, backward=_saved_backward, usual=True),
)
