"""Data movement: the same operation on value and bar; nothing rounds."""

from __future__ import annotations

from typing import Any

import torch

from assay.errors import NoRuleError
from assay.numbers.bound import RULES, Bounded, current, parts, representable, rounding, rule, values

aten = torch.ops.aten

VIEWS = (
    aten.transpose.int,
    aten.permute.default,
    aten.expand.default,
    aten.slice.Tensor,
    aten.select.int,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.squeeze.default,
    aten.t.default,
    aten.detach.default,
    aten.alias.default,
    aten.diagonal.default,
    aten.unfold.default,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.unbind.int,
    aten.chunk.default,
    aten.movedim.int,
    aten.swapaxes.default,
    aten.lift_fresh.default,
    aten.lift.default,
)
COPIES = (
    aten.clone.default,
    aten.contiguous.default,
    aten.tril.default,
    aten.triu.default,
    aten.roll.default,
    aten.flip.default,
    aten.repeat.default,
    aten.repeat_interleave.self_int,
    aten.repeat_interleave.self_Tensor,
    aten.index_select.default,
    aten.constant_pad_nd.default,
    aten.slice_backward.default,
    aten.select_backward.default,
    aten.diagonal_backward.default,
    aten.masked_select.default,
    aten.neg.default,
    aten.pixel_unshuffle.default,
    aten.take.default,
    aten.masked_scatter.default,
)


def _bounded_like(value: Any, bar: Any, *, is_view: bool = False) -> Any:
    if isinstance(value, (tuple, list)):
        bars = [None] * len(value) if bar is None else bar
        return type(value)(_bounded_like(v, b, is_view=is_view) for v, b in zip(value, bars, strict=True))
    return Bounded(value, bar, is_view=is_view)


@rule(*VIEWS)
def _view(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    value, bar = parts(tensor)
    return _bounded_like(
        func(value, *args, **kwargs), None if bar is None else func(bar, *args, **kwargs), is_view=True
    )


@rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default)
def _reshape(func: Any, tensor: Any, size: Any, *strides: Any) -> Any:
    value, bar = parts(tensor)
    return _bounded_like(value.reshape(size), None if bar is None else bar.reshape(size), is_view=True)


@rule(aten.as_strided.default)
def _as_strided(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    raise NoRuleError("operation=as_strided depends on memory layout and has no error rule; write the view out")


@rule(*COPIES)
def _copy(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    value, bar = parts(tensor)
    out = func(value, *values(args), **kwargs)
    if bar is None:
        return Bounded(out, None)
    if func is aten.neg.default:
        return Bounded(out, bar)
    if func is aten.constant_pad_nd.default:
        return Bounded(out, func(bar, args[0], 0.0))
    return Bounded(out, func(bar, *values(args), **kwargs))


@rule(aten.cat.default, aten.stack.default)
def _join(func: Any, tensors: Any, dim: int = 0) -> Any:
    pairs = [parts(t) for t in tensors]
    value = func([v for v, _ in pairs], dim)
    if all(e is None for _, e in pairs):
        return Bounded(value, None)
    return Bounded(value, func([torch.zeros_like(v) if e is None else e for v, e in pairs], dim))


@rule(aten._to_copy.default)
def _to_copy(func: Any, tensor: Any, **kwargs: Any) -> Any:
    """A change of type is free between floating types: stored results are rounded by the operations that make them."""
    dtype = kwargs.get("dtype")
    if dtype is not None and not dtype.is_floating_point:
        return func(values(tensor), **kwargs)
    value, bar = parts(tensor)
    return Bounded(value.clone(), bar)


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def _where(func: Any, condition: Any, left: Any, right: Any) -> Any:
    (lv, le), (rv, re) = parts(left), parts(right)
    value = torch.where(values(condition), _tensor(lv), _tensor(rv))
    if le is None and re is None:
        return Bounded(value, None)
    bar = torch.where(values(condition), _tensor(0.0 if le is None else le), _tensor(0.0 if re is None else re))
    return Bounded(value, bar.expand(value.shape))


def _tensor(number: Any) -> torch.Tensor:
    return number if isinstance(number, torch.Tensor) else torch.tensor(number, dtype=torch.float64)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(func: Any, tensor: Any, mask: Any, filling: Any) -> Any:
    (value, bar), (fv, fe) = parts(tensor), parts(filling)
    out = value.masked_fill(mask, fv)
    if bar is None and fe is None:
        return Bounded(out, None)
    bar = torch.zeros_like(value) if bar is None else bar
    return Bounded(out, bar.masked_fill(mask, 0.0 if fe is None else fe))


FACTORIES = (
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.eye.default,
    aten.eye.m,
    aten.scalar_tensor.default,
    aten.linspace.default,
    aten.empty.memory_format,
    aten.new_zeros.default,
    aten.new_ones.default,
    aten.new_full.default,
    aten.new_empty.default,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
    aten.new_empty_strided.default,
    aten.empty_strided.default,
)


@rule(*FACTORIES)
def _make(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A floating constant is made in float64 and rounds to the internal format where that does not hold it."""
    if not args or not isinstance(args[0], torch.Tensor):
        plain = func(*args, **kwargs)
        if not plain.is_floating_point():
            return plain
    elif not (kwargs.get("dtype") or args[0].dtype).is_floating_point:
        return func(*values(args), **kwargs)
    value = func(*values(args), **{**kwargs, "dtype": torch.float64})
    if "empty" in str(func):
        value = torch.zeros_like(value)
    fmt = current().model.internal
    held = representable(value, fmt)
    if held is True or bool(held.all()):  # type: ignore[union-attr]
        return Bounded(value, None)
    return Bounded(value, rounding(value.abs(), fmt).masked_fill(held, 0.0))


_make.makes = True  # type: ignore[attr-defined]  # runs before the plain operation would


@rule(
    aten.eq.Tensor,
    aten.eq.Scalar,
    aten.ne.Tensor,
    aten.ne.Scalar,
    aten.lt.Tensor,
    aten.lt.Scalar,
    aten.le.Tensor,
    aten.le.Scalar,
    aten.gt.Tensor,
    aten.gt.Scalar,
    aten.ge.Tensor,
    aten.ge.Scalar,
    aten.isinf.default,
    aten.isnan.default,
    aten.isfinite.default,
    aten.isneginf.default,
    aten.isposinf.default,
    aten.logical_not.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.any.default,
    aten.any.dim,
    aten.all.default,
    aten.all.dim,
    aten.argmax.default,
    aten.argmin.default,
    aten.argsort.default,
    aten.argsort.stable,
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.nonzero.default,
    aten.bucketize.Tensor,
    aten.searchsorted.Tensor,
    aten.count_nonzero.dim_IntList,
    aten.count_nonzero.default,
)
def _by_value(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Masks and choices are made from values."""
    return func(*values(args), **kwargs)


def _in_place(out_of_place: Any) -> Any:
    def apply(func: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(target, Bounded):
            raise NoRuleError(f"operation={func} writes bounded numbers into a plain tensor; write it out of place")
        if target._is_view:
            raise NoRuleError(f"operation={func} writes into a view, which bars do not follow; write it out of place")
        made = RULES[out_of_place](out_of_place, target, *args, **kwargs)
        target._value, target._bar = made._value.expand(target.shape), made._bar
        return target

    return apply


IN_PLACE = (
    "add_.Tensor",
    "add_.Scalar",
    "sub_.Tensor",
    "mul_.Tensor",
    "mul_.Scalar",
    "div_.Tensor",
    "div_.Scalar",
    "neg_.default",
    "masked_fill_.Scalar",
    "masked_fill_.Tensor",
    "index_put_.default",
    "index_add_.default",
    "scatter_.src",
    "scatter_.value",
    "scatter_add_.default",
    "tril_.default",
    "triu_.default",
    "exp_.default",
    "clamp_.default",
    "clamp_min_.default",
)


def register_in_place() -> None:
    """In-place operations follow from the out-of-place ones; called once those are registered."""
    for name in IN_PLACE:
        packet, overload = name.split(".")
        rule(getattr(getattr(aten, packet), overload))(_in_place(getattr(getattr(aten, packet[:-1]), overload)))


@rule(aten.copy_.default)
def _copy_(func: Any, target: Any, source: Any, non_blocking: bool = False) -> Any:
    return _overwrite(func, target, *parts(source))


@rule(aten.zero_.default)
def _zero_(func: Any, target: Any) -> Any:
    return _overwrite(func, target, torch.zeros_like(target._value), None)


@rule(aten.fill_.Scalar, aten.fill_.Tensor)
def _fill_(func: Any, target: Any, filling: Any) -> Any:
    value, bar = parts(filling)
    return _overwrite(func, target, torch.zeros_like(target._value) + value, bar)


def _overwrite(func: Any, target: Any, value: Any, bar: Any) -> Any:
    if not isinstance(target, Bounded) or target._is_view:
        raise NoRuleError(f"operation={func} writes into a plain tensor or a view; write it out of place")
    target._value = value.expand(target.shape)
    target._bar = None if bar is None else torch.zeros_like(target._value) + bar
    return target
