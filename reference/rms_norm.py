"""Root-mean-square normalisation: each token is scaled by its own length, not centred."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.numbers.forms import Form


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Divide every token by the root of the mean of its squares, then scale each feature.

    Formula: y_i = x_i / √(mean(x²) + eps) · weight_i.

    x: (…, C)
    weight: (C,)
    returns: (…, C)

    Conventions: the weight multiplies as it is (an offset form 1 + g passes 1 + g here).
    Raises: ValueError where weight is not (C,).
    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", section 4, arXiv 1910.07467.

    >>> x = torch.tensor([[3.0, 4.0, 5.0, 0.0]], dtype=torch.float64)
    >>> rms_norm(x, torch.ones(4, dtype=torch.float64), eps=12.5).tolist()
    [[0.6, 0.8, 1.0, 0.0]]
    """
    _check(x, weight)
    return x / torch.sqrt(_mean(x * x) + eps) * weight


def _check(x: Tensor, weight: Tensor) -> None:
    if tuple(weight.shape) != (x.shape[-1],):
        raise ValueError(
            f"weight.shape={tuple(weight.shape)} must be (C,) = ({x.shape[-1]},), x has shape {tuple(x.shape)}; "
            "pass one number per feature"
        )


def _mean(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True) / x.shape[-1]


def _reciprocal(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x · (1/√…), rounded to the input's type, then the weight: the cast before the weight."""
    r = 1 / torch.sqrt(_mean(x * x) + eps)
    return (x * r).to(x.dtype) * weight


def _weight_first(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x · (weight · r): the cast after the weight."""
    r = 1 / torch.sqrt(_mean(x * x) + eps)
    return x * (weight * r)


def _scaled_input(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """(x · weight) · r."""
    return x * weight * (1 / torch.sqrt(_mean(x * x) + eps))


def by_rsqrt(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x · rsqrt(…) · weight, differentiated as torch does: ∂rsqrt = −½·r³, which half precision may not hold."""
    return x * torch.rsqrt(_mean(x * x) + eps) * weight


def _backward(
    upstream: Tensor, wrt: Sequence[str], *, x: Tensor, weight: Tensor, eps: float
) -> Mapping[str, Tensor]:
    """∂x = r·(h − x̂·mean(h·x̂)), h = weight·upstream: kernels that save r."""
    r = 1 / torch.sqrt(_mean(x * x) + eps)
    normalised = x * r
    h = upstream * weight
    gradients = {
        "x": r * (h - normalised * _mean(h * normalised)),
        "weight": (upstream * normalised).reshape(-1, x.shape[-1]).sum(0),
    }
    return {name: gradients[name] for name in wrt}


def _backward_cubed(
    upstream: Tensor, wrt: Sequence[str], *, x: Tensor, weight: Tensor, eps: float
) -> Mapping[str, Tensor]:
    """∂x = r·h − r³·x·mean(h·x)."""
    r = 1 / torch.sqrt(_mean(x * x) + eps)
    h = upstream * weight
    gradients = {
        "x": r * h - r * r * r * x * _mean(h * x),
        "weight": (upstream * x * r).reshape(-1, x.shape[-1]).sum(0),
    }
    return {name: gradients[name] for name in wrt}


FORMS: tuple[Form, ...] = (
    Form("division by the root", rms_norm),
    Form("cast before the weight", _reciprocal, backward=_backward, usual=True),
    Form("cast after the weight", _weight_first, backward=_backward_cubed),
    Form("weight before the scale", _scaled_input),
    Form("reciprocal root in one", by_rsqrt),
)
