"""Indexing, sorting and scattering: positions are chosen by value; sums into one place round in the stored type."""

from __future__ import annotations

from typing import Any

import torch

from assay.numbers.bound import DOUBLE_U, Bounded, current, parts, plus, rounded, rule
from assay.numbers.rules_reductions import on_a_grid

aten = torch.ops.aten


@rule(aten.index.Tensor, aten._unsafe_index.Tensor, aten.gather.default)
def _index(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Bounded:
    value, bar = parts(tensor)
    out = func(value, *args, **kwargs)
    return Bounded(out, None if bar is None else func(bar, *args, **kwargs))


@rule(aten.embedding.default)
def _embedding(func: Any, weight: Any, ids: Any, *rest: Any) -> Bounded:
    value, bar = parts(weight)
    return Bounded(value[ids], None if bar is None else bar[ids])


@rule(aten.topk.default, aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.cummax.default)
def _ordered(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """The order is that of the values; margins of the choice are judged by the property."""
    value, bar = parts(tensor)
    out, where = func(value, *args, **kwargs)
    if bar is None:
        return Bounded(out, None), where
    dim = _ordered_dim(func, args, kwargs)
    wide = where.unsqueeze(dim) if where.dim() < bar.dim() else where
    moved = bar.gather(dim, wide)
    return Bounded(out, moved if where.dim() == bar.dim() else moved.squeeze(dim)), where


def _ordered_dim(func: Any, args: Any, kwargs: Any) -> int:
    if "dim" in kwargs:
        return int(kwargs["dim"])
    place = {aten.topk.default: 1, aten.kthvalue.default: 1, aten.sort.default: 0, aten.cummax.default: 0}.get(func, 1)
    return int(args[place]) if len(args) > place else -1


def gathered(add: Any, base: Any, source: Any) -> Bounded:
    """base with source added at places `add` knows: `add(target, numbers)` is the plain operation.

    Such sums are kept in the stored type by plain implementations (index_add, atomics), so each addition rounds to it.
    """
    (bv, be), (sv, se) = parts(base), parts(source)
    out = add(bv, sv)
    reach = add(bv.abs(), sv.abs())
    if be is not None or se is not None:
        spread = add(torch.zeros_like(bv) if be is None else be, torch.zeros_like(sv) if se is None else se)
    else:
        spread = None
    hits = float(add(torch.zeros_like(bv), torch.ones_like(sv)).max()) if out.numel() else 0.0
    if spread is None and (hits == 0.0 or (hits == 1.0 and not bool(bv.any()))):
        return Bounded(out, None)
    fmt = current().model.internal
    if spread is None and on_a_grid(bv, float(reach.max()), fmt) and on_a_grid(sv, float(reach.max()), fmt):
        return Bounded(out, None)
    steps = hits if bool(bv.any()) else hits - 1.0
    relative = steps * fmt.u / max(1.0 - steps * fmt.u, 0.0) if steps * fmt.u < 1.0 else float("inf")
    reach = plus(reach, spread)
    added = plus(spread, torch.where(reach > 0, reach * (relative + 2.0 * (hits + 1) * DOUBLE_U), 0.0))
    return rounded(out, added)


def _overwritten(func: Any, base: Any, source: Any, put: Any) -> Bounded:
    (bv, be), (sv, se) = parts(base), parts(source)
    out = put(bv, sv)
    if be is None and se is None:
        return Bounded(out, None)
    zero = 0.0 if not isinstance(sv, torch.Tensor) else torch.zeros_like(sv)
    return Bounded(out, put(torch.zeros_like(bv) if be is None else be, zero if se is None else se))


@rule(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def _index_put(func: Any, base: Any, indices: Any, source: Any, accumulate: bool = False, *rest: Any) -> Bounded:
    def put(target: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return aten.index_put.default(target, indices, numbers, accumulate)

    return gathered(put, base, source) if accumulate else _overwritten(func, base, source, put)


@rule(aten.index_add.default)
def _index_add(func: Any, base: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Bounded:
    scaled = source if alpha == 1 else source * alpha
    return gathered(lambda t, s: t.index_add(dim, index, s), base, scaled)


@rule(aten.scatter_add.default)
def _scatter_add(func: Any, base: Any, dim: int, index: Any, source: Any) -> Bounded:
    return gathered(lambda t, s: t.scatter_add(dim, index, s), base, source)


@rule(aten.scatter.src, aten.scatter.value)
def _scatter(func: Any, base: Any, dim: int, index: Any, source: Any) -> Bounded:
    return _overwritten(func, base, source, lambda t, s: t.scatter(dim, index, s))


@rule(aten.index_copy.default)
def _index_copy(func: Any, base: Any, dim: int, index: Any, source: Any) -> Bounded:
    return _overwritten(func, base, source, lambda t, s: t.index_copy(dim, index, s))


@rule(aten.slice_scatter.default, aten.select_scatter.default)
def _slice_scatter(func: Any, base: Any, source: Any, *args: Any, **kwargs: Any) -> Bounded:
    return _overwritten(func, base, source, lambda t, s: func(t, s, *args, **kwargs))


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(func: Any, gradient: Any, ids: Any, rows: int, padding: int, by_frequency: bool) -> Bounded:
    flat = gradient.reshape(-1, gradient.shape[-1])
    base = torch.zeros(rows, gradient.shape[-1], dtype=torch.float64)
    if padding >= 0:
        flat = flat.masked_fill((ids.reshape(-1) == padding).unsqueeze(-1), 0.0)
    return gathered(lambda t, s: t.index_add(0, ids.reshape(-1), s), base, flat)


@rule(aten.value_selecting_reduction_backward.default)
def _selected_backward(func: Any, gradient: Any, dim: int, indices: Any, sizes: Any, keepdim: bool) -> Bounded:
    value, bar = parts(gradient)
    out = func(value, dim, indices, sizes, keepdim)
    return Bounded(out, None if bar is None else func(bar, dim, indices, sizes, keepdim))


@rule(aten.unfold_backward.default)
def _unfold_backward(func: Any, gradient: Any, sizes: Any, *args: Any) -> Bounded:
    base = torch.zeros(sizes, dtype=torch.float64)
    return gathered(lambda t, s: t + func(s, sizes, *args), base, gradient)
