"""Sums and what is made of them: gamma_n of the accumulation format over the magnitudes, then one internal rounding."""

from __future__ import annotations

import math
from typing import Any

import torch

from assay.numbers.arithmetic import Format
from assay.numbers.bound import DOUBLE_U, Bounded, current, finish, freely_chosen, parts, plus, rounded, rule, values

aten = torch.ops.aten


def on_a_grid(terms: torch.Tensor, total: float, fmt: Format) -> bool:
    """Whether the terms are multiples of one power of two so coarse that every partial sum is held exactly."""
    if total == 0.0:
        return True
    if not math.isfinite(total):
        return False
    grid = math.ldexp(1.0, math.frexp(total)[1] - fmt.precision)  # any partial sum is below 2**p times this
    scaled = terms / grid
    return bool((scaled == scaled.round()).all())


def accumulated(value: torch.Tensor, bar: Any, reach: torch.Tensor, terms: int) -> torch.Tensor:
    """Bar of a sum of `terms` terms whose magnitudes sum to `reach` (bars included)."""
    # A sum of n terms has n - 1 additions; evaluating it in float64 errs alike.
    gamma = current().model.gamma(terms - 1) + 2.0 * terms * DOUBLE_U
    return plus(bar, reach * gamma) if terms > 1 else plus(bar, torch.zeros_like(reach))


def _count(shape: torch.Size, dims: tuple[int, ...]) -> int:
    return math.prod(shape[d] for d in dims)


def _dims(tensor: Any, dims: Any) -> tuple[int, ...]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(tensor.dim()))
    return (dims,) if isinstance(dims, int) else tuple(dims)


@rule(aten.sum.dim_IntList, aten.sum.default)
def total(func: Any, tensor: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Bounded:
    """Sum over dimensions."""
    value, bar = parts(tensor)
    dims = _dims(tensor, dim)
    out = value.sum(dims, keepdim) if dims else value
    terms = _count(value.shape, dims)
    if terms <= 1:
        return finish(out, None if bar is None else (bar.sum(dims, keepdim) if dims else bar))
    magnitude = value.abs()
    reach = magnitude.sum(dims, keepdim)
    if bar is None:
        fmt = current().model.accumulate
        if on_a_grid(value, float(reach.max()) if reach.numel() else 0.0, fmt):
            return rounded(out, None, lambda: True)
        return rounded(out, accumulated(out, None, reach, terms))
    spread = bar.sum(dims, keepdim)
    return rounded(out, accumulated(out, spread, reach + spread, terms))


@rule(aten.mean.dim, aten.mean.default)
def _mean(func: Any, tensor: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return total(func, tensor, dim, keepdim) / _count(tensor.shape, _dims(tensor, dim))


@rule(aten.cumsum.default)
def _cumsum(func: Any, tensor: Any, dim: int, *, dtype: Any = None) -> Bounded:
    value, bar = parts(tensor)
    out = value.cumsum(dim)
    reach = value.abs().cumsum(dim)
    if bar is None and on_a_grid(value, float(reach.max()) if reach.numel() else 0.0, current().model.accumulate):
        return rounded(out, None, lambda: True)
    spread = None if bar is None else bar.cumsum(dim)
    return rounded(out, accumulated(out, spread, plus(reach, spread), value.shape[dim] if value.dim() else 1))


@rule(aten.amax.default, aten.amin.default)
def _amax(func: Any, tensor: Any, dim: Any = (), keepdim: bool = False) -> Bounded:
    value, bar = parts(tensor)
    out = func(value, dim, keepdim)
    return Bounded(out, None) if bar is None else finish(out, _extreme_bar(func, value, bar, out, dim, keepdim))


def _extreme_bar(func: Any, value: Any, bar: Any, out: Any, dim: Any, keepdim: bool) -> torch.Tensor:
    above, below = func(value + bar, dim, keepdim) - out, out - func(value - bar, dim, keepdim)
    return torch.where(out.isfinite(), torch.maximum(above, below), 0.0)


@rule(aten.max.default, aten.min.default)
def _max_all(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    out = func(value)
    if bar is None:
        return Bounded(out, None)
    return finish(out, torch.maximum(func(value + bar) - out, out - func(value - bar)))


@rule(aten.max.dim, aten.min.dim)
def _max_dim(func: Any, tensor: Any, dim: int, keepdim: bool = False) -> Any:
    value, bar = parts(tensor)
    out, where = func(value, dim, keepdim)
    if bar is None:
        return Bounded(out, None), where
    reduce = aten.amax.default if func is aten.max.dim else aten.amin.default
    return finish(out, _extreme_bar(reduce, value, bar, out, [dim], keepdim)), where


@rule(aten.logsumexp.default)
def logsumexp(func: Any, tensor: Any, dim: Any, keepdim: bool = False) -> Any:
    """Maximum plus log of the sum of shifted exponentials."""
    value, _ = parts(tensor)
    top = value.amax(dim, keepdim=True)
    shift = freely_chosen(Bounded(torch.where(top.isfinite(), top, 0.0)))
    summed = (tensor - shift).exp().sum(dim, keepdim=True).log() + shift
    return summed if keepdim else summed.squeeze(dim)


@rule(aten.var.correction)
def variance(func: Any, tensor: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """Mean square of what is left after the mean is taken off."""
    dims = _dims(tensor, dim)
    centred = tensor - tensor.mean(dims, keepdim=True)
    terms = _count(tensor.shape, dims) - (1 if correction is None else correction)
    return (centred * centred).sum(dims, keepdim) / terms


@rule(aten.var_mean.correction)
def _var_mean(func: Any, tensor: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    spread = variance(func, tensor, dim, correction=correction, keepdim=keepdim)
    return spread, tensor.mean(_dims(tensor, dim), keepdim=keepdim)


@rule(aten.std.correction)
def _std(func: Any, tensor: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return variance(func, tensor, dim, correction=correction, keepdim=keepdim).sqrt()


@rule(aten.linalg_vector_norm.default)
def _norm(func: Any, tensor: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = _dims(tensor, dim)
    if ord == math.inf:
        return tensor.abs().amax(dims, keepdim)
    if ord == 1:
        return tensor.abs().sum(dims, keepdim)
    return (
        (tensor * tensor).sum(dims, keepdim).sqrt()
        if ord == 2
        else (tensor.abs() ** ord).sum(dims, keepdim) ** (1 / ord)
    )


@rule(aten.prod.dim_int, aten.prod.default)
def _prod(func: Any, tensor: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """One factor after another: products are as short as their factors are few."""
    axis = tensor.reshape(-1) if dim is None else tensor.movedim(dim, 0)
    out = torch.ones_like(values(axis).sum(0)) if axis.shape[0] == 0 else axis[0]
    for factor in range(1, axis.shape[0]):
        out = out * axis[factor]
    return out.unsqueeze(dim) if keepdim and dim is not None else out


@rule(aten.cumprod.default)
def _cumprod(func: Any, tensor: Any, dim: int, *, dtype: Any = None) -> Any:
    axis = tensor.movedim(dim, 0)
    running = [axis[0]]
    for factor in range(1, axis.shape[0]):
        running.append(running[-1] * axis[factor])
    return torch.stack(running, 0).movedim(0, dim)
