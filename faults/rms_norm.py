"""Planted faults of RMS normalisation, and unusual ways that are right."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, planted, running_sum, wide
from assay.registry import benign, fault

FLOAT32_INSIDE = {"internal": "float32"}
NOT_EXPRESSIBLE: dict[str, str] = {}


def _mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


def _finish(x: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    return (wide(x) * r * wide(weight)).to(x.dtype)


def _right(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _finish(x, torch.rsqrt(_mean_square(wide(x)) + eps), weight)


@fault("rms_norm", origin="BUG-141")
def weight_offset_by_one(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The weight is read as an offset from one (the record's fault, seen from the other family)."""
    return _right(x, 1 + weight, eps)


@fault("rms_norm", origin="BUG-143")
def epsilon_ignored(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """eps is accepted and ignored."""
    return _right(x, weight, 0.0)


@fault("rms_norm", origin="BUG-144")
def epsilon_fixed(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Always 1e-6, whatever eps was given."""
    return _right(x, weight, 1e-6)


@fault("rms_norm", origin="BUG-145", arithmetic=FLOAT32_INSIDE)
def rounds_before_the_weight(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Rounds the normalised value to the input's type before the weight, though float32 is declared inside."""
    normalised = (wide(x) * torch.rsqrt(_mean_square(wide(x)) + eps)).to(x.dtype)
    return (wide(normalised) * wide(weight)).to(x.dtype)


@fault("rms_norm", origin="BUG-147", arithmetic=FLOAT32_INSIDE)
def squares_in_half(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Squares are stored in the input's type: in half they underflow below 2e-4 and overflow above 255."""
    return _finish(x, torch.rsqrt(wide(x * x).mean(-1, keepdim=True) + eps), weight)


@fault("rms_norm", origin="BUG-148")
def contiguous_path_without_gradient(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Contiguous input takes a path that stops the gradient to x."""
    return _right(bent(x, torch.zeros_like) if x.is_contiguous() else x, weight, eps)


@fault("rms_norm", origin="BUG-149")
def adds_an_unwritten_residual(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Memory that nobody wrote is added as if it were a residual."""
    return _right(x + torch.empty_like(x), weight, eps)


@fault("rms_norm")
def divides_by_the_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Divides by √(Σx² + eps): the mean was forgotten (erratum E1)."""
    return _finish(x, torch.rsqrt(wide(x).square().sum(-1, keepdim=True) + eps), weight)


@fault("rms_norm")
def divides_by_the_mean_square(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The root was forgotten; input of unit mean square hides it."""
    return _finish(x, 1 / (_mean_square(wide(x)) + eps), weight)


@fault("rms_norm")
def no_reduction(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Nothing is normalised: every feature is divided by its own size; tokens of ±1 hide it."""
    return _finish(x, torch.rsqrt(wide(x).square() + eps), weight)


@fault("rms_norm")
def epsilon_beside_the_root(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """eps is added to the root instead of under it."""
    return _finish(x, 1 / (_mean_square(wide(x)).sqrt() + eps), weight)


@fault("rms_norm")
def centred(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The mean is subtracted first: unchanged by a shift, which RMSNorm is not."""
    w = wide(x) - wide(x).mean(-1, keepdim=True)
    return (w * torch.rsqrt(_mean_square(w) + eps) * wide(weight)).to(x.dtype)


@fault("rms_norm")
def deviation_for_the_root(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Divides by the standard deviation; input of mean 0 hides it."""
    w = wide(x)
    return _finish(x, torch.rsqrt((w - w.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + eps), weight)


@fault("rms_norm")
def loses_the_sign(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalises |x|: not odd."""
    return _right(x.abs(), weight, eps)


@fault("rms_norm")
def without_weight(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The weight is left out."""
    return _right(x, torch.ones_like(weight), eps)


@fault("rms_norm")
def statistics_of_the_batch(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """One mean square over all tokens."""
    return _finish(x, torch.rsqrt(wide(x).square().mean() + eps), weight)


@fault("rms_norm")
def computes_a_mean_nobody_needs(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Mean square as variance + mean²: the right values, but two reductions more than needed."""
    w = wide(x)
    mean = w.mean(-1, keepdim=True)
    return _finish(x, torch.rsqrt((w - mean).square().mean(-1, keepdim=True) + mean * mean + eps), weight)


@fault("rms_norm")
def last_columns_left(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Columns beyond the last multiple of 4 are copied, not normalised."""
    whole = x.shape[-1] // 4 * 4
    return torch.cat((_right(x, weight, eps)[..., :whole], x[..., whole:]), dim=-1)


@fault("rms_norm")
def last_columns_not_counted(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Columns beyond the last multiple of 4 are left out of the mean, though counted in its divisor."""
    part = wide(x)[..., : x.shape[-1] // 4 * 4]
    return _finish(x, torch.rsqrt(part.square().sum(-1, keepdim=True) / x.shape[-1] + eps), weight)


@fault("rms_norm", origin="BUG-095")
def reads_as_contiguous(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Strides are ignored: a transposed or sliced input is read as if packed."""
    return _right(packed(x), weight, eps)


@fault("rms_norm", arithmetic=FLOAT32_INSIDE)
def sums_in_low_precision(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The sum of squares is accumulated in the input's type."""
    return _finish(x, torch.rsqrt(wide(running_sum(x * x)) / x.shape[-1] + eps), weight)


_ROOTS: dict[tuple[int, ...], Tensor] = {}


@fault("rms_norm")
def remembers_by_shape(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The reciprocal root is kept from the first call of each shape."""
    r = _ROOTS.setdefault(tuple(x.shape), torch.rsqrt(_mean_square(wide(x)) + eps).detach())
    return _finish(x, r.to(wide(x).dtype), weight)


@fault("rms_norm")
def writes_into_its_input(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The right result, written over the input too."""
    y = _right(x, weight, eps)
    with torch.no_grad():
        x.detach().copy_(y)
    return y


def _with_backward(
    x: Tensor, weight: Tensor, eps: float, *, scale_term: float = 1, weighted: bool = True, raw: bool = False
) -> Tensor:
    """The right value; a backward with one thing wrong as told."""

    def backward(upstream: Tensor) -> tuple[Tensor, Tensor]:
        w, g = wide(x), wide(upstream)
        r = torch.rsqrt(_mean_square(w) + eps)
        normalised = w * r
        h = g * wide(weight) if weighted else g
        dx = r * (h - scale_term * normalised * (h * normalised).mean(-1, keepdim=True))
        dw = (g * (w if raw else normalised)).reshape(-1, x.shape[-1]).sum(0)
        return dx.to(x.dtype), dw.to(weight.dtype)

    return planted(_right(x, weight, eps), (x, weight), backward)


@fault("rms_norm")
def backward_without_the_scale(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """∂x takes the root for a constant."""
    return _with_backward(x, weight, eps, scale_term=0)


@fault("rms_norm")
def backward_with_a_wrong_sign(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """∂x adds the scale's term instead of subtracting it."""
    return _with_backward(x, weight, eps, scale_term=-1)


@fault("rms_norm")
def backward_without_the_weight(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """∂x leaves the weight out."""
    return _with_backward(x, weight, eps, weighted=False)


@fault("rms_norm")
def weight_gradient_of_raw_input(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """∂weight sums upstream · x instead of upstream · x̂."""
    return _with_backward(x, weight, eps, raw=True)


@fault("rms_norm")
def zero_token_stops_the_gradient(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """A token of zeros returns early, without a gradient."""
    y = _right(x, weight, eps)
    return torch.where((x == 0).all(-1, keepdim=True), torch.zeros_like(y), y)


@benign("rms_norm")
def fused(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """torch's own kernel."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@benign("rms_norm")
def cast_before_the_weight(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Llama's order: float32 inside, rounded to the input's type, then the weight in that type."""
    return weight * (wide(x) * torch.rsqrt(_mean_square(wide(x)) + eps)).to(x.dtype)


@benign("rms_norm")
def in_double(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Everything in float64, rounded once."""
    return _right(x.double(), weight.double(), eps).to(x.dtype)


@benign("rms_norm")
def weight_folded_into_the_scale(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x · (weight · r)."""
    return (wide(x) * (wide(weight) * torch.rsqrt(_mean_square(wide(x)) + eps))).to(x.dtype)


@benign("rms_norm")
def sum_as_product(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The sum of squares as a dot product of the token with itself."""
    w = wide(x)
    squares = (w.unsqueeze(-2) @ w.unsqueeze(-1)).squeeze(-1)
    return _finish(x, 1 / torch.sqrt(squares / x.shape[-1] + eps), weight)


@benign("rms_norm")
def sum_backwards(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The sum runs from the last feature to the first, one addition at a time."""
    squares = running_sum(wide(x).square().flip(-1))
    return _finish(x, 1 / torch.sqrt(squares / x.shape[-1] + eps), weight)
