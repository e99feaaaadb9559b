"""Planted faults of a residual added and normalised in one, and unusual ways that are right."""
from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, planted, planter, running_sum, wide
from assay.registry import benign, fault

FLOAT32_INSIDE = {"internal": "float32"}
NOT_EXPRESSIBLE: dict[str, str] = {}

Results = tuple[Tensor, Tensor]
Way = Callable[[Tensor, Tensor, Tensor, float], Results]


def _signed(way: Way) -> Callable[..., Results]:
    def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Results:
        return way(x, residual, weight, eps)

    return add_rms_norm


_planted = planter("add_rms_norm", _signed)
wrong, right = functools.partial(_planted, fault), functools.partial(_planted, benign)


def mean_square(x: Tensor) -> Tensor:
    return x.square().mean(-1, keepdim=True)


def root(x: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(mean_square(wide(x)) + eps)


def finish(x: Tensor, r: Tensor, weight: Tensor) -> Tensor:
    return (wide(x) * r * wide(weight)).to(x.dtype)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return finish(x, root(x, eps), weight)


def of_sum(summed: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(summed, weight, eps), summed


# ------------------------------------------------------------------------------------------------ what is added
@wrong("the norm is taken of x, as if the residual were added afterwards")
def norm_of_x_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x, weight, eps), x + residual


@wrong("the norm is taken of the residual as it was, before x is added")
def norm_of_the_residual_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(residual, weight, eps), x + residual


@wrong("the sum is divided by the root mean square of x, computed before the addition")
def statistics_of_x_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return finish(x + residual, root(x, eps), weight), x + residual


@wrong("the norm adds the residual to a sum that holds it already")
def residual_twice_in_the_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return norm(summed + residual, weight, eps), summed


@wrong("the residual is added twice")
def residual_twice(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + residual + residual, weight, eps)


@wrong("the residual is subtracted")
def residual_subtracted(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x - residual, weight, eps)


@wrong("the residual is accepted and left out")
def residual_left_out(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + 0 * residual, weight, eps)


@wrong("memory that nobody wrote is added too", origin="BUG-149")
def adds_an_unwritten_residual(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x + residual + torch.empty_like(x), weight, eps), x + residual


@wrong("the sum goes through bfloat16, and coarser still where the inputs are bfloat16 already")
def sum_in_half(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = (x + residual).bfloat16()
    coarse = summed if x.dtype != torch.bfloat16 else (summed.float() * 8).round() / 8
    return of_sum(coarse.to(x.dtype), weight, eps)


@wrong("the residual alone is kept in bfloat16, or coarser")
def residual_in_half(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    kept = residual.bfloat16() if x.dtype != torch.bfloat16 else (residual.float() * 8).round() / 8
    return of_sum(x + kept.to(x.dtype), weight, eps)


# ------------------------------------------------------------------------------------------------ what comes back
@wrong("the residual comes back as it was: it should have been updated in place, and was not")
def residual_returned_for_the_sum(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x + residual, weight, eps), residual.clone()


@wrong("x comes back for the sum")
def x_returned_for_the_sum(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x + residual, weight, eps), x.clone()


@wrong("the normalised result comes back twice, as post-norm stacks want it")
def normalised_returned_for_the_sum(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y = norm(x + residual, weight, eps)
    return y, y.clone()


@wrong("the sum comes back multiplied by the weight")
def sum_weighted(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return norm(summed, weight, eps), summed * weight


@wrong("x holds the normalised result after the call, and the residual the sum, as of kernels that work in place")
def writes_into_its_inputs(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y, summed = of_sum(x + residual, weight, eps)
    with torch.no_grad():
        x.detach().copy_(y)
        residual.detach().copy_(summed)
    return y, summed


@wrong("the residual is read with the strides of x")
def residual_read_with_the_strides_of_x(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + (packed(residual) if x.is_contiguous() else residual), weight, eps)


# ------------------------------------------------------------------------------------------------ the norm
@wrong("the weight is read as an offset from one", origin="BUG-141")
def weight_offset_by_one(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + residual, 1 + weight, eps)


@wrong("the weight is left out")
def without_weight(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + residual, torch.ones_like(weight), eps)


@wrong("eps is accepted and ignored", origin="BUG-143")
def epsilon_ignored(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + residual, weight, 0.0)


@wrong("always 1e-6, whatever eps was given", origin="BUG-144")
def epsilon_fixed(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + residual, weight, 1e-6)


@wrong("eps is added to the root instead of under it")
def epsilon_beside_the_root(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, 1 / (mean_square(wide(summed)).sqrt() + eps), weight), summed


@wrong("divides by √(Σs² + eps): the mean was forgotten")
def divides_by_the_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, torch.rsqrt(wide(summed).square().sum(-1, keepdim=True) + eps), weight), summed


@wrong("the root was forgotten; sums of unit mean square hide it")
def divides_by_the_mean_square(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, 1 / (mean_square(wide(summed)) + eps), weight), summed


@wrong("nothing is normalised: every feature is divided by its own size")
def no_reduction(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, torch.rsqrt(wide(summed).square() + eps), weight), summed


@wrong("the mean is subtracted first, as in layer normalisation")
def centred(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return norm(wide(summed) - wide(summed).mean(-1, keepdim=True), weight, eps).to(x.dtype), summed


@wrong("normalises |s|: not odd")
def loses_the_sign(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return norm(summed.abs(), weight, eps), summed


@wrong("the statistics run over the wrong axes: one mean square for all tokens")
def statistics_of_the_batch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, torch.rsqrt(wide(summed).square().mean() + eps), weight), summed


@wrong("columns beyond the last multiple of 4 are added, not normalised")
def last_columns_left(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    whole, (y, summed) = x.shape[-1] // 4 * 4, of_sum(x + residual, weight, eps)
    return torch.cat((y[..., :whole], summed[..., whole:]), dim=-1), summed


@wrong("columns beyond the last multiple of 4 are left out of the mean, though counted in its divisor")
def last_columns_not_counted(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    squares = wide(summed)[..., : x.shape[-1] // 4 * 4].square().sum(-1, keepdim=True)
    return finish(summed, torch.rsqrt(squares / x.shape[-1] + eps), weight), summed


@wrong("squares are stored in the input's type, though float32 is declared inside", origin="BUG-147", arithmetic=FLOAT32_INSIDE)
def squares_in_half(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return finish(summed, torch.rsqrt(wide(summed * summed).mean(-1, keepdim=True) + eps), weight), summed


_ROOTS: dict[tuple[int, ...], Tensor] = {}


@wrong("the reciprocal root is kept from the first call of each shape")
def remembers_by_shape(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    r = _ROOTS.setdefault(tuple(x.shape), root(summed, eps).detach())
    return finish(summed, r.to(wide(x).dtype), weight), summed


# ------------------------------------------------------------------------------------------------ gradients
@wrong("the sum comes back without a way for its gradient: what the residual stream sends is lost")
def sum_without_gradient(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y, summed = of_sum(x + residual, weight, eps)
    return y, bent(summed, torch.zeros_like)


@wrong("the gradient of the sum is added twice")
def sum_gradient_twice(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y, summed = of_sum(x + residual, weight, eps)
    return y, bent(summed, lambda up: 2 * up)


@wrong("the gradient of the sum goes into the residual alone, what comes through the norm into both")
def sum_gradient_into_the_residual_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x + residual, weight, eps), x.detach() + residual


@wrong("what comes through the norm goes into x alone, the gradient of the sum into both")
def norm_gradient_into_x_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return norm(x + residual.detach(), weight, eps), x + residual


@wrong("the residual gets no gradient")
def residual_without_gradient(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(x + bent(residual, torch.zeros_like), weight, eps)


@wrong("x gets no gradient")
def x_without_gradient(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return of_sum(bent(x, torch.zeros_like) + residual, weight, eps)


@wrong("the gradient of the sum is multiplied by the reciprocal root, as if it came through the norm")
def sum_gradient_under_the_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y, summed = of_sum(x + residual, weight, eps)
    r = root(summed, eps).detach()
    return y, bent(summed, lambda up: (wide(up) * r).to(up.dtype))


@wrong("contiguous input takes a path that stops the gradients of both addends", origin="BUG-148")
def contiguous_path_without_gradient(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return of_sum(bent(summed, torch.zeros_like) if x.is_contiguous() else summed, weight, eps)


@wrong("the upstream gradient of the normalised result is taken for ones")
def upstream_taken_for_ones(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    y, summed = of_sum(x + residual, weight, eps)
    return bent(y, torch.ones_like), summed


@wrong("a sum of zeros returns early, without a gradient")
def zero_sum_stops_the_gradient(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    y = norm(summed, weight, eps)
    return torch.where((summed == 0).all(-1, keepdim=True), torch.zeros_like(y), y), summed


def slope(summed: Tensor, weight: Tensor, r: Tensor, upstream: Tensor, *, scale_term: float = 1) -> tuple[Tensor, Tensor]:
    """What comes through the norm to the sum and to the weight, in wide arithmetic, r being the reciprocal root."""
    g = wide(upstream)
    normal, h = wide(summed) * r, g * wide(weight)
    through = r * (h - scale_term * normal * (h * normal).mean(-1, keepdim=True))
    return through, (g * normal).reshape(-1, summed.shape[-1]).sum(0)


def _with_backward(x: Tensor, residual: Tensor, weight: Tensor, eps: float,
                   backward: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Results:
    """The right values; what comes through the norm, and to the weight, as told of sum, reciprocal root and upstream gradient."""
    summed = x + residual
    fixed = summed.detach()

    def both(upstream: Tensor) -> tuple[Tensor, Tensor]:
        through, of_weight = backward(fixed, root(fixed, eps), upstream)
        return through.to(x.dtype), of_weight.to(weight.dtype)

    return planted(norm(summed, weight, eps), (summed, weight), both), summed


@wrong("the root is taken for a constant")
def backward_without_the_scale(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return _with_backward(x, residual, weight, eps, lambda s, r, up: slope(s, weight, r, up, scale_term=0))


@wrong("the scale's term is added instead of subtracted")
def backward_with_a_wrong_sign(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return _with_backward(x, residual, weight, eps, lambda s, r, up: slope(s, weight, r, up, scale_term=-1))


@wrong("the gradient leaves the weight out")
def backward_without_the_weight(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return _with_backward(x, residual, weight, eps, lambda s, r, up: (
        slope(s, torch.ones_like(weight), r, up)[0], slope(s, weight, r, up)[1]))


@wrong("x was kept for the backward in place of the sum")
def backward_of_x_alone(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return _with_backward(x, residual, weight, eps, lambda s, r, up: slope(x.detach(), weight, root(x.detach(), eps), up))


@wrong("the weight's gradient sums upstream · s instead of upstream · ŝ")
def weight_gradient_of_the_raw_sum(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    return _with_backward(x, residual, weight, eps, lambda s, r, up: (
        slope(s, weight, r, up)[0], (wide(up) * wide(s)).reshape(-1, s.shape[-1]).sum(0)))


# ------------------------------------------------------------------------------------------------ what is right
@right("torch's addition, then its fused norm")
def torch_after_torch(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return F.rms_norm(summed, (x.shape[-1],), weight, eps), summed


@right("the norm of the sum before its rounding, all in float32", arithmetic=FLOAT32_INSIDE)
def norm_before_the_rounding(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = wide(x) + wide(residual)
    return norm(summed, weight, eps).to(x.dtype), summed.to(x.dtype)


@right("the norm of the sum as it was stored, though float32 is declared inside", arithmetic=FLOAT32_INSIDE)
def norm_after_the_rounding(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = residual + x
    return norm(wide(summed), weight, eps).to(x.dtype), summed


@right("vLLM's order in plain PyTorch: the sum in float32, the normalised value rounded, then the weight in the inputs' type")
def cast_before_the_weight(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = wide(x) + wide(residual)
    return (summed * root(summed, eps)).to(x.dtype) * weight, summed.to(x.dtype)


@right("the sum is handed on in float32, as vLLM's Gemma norm does for float16")
def sum_kept_wide(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = wide(x) + wide(residual)
    return norm(summed, weight, eps).to(x.dtype), summed


@right("everything in float64, rounded once")
def in_double(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x.double() + residual.double()
    return norm(summed, weight.double(), eps).to(x.dtype), summed.to(x.dtype)


@right("x · (weight · r)")
def weight_folded_into_the_scale(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    return (wide(summed) * (wide(weight) * root(summed, eps))).to(x.dtype), summed


@right("the sum of squares runs from the last feature to the first, one addition at a time")
def sum_backwards(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    summed = x + residual
    squares = running_sum(wide(summed).square().flip(-1))
    return finish(summed, 1 / torch.sqrt(squares / x.shape[-1] + eps), weight), summed


@right("the reciprocal root from before the rounding, the sum from after it, in the gradient too", arithmetic=FLOAT32_INSIDE)
def root_before_and_sum_after_the_rounding(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Results:
    full = wide(x.detach()) + wide(residual.detach())
    r, kept = root(full, eps), full.to(x.dtype)

    def backward(upstream: Tensor) -> tuple[Tensor, ...]:
        through, of_weight = slope(kept, weight, r, upstream)
        return through.to(x.dtype), through.to(x.dtype), of_weight.to(weight.dtype)

    return planted(finish(kept, r, weight), (x, residual, weight), backward), x + residual
