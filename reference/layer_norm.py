"""Layer normalisation: each token is centred and scaled over its own features."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen, precision
from assay.numbers.forms import Form


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Normalise every token over its features, then scale and shift each feature.

    Formula: y_i = weight_i · (x_i − μ) / √(σ² + eps) + bias_i, μ = mean(x), σ² = mean((x − μ)²) (biased).

    x: (…, C)
    weight, bias: (C,)
    returns: (…, C)

    Conventions: none.
    Raises: ValueError where weight or bias are not (C,).
    Source: Ba, Kiros, Hinton, "Layer Normalization", section 3, arXiv 1607.06450.

    >>> x = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    >>> layer_norm(x, torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), eps=0.0).tolist()
    [[-1.0, 1.0]]
    """
    _check(x, weight, bias)
    deviation = x - _mean(x)
    variance = _mean(deviation * deviation)
    return deviation / torch.sqrt(variance + eps) * weight + bias


def _check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    for name, vector in (("weight", weight), ("bias", bias)):
        if tuple(vector.shape) != (x.shape[-1],):
            raise ValueError(
                f"{name}.shape={tuple(vector.shape)} must be (C,) = ({x.shape[-1]},), x has shape {tuple(x.shape)}; "
                "pass one number per feature"
            )


def _mean(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True) / x.shape[-1]


def _reciprocal(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """r = 1/√(σ² + eps) first, then products."""
    deviation = x - _mean(x)
    r = 1 / torch.sqrt(_mean(deviation * deviation) + eps)
    return deviation * r * weight + bias


def by_rsqrt(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """rsqrt(σ² + eps) in one, differentiated as torch does: ∂rsqrt = −½·r³, which half precision may not hold."""
    deviation = x - _mean(x)
    return deviation * torch.rsqrt(_mean(deviation * deviation) + eps) * weight + bias


def _welford(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Welford: M2 = Σ_k (x_k − mean_{k−1})(x_k − mean_k), with the running means written as cumulative sums.

    The first term is exactly 0, for the mean of one number is that number. Running means round also where sums are exact, such as
    sums of integers: so they are those of parts by π, which no number of any type divides into.
    """
    count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    means = (x / math.pi).cumsum(-1) / (count / math.pi)
    m2 = ((x[..., 1:] - means[..., :-1]) * (x[..., 1:] - means[..., 1:])).sum(-1, keepdim=True)
    r = 1 / torch.sqrt(m2 / x.shape[-1] + eps)
    return (x - means[..., -1:]) * r * weight + bias


def scaled_and_shifted(x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """x·scale + (−mean·scale): both products round, but an error of the scale moves their sum by (x − mean) times it."""
    given = freely_chosen(scale)
    return x * given + -mean * given + (x - mean) * (scale - given)


def _scale_then_shift(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """(x·r + (−μ·r))·weight + bias, as torch's CPU kernel."""
    mean, r = _statistics(x, eps)
    return scaled_and_shifted(x, mean, r) * weight + bias


def _affine(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """x·a + b with a = weight·r, b = bias − μ·a, as GroupNorm kernels."""
    mean, r = _statistics(x, eps)
    a = weight * r
    given = freely_chosen(a)
    return x * given + (bias - mean * given) + (x - mean) * (a - given)


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    mean = _mean(x)
    deviation = x - mean
    return mean, 1 / torch.sqrt(_mean(deviation * deviation) + eps)


def _over_tokens(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).sum(0)


def _added_to_buffers(x: Tensor) -> Tensor:
    """A sum over tokens kept in a buffer of the weight's type, one token after another, as torch's CPU kernel does."""
    with precision("spilled"):
        return _over_tokens(x)


def _centred_backward(
    upstream: Tensor, wrt: Sequence[str], *, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Mapping[str, Tensor]:
    """∂x = r·(h − mean(h) − x̂·mean(h·x̂)), h = weight·upstream: kernels that save μ and r."""
    mean, r = _statistics(x, eps)
    normalised = (x - mean) * r
    h = upstream * weight
    gradients = {
        "x": r * (h - _mean(h) - normalised * _mean(h * normalised)),
        "weight": _over_tokens(upstream * normalised),
        "bias": _over_tokens(upstream),
    }
    return {name: gradients[name] for name in wrt}


def _polynomial_backward(
    upstream: Tensor, wrt: Sequence[str], *, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Mapping[str, Tensor]:
    """∂x = r·h + b·x + c with two sums Σh and Σh·x per token, as torch's CPU kernel."""
    mean, r = _statistics(x, eps)
    h = upstream * weight
    sum_h, sum_hx = h.sum(-1, keepdim=True), (h * x).sum(-1, keepdim=True)
    b = (sum_h * mean - sum_hx) * r * r * r / x.shape[-1]
    gradients = {
        "x": r * h + scaled_and_shifted(x, mean, b) - sum_h * r / x.shape[-1],
        "weight": _added_to_buffers(upstream * scaled_and_shifted(x, mean, r)),
        "bias": _added_to_buffers(upstream),
    }
    return {name: gradients[name] for name in wrt}


def _affine_backward(
    upstream: Tensor, wrt: Sequence[str], *, x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Mapping[str, Tensor]:
    """What differentiating x·a + (bias − μ·a) step by step gives: upstream·x and upstream·μ round apart."""
    mean, r = _statistics(x, eps)
    width, a = x.shape[-1], weight * r
    along = upstream * x + -(upstream * mean)
    spread = (x - mean) * (-(along * weight).sum(-1, keepdim=True) * r * r * r / width)
    gradients = {
        "x": upstream * a - _mean(upstream * a) + spread - _mean(spread),
        "weight": _over_tokens(along * r),
        "bias": _over_tokens(upstream),
    }
    return {name: gradients[name] for name in wrt}


# E[x²] − mean² is no form: it cancels where |mean| ≫ deviation, which LN-7 forbids.
FORMS: tuple[Form, ...] = (
    Form("two passes", layer_norm),
    Form("reciprocal root", _reciprocal, backward=_centred_backward),
    Form("reciprocal root in one", by_rsqrt),
    # A running mean rounds three times a step (difference, quotient, sum) where a cumulative sum rounds once.
    Form("Welford", _welford, additions=3, usual=True),
    Form("x times r plus shift", _scale_then_shift, backward=_polynomial_backward),
    Form("x times a plus b", _affine, backward=_affine_backward),
)
