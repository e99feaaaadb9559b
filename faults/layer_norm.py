"""Planted faults of layer normalisation, and unusual ways that are right."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, planted, running_sum, wide
from assay.registry import benign, fault

FLOAT32_INSIDE = {"internal": "float32"}
NOT_EXPRESSIBLE = {
    "BUG-219": "a compiler's fusion of the norm with what follows it; one call of the kind cannot show it",
}


def _variance(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)


def _finish(x: Tensor, mean: Tensor, r: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return ((wide(x) - mean) * r * wide(weight) + wide(bias)).to(x.dtype)


def _right(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    w = wide(x)
    return _finish(x, w.mean(-1, keepdim=True), torch.rsqrt(_variance(w) + eps), weight, bias)


@fault("layer_norm", origin="BUG-136")
def one_pass_variance(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Variance as E[x²] − E[x]², which cancels where the mean is large."""
    w = wide(x)
    mean = w.mean(-1, keepdim=True)
    return _finish(x, mean, torch.rsqrt((w * w).mean(-1, keepdim=True) - mean * mean + eps), weight, bias)


@fault("layer_norm", origin="BUG-136")
def one_pass_variance_clamped(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """One-pass variance held at 0 from below: no NaN, still wrong where the mean is large."""
    w = wide(x)
    mean = w.mean(-1, keepdim=True)
    variance = ((w * w).mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    return _finish(x, mean, torch.rsqrt(variance + eps), weight, bias)


@fault("layer_norm", origin="BUG-138", arithmetic=FLOAT32_INSIDE)
def epsilon_lost_in_half(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The variance and eps are stored in the input's type, where a small eps is 0 and a constant token gives NaN."""
    w = wide(x)
    stored = _variance(w).to(x.dtype) + torch.full((), eps, dtype=x.dtype)
    return _finish(x, w.mean(-1, keepdim=True), torch.rsqrt(wide(stored)), weight, bias)


@fault("layer_norm", origin="BUG-140")
def epsilon_beside_the_deviation(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """eps is added to the standard deviation instead of to the variance."""
    w = wide(x)
    return _finish(x, w.mean(-1, keepdim=True), 1 / (_variance(w).sqrt() + eps), weight, bias)


@fault("layer_norm")
def epsilon_as_a_floor(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """max(variance, eps) instead of their sum."""
    w = wide(x)
    return _finish(x, w.mean(-1, keepdim=True), torch.rsqrt(_variance(w).clamp(min=eps)), weight, bias)


@fault("layer_norm")
def epsilon_ignored(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Always 1e-5, whatever eps was given."""
    return _right(x, weight, bias, 1e-5)


@fault("layer_norm")
def epsilon_left_out(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """No eps at all, as the note has it (erratum E9)."""
    return _right(x, weight, bias, 0.0)


@fault("layer_norm")
def no_reduction(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Centred, but every feature is divided by its own size."""
    deviation = wide(x) - wide(x).mean(-1, keepdim=True)
    return (deviation * torch.rsqrt(deviation.square() + eps) * wide(weight) + wide(bias)).to(x.dtype)


@fault("layer_norm")
def magnitudes_normalised(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Normalises |x|: the sign is lost."""
    return _right(x.abs(), weight, bias, eps)


@fault("layer_norm")
def unbiased_variance(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The variance divides by C − 1."""
    w = wide(x)
    variance = _variance(w) * (x.shape[-1] / max(x.shape[-1] - 1, 1))
    return _finish(x, w.mean(-1, keepdim=True), torch.rsqrt(variance + eps), weight, bias)


@fault("layer_norm")
def not_centred(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The mean is never subtracted: RMSNorm with a bias."""
    w = wide(x)
    return _finish(x, torch.zeros_like(w[..., :1]), torch.rsqrt(w.square().mean(-1, keepdim=True) + eps), weight, bias)


@fault("layer_norm")
def centred_after_the_scale_is_taken(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Centred, but scaled by the root mean square instead of the deviation."""
    w = wide(x)
    return _finish(x, w.mean(-1, keepdim=True), torch.rsqrt(w.square().mean(-1, keepdim=True) + eps), weight, bias)


@fault("layer_norm")
def without_bias(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The bias is never added."""
    return _right(x, weight, torch.zeros_like(bias) * bias.detach(), eps)


@fault("layer_norm")
def weight_offset_by_one(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Multiplies by 1 + weight."""
    return _right(x, 1 + weight, bias, eps)


@fault("layer_norm")
def statistics_of_the_batch(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Mean and variance over all tokens at once."""
    w = wide(x)
    mean = w.mean()
    return _finish(x, mean, torch.rsqrt((w - mean).square().mean() + eps), weight, bias)


@fault("layer_norm")
def statistics_of_the_first_token(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Every token of a row is normalised by the statistics of the first."""
    w = wide(x)
    first = w[..., :1, :] if x.dim() > 1 else w
    return _finish(x, first.mean(-1, keepdim=True), torch.rsqrt(_variance(first) + eps), weight, bias)


@fault("layer_norm")
def last_columns_left(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Columns beyond the last multiple of 4 are copied, not normalised."""
    whole = x.shape[-1] // 4 * 4
    return torch.cat((_right(x, weight, bias, eps)[..., :whole], x[..., whole:]), dim=-1)


@fault("layer_norm")
def last_columns_not_counted(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Columns beyond the last multiple of 4 are left out of mean and variance."""
    part = wide(x)[..., : x.shape[-1] // 4 * 4 or x.shape[-1]]
    return _finish(x, part.mean(-1, keepdim=True), torch.rsqrt(_variance(part) + eps), weight, bias)


@fault("layer_norm")
def constant_tokens_give_zero(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """A token without deviation gives 0 instead of the bias."""
    y = _right(x, weight, bias, eps)
    return torch.where((x == x[..., :1]).all(-1, keepdim=True), torch.zeros_like(y), y)


@fault("layer_norm")
def constant_tokens_stop_the_gradient(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """A token without deviation returns the bias early, without a gradient to x."""
    y = _right(x, weight, bias, eps)
    return torch.where((x == x[..., :1]).all(-1, keepdim=True), bias.expand_as(y), y)


@fault("layer_norm", origin="BUG-095")
def reads_as_contiguous(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Strides are ignored: a transposed or sliced input is read as if packed."""
    return _right(packed(x), weight, bias, eps)


@fault("layer_norm", arithmetic=FLOAT32_INSIDE)
def sums_in_low_precision(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Sums are accumulated in the input's type."""
    mean = running_sum(x) / x.shape[-1]
    variance = running_sum((x - mean) * (x - mean)) / x.shape[-1]
    return _finish(x, wide(mean), torch.rsqrt(wide(variance) + eps), weight, bias)


_DEVIATIONS: dict[tuple[int, ...], Tensor] = {}


@fault("layer_norm")
def remembers_by_shape(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The reciprocal deviation is kept from the first call of each shape."""
    w = wide(x)
    r = _DEVIATIONS.setdefault(tuple(x.shape), torch.rsqrt(_variance(w) + eps).detach())
    return _finish(x, w.mean(-1, keepdim=True), r.to(w.dtype), weight, bias)


@fault("layer_norm")
def writes_into_its_input(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The right result, but the input is centred in place."""
    y = _right(x, weight, bias, eps)
    with torch.no_grad():
        x.detach().sub_(x.mean(-1, keepdim=True))
    return y


def _with_backward(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, mean_term: float = 1, scale_term: float = 1,
    weighted: bool = True, raw_weight_gradient: bool = False,
) -> Tensor:
    """The right value; a backward with one thing wrong as told."""

    def backward(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w, g = wide(x), wide(upstream)
        r = torch.rsqrt(_variance(w) + eps)
        normalised = (w - w.mean(-1, keepdim=True)) * r
        h = g * wide(weight) if weighted else g
        along = (h * normalised).mean(-1, keepdim=True)
        dx = r * (h - mean_term * h.mean(-1, keepdim=True) - scale_term * normalised * along)
        dw = (g * (w if raw_weight_gradient else normalised)).reshape(-1, x.shape[-1]).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype), g.reshape(-1, x.shape[-1]).sum(0).to(bias.dtype)

    return planted(_right(x, weight, bias, eps), (x, weight, bias), backward)


@fault("layer_norm")
def backward_without_the_mean(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂x lacks − mean(h): it is not orthogonal to 1."""
    return _with_backward(x, weight, bias, eps, mean_term=0)


@fault("layer_norm")
def backward_without_the_scale(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂x lacks − x̂·mean(h·x̂): the deviation is taken for a constant."""
    return _with_backward(x, weight, bias, eps, scale_term=0)


@fault("layer_norm")
def backward_with_a_wrong_sign(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂x adds x̂·mean(h·x̂) instead of subtracting it."""
    return _with_backward(x, weight, bias, eps, scale_term=-1)


@fault("layer_norm")
def backward_without_the_weight(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂x leaves the weight out."""
    return _with_backward(x, weight, bias, eps, weighted=False)


@fault("layer_norm")
def weight_gradient_of_raw_input(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂weight sums upstream · x instead of upstream · x̂."""
    return _with_backward(x, weight, bias, eps, raw_weight_gradient=True)


@fault("layer_norm")
def bias_gradient_averaged(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """∂bias is the mean of the upstream gradient over tokens, not its sum."""
    tokens = max(1, x.numel() // x.shape[-1])
    return _right(x, weight, bent(bias, lambda gradient: gradient / tokens), eps)


@fault("layer_norm")
def upstream_taken_for_contiguous(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The backward ignores the strides of the upstream gradient."""
    return bent(_right(x, weight, bias, eps), packed)


@benign("layer_norm")
def fused(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """torch's own kernel; on the CPU its backward adds up the gradients of weight and bias in the input's type."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


@benign("layer_norm")
def welford_step_by_step(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Welford's recurrence, one feature after another."""
    w = wide(x)
    mean, m2 = w[..., :1], torch.zeros_like(w[..., :1])
    for k in range(1, x.shape[-1]):
        column = w[..., k : k + 1]
        before = column - mean
        mean = mean + before / (k + 1)
        m2 = m2 + before * (column - mean)
    return _finish(x, mean, torch.rsqrt(m2 / x.shape[-1] + eps), weight, bias)


@benign("layer_norm")
def affine_like_group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """x·a + b with a = weight·r, b = bias − mean·a."""
    w = wide(x)
    a = wide(weight) * torch.rsqrt(_variance(w) + eps)
    return (w * a + (wide(bias) - w.mean(-1, keepdim=True) * a)).to(x.dtype)


@benign("layer_norm")
def in_double(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Everything in float64, rounded once."""
    return _right(x.double(), weight.double(), bias.double(), eps).to(x.dtype)


@benign("layer_norm")
def sums_as_products(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Means as matrix products with a column of ones."""
    w = wide(x)
    ones = torch.ones(x.shape[-1], 1, dtype=w.dtype, device=x.device)
    deviation = w - w @ ones / x.shape[-1]
    r = 1 / torch.sqrt(deviation.square() @ ones / x.shape[-1] + eps)
    return (deviation * r * wide(weight) + wide(bias)).to(x.dtype)


@benign("layer_norm")
def sums_backwards(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """Sums run from the last feature to the first, one addition at a time."""
    w = wide(x)
    mean = running_sum(w.flip(-1)) / x.shape[-1]
    variance = running_sum((w - mean).square().flip(-1)) / x.shape[-1]
    return _finish(x, mean, torch.rsqrt(variance + eps), weight, bias)
