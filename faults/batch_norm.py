"""Planted faults of batch normalisation, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, planted, wide
from assay.registry import benign, fault

Result = tuple[Tensor, Tensor, Tensor]
Statistics = Callable[[Tensor], tuple[Tensor, Tensor]]
NOT_EXPRESSIBLE: dict[str, str] = {}


def _biased(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    return mean, (x - mean).square().mean(0)


def _unbiased(variance: Tensor, rows: int) -> Tensor:
    return variance * (rows / max(rows - 1, 1))


def _finish(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return ((wide(x) - mean) * torch.rsqrt(variance + eps) * wide(weight) + wide(bias)).to(x.dtype)


def _refuse(x: Tensor, least: int) -> None:
    if x.shape[0] < least:
        raise ValueError(f"x.shape[0]={x.shape[0]} must be at least {least} in training; pass more rows")


def _right(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, training: bool, momentum: float, eps: float, *,
    statistics: Statistics = _biased, unbiased: Callable[[Tensor, int], Tensor] = _unbiased,
) -> Result:
    if not training:
        return _finish(x, wide(mean), wide(var), weight, bias, eps), mean.clone(), var.clone()
    _refuse(x, 2 if unbiased is _unbiased else 1)
    batch_mean, batch_var = statistics(wide(x))
    y = _finish(x, batch_mean, batch_var, weight, bias, eps)
    after_mean, after_var = batch_mean.detach(), unbiased(batch_var.detach(), x.shape[0])
    return (
        y, ((1 - momentum) * wide(mean) + momentum * after_mean).to(mean.dtype),
        ((1 - momentum) * wide(var) + momentum * after_var).to(var.dtype),
    )


def _planted(name: str, summary: str, way: Callable[..., Result], **options: Any) -> None:
    """Plant a fault, given as a function of all arguments in order."""

    def batch_norm(
        x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
        momentum: float, eps: float,
    ) -> Result:
        return way(x, weight, bias, running_mean, running_var, training, momentum, eps)

    batch_norm.__name__ = batch_norm.__qualname__ = name
    globals()[name] = fault("batch_norm", summary=summary, **options)(batch_norm)


def _of(statistics: Statistics) -> Callable[..., Result]:
    return lambda *a: _right(*a, statistics=statistics)


def _one_pass(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.mean(0), x.square().mean(0) - x.mean(0).square()


def _normalised_unbiased(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _biased(x)
    return mean, _unbiased(variance, x.shape[0])


def _over_features(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def _like_layer_norm(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    _, after_mean, after_var = _right(x, w, b, m, v, training, mo, e)
    return _finish(x, *_over_features(wide(x)), w, b, e), after_mean, after_var


def _batch_in_evaluation(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    if training or x.shape[0] == 0:
        return _right(x, w, b, m, v, training, mo, e)
    return _finish(x, *_biased(wide(x)), w, b, e), m.clone(), v.clone()


def _running_in_training(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    _, after_mean, after_var = _right(x, w, b, m, v, training, mo, e)
    return _finish(x, wide(after_mean), wide(after_var), w, b, e), after_mean, after_var


def _updates_in_evaluation(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    if training or x.shape[0] < 2:
        return _right(x, w, b, m, v, training, mo, e)
    return _right(x, w, b, m, v, False, mo, e)[0], *_right(x, w, b, m, v, True, mo, e)[1:]


def _running_not_updated(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    return _right(x, w, b, m, v, training, mo, e)[0], m.clone(), v.clone()


def _epsilon_outside(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    _, after_mean, after_var = _right(x, w, b, m, v, training, mo, e)
    mean, variance = _biased(wide(x)) if training else (wide(m), wide(v))
    y = ((wide(x) - mean) / (variance.sqrt() + e) * wide(w) + wide(b)).to(x.dtype)
    return y, after_mean, after_var


def _one_row_gives_nan(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    if training and x.shape[0] == 1:
        return x * float("nan"), m.clone(), v.clone()
    return _right(x, w, b, m, v, training, mo, e)


def _constant_statistics(
    x: Tensor, w: Tensor, b: Tensor, m: Tensor, v: Tensor, training: bool, mo: float, e: float
) -> Result:
    """The backward takes mean and variance of the batch for constants."""
    y, after_mean, after_var = _right(x, w, b, m, v, training, mo, e)
    _, variance = _biased(wide(x)) if training else (wide(m), wide(v))

    def backward(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, _ = _biased(wide(x)) if training else (wide(m), wide(v))
        r = torch.rsqrt(variance + e)
        return (g * r * w).to(x.dtype), (g * (wide(x) - mean) * r).sum(0).to(w.dtype), g.sum(0).to(b.dtype)

    return planted(y, (x, w, b), backward), after_mean, after_var


_planted("one_pass_variance", "Variance as E[x²] − E[x]².", _of(_one_pass))
_planted("normalises_by_the_unbiased_variance", "The batch is normalised by the unbiased variance.",
         lambda *a: _right(*a, statistics=_normalised_unbiased, unbiased=lambda v, rows: v))
_planted("running_variance_biased", "The running variance takes the biased one, undeclared.",
         lambda *a: _right(*a, unbiased=lambda v, rows: v))
_planted("momentum_the_other_way", "Momentum weighs the old value, undeclared.",
         lambda x, w, b, m, v, training, mo, e: _right(x, w, b, m, v, training, 1 - mo, e))
_planted("like_layer_norm", "Statistics over the features of each row.", _like_layer_norm)
_planted("batch_statistics_in_evaluation", "Evaluation normalises by the batch.", _batch_in_evaluation)
_planted("running_statistics_in_training", "Training normalises by the running statistics.", _running_in_training)
_planted("evaluation_in_training", "Training normalises by the running statistics as they were.",
         lambda x, w, b, m, v, training, mo, e: (
             _right(x, w, b, m, v, False, mo, e)[0], *_right(x, w, b, m, v, training, mo, e)[1:]))
_planted("updates_in_evaluation", "Evaluation moves the running statistics.", _updates_in_evaluation)
_planted("running_not_updated", "Training leaves the running statistics as they were.", _running_not_updated)
_planted("epsilon_beside_the_deviation", "eps is added to the deviation.", _epsilon_outside)
_planted("epsilon_ignored", "Always 1e-5.",
         lambda x, w, b, m, v, training, mo, e: _right(x, w, b, m, v, training, mo, 1e-5))
_planted("epsilon_left_out", "No eps at all, as the note has it (erratum E9).",
         lambda x, w, b, m, v, training, mo, e: _right(x, w, b, m, v, training, mo, 0.0))
_planted("one_row_gives_nan", "One row in training gives NaN.", _one_row_gives_nan)
_planted("weight_left_out", "The weight is not applied.",
         lambda x, w, *rest: _right(x, torch.ones_like(w), *rest))
_planted("bias_left_out", "The bias is not added.", lambda x, w, b, *rest: _right(x, w, torch.zeros_like(b), *rest))
_planted("last_row_not_counted", "The last row is left out of the statistics.",
         _of(lambda x: _biased(x[:-1] if x.shape[0] > 1 else x)))
_planted("reads_as_contiguous", "Strides of x are ignored.",
         lambda x, *rest: _right(packed(x), *rest), origin="BUG-095")
_planted("statistics_taken_for_constants", "∂x lacks the terms of mean and variance.", _constant_statistics)
_planted("gradient_of_the_wrong_sign", "∂x is negated.", lambda x, *rest: _right(bent(x, torch.neg), *rest))


@benign("batch_norm")
def fused(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> Result:
    """torch's own kernel, on copies of the running statistics."""
    mean, var = running_mean.clone(), running_var.clone()
    return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps), mean, var


@benign("batch_norm", conventions={"bn_variance": "biased", "bn_momentum": "old"})
def biased_and_old(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> Result:
    """The other conventions, declared."""
    return _right(
        x, weight, bias, running_mean, running_var, training, 1 - momentum, eps, unbiased=lambda var, rows: var
    )


@benign("batch_norm")
def in_double(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> Result:
    """Everything in float64, rounded once."""
    y, mean, var = _right(
        x.double(), weight.double(), bias.double(), running_mean.double(), running_var.double(), training, momentum, eps
    )
    return y.to(x.dtype), mean.to(running_mean.dtype), var.to(running_var.dtype)


@benign("batch_norm")
def rows_in_pairs(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> Result:
    """Sums over even rows and odd rows apart."""

    def statistics(t: Tensor) -> tuple[Tensor, Tensor]:
        mean = (t[0::2].sum(0) + t[1::2].sum(0)) / t.shape[0]
        squares = (t - mean).square()
        return mean, (squares[0::2].sum(0) + squares[1::2].sum(0)) / t.shape[0]

    return _right(x, weight, bias, running_mean, running_var, training, momentum, eps, statistics=statistics)
