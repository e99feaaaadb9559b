"""Elementwise arithmetic: propagated bars, then one rounding to the internal format unless provably exact."""

from __future__ import annotations

import math
from typing import Any

import torch

from assay.numbers.arithmetic import FORMATS
from assay.numbers.bound import Bounded, Engine, current, finish, parts, plus, representable, rounded, rule, values

aten = torch.ops.aten
SINGLE = FORMATS["float32"]


def _wide(entered: Engine) -> bool:
    return entered.model.internal.name == "float64"


def short(number: Any) -> Any:
    """Whether a number has at most 24 significant bits, so that products of two are exact in float64."""
    if isinstance(number, torch.Tensor):
        return representable(number, SINGLE)
    return bool(representable(torch.tensor(number, dtype=torch.float64), SINGLE))


def _as_tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)


@rule(aten.add.Tensor, aten.add.Scalar)
def _add(func: Any, left: Any, right: Any, alpha: Any = 1) -> Bounded:
    (lv, le), (rv, re) = parts(left), parts(right)
    if alpha != 1:
        rv, re = rv * alpha, None if re is None else re * abs(alpha)
    value = _as_tensor(lv + rv)
    return rounded(value, plus(le, re), lambda: (value - lv == rv) & (value - rv == lv))


@rule(aten.sub.Tensor, aten.sub.Scalar)
def _sub(func: Any, left: Any, right: Any, alpha: Any = 1) -> Bounded:
    return _add(func, left, right, -alpha)  # type: ignore[no-any-return]


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def _rsub(func: Any, left: Any, right: Any, alpha: Any = 1) -> Bounded:
    return _add(func, right, left, -alpha)  # type: ignore[no-any-return]


def product_bar(lv: Any, le: Any, rv: Any, re: Any) -> Any:
    """|left| e_right + |right| e_left + e_left e_right."""
    if le is None and re is None:
        return None
    if re is None:
        return le * abs(rv)
    if le is None:
        return abs(lv) * re
    return (abs(lv) + le) * re + le * abs(rv)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def _mul(func: Any, left: Any, right: Any) -> Bounded:
    (lv, le), (rv, re) = parts(left), parts(right)
    value = _as_tensor(lv * rv)
    bar = product_bar(lv, le, rv, re)
    for scalar, its_bar in ((rv, re), (lv, le)):
        if not isinstance(scalar, torch.Tensor) and its_bar is None and math.frexp(abs(scalar))[0] in (0.0, 0.5):
            return _scaled(value, bar, scalar)
    return rounded(value, bar, lambda: True if not _wide(current()) else short(lv) & short(rv))


def _scaled(value: torch.Tensor, bar: Any, scalar: float) -> Bounded:
    """Times a power of two: exact, but for underflow."""
    fmt = current().model.internal
    if abs(scalar) >= 1.0 or scalar == 0.0:
        return finish(value, bar)
    lost = (value.abs() if bar is None else value.abs() + bar).sign() * fmt.underflow
    held = representable(value, fmt)
    if bar is None and (held is True or bool(held.all())):  # type: ignore[union-attr]
        return finish(value, None)
    return finish(value, lost.masked_fill(held, 0.0) if bar is None else bar + lost)


@rule(aten.div.Tensor, aten.div.Scalar)
def _div(func: Any, left: Any, right: Any) -> Bounded:
    (lv, le), (rv, re) = parts(left), parts(right)
    value = _as_tensor(lv / rv)
    if re is None:
        bar = None if le is None else le / abs(rv)
    else:
        room = _as_tensor(abs(rv) - re)
        bar = value.abs() * re if le is None else le + value.abs() * re
        bar = torch.where(room > 0, bar / room, torch.inf)
    return rounded(value, bar, lambda: (value * rv == lv) & short(value) & short(rv))


@rule(aten.reciprocal.default)
def _reciprocal(func: Any, tensor: Any) -> Bounded:
    return _div(func, 1.0, tensor)  # type: ignore[no-any-return]


@rule(
    aten.div.Tensor_mode,
    aten.div.Scalar_mode,
    aten.floor_divide.default,
    aten.remainder.Scalar,
    aten.remainder.Tensor,
    aten.floor.default,
    aten.ceil.default,
    aten.round.default,
    aten.trunc.default,
)
def _steps(func: Any, *args: Any, **kwargs: Any) -> Bounded:
    """Step functions: by value, exact on exact input; an uncertain input may be a whole step away."""
    bars = [parts(a)[1] for a in args if isinstance(a, (torch.Tensor, float))]
    value = func(*values(args), **kwargs).to(torch.float64)
    if all(bar is None for bar in bars):
        return finish(value, None)
    bar = sum((b for b in bars if b is not None), torch.zeros_like(value))
    return finish(value, torch.where(bar > 0, bar.ceil() + 1.0, 0.0))


@rule(aten.abs.default)
def _abs(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    return Bounded(value.abs(), bar)


@rule(aten.sign.default, aten.sgn.default)
def _sign(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    unsure = None if bar is None else torch.where((bar > 0) & (value.abs() <= bar), 2.0, 0.0)
    return Bounded(value.sign(), unsure)


def _larger(left: Any, right: Any, like: torch.Tensor) -> Any:
    if left is None and right is None:
        return None
    zero = torch.zeros_like(like)
    return torch.maximum(zero if left is None else zero + left, zero if right is None else zero + right)


@rule(aten.maximum.default, aten.minimum.default, aten.max.other, aten.min.other, aten.fmax.default, aten.fmin.default)
def _extremum(func: Any, left: Any, right: Any) -> Bounded:
    (lv, le), (rv, re) = parts(left), parts(right)
    value = func(lv, rv)
    return Bounded(value, _larger(le, re, value))


@rule(
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_max.default,
    aten.clamp_min.Tensor,
    aten.clamp_max.Tensor,
    aten.hardtanh.default,
)
def _clamp(func: Any, tensor: Any, *limits: Any, **named: Any) -> Bounded:
    """Clamping moves no two numbers apart; limits that round move the result by their own rounding."""
    value, bar = parts(tensor)
    for limit in (*limits, *named.values()):
        if limit is not None:
            bar = _larger(bar, parts(limit)[1], value)
    return Bounded(func(value, *values(limits), **{name: values(limit) for name, limit in named.items()}), bar)


@rule(aten.relu.default)
def _relu(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    return Bounded(value.relu(), None if bar is None else torch.minimum(bar, (value + bar).relu()))


@rule(aten.threshold_backward.default)
def _threshold_backward(func: Any, gradient: Any, tensor: Any, threshold: Any) -> Bounded:
    """Where the sign of the input is uncertain, the gradient may be there or not."""
    (gv, ge), (value, bar) = parts(gradient), parts(tensor)
    passed = value > threshold
    out = torch.where(passed, gv, 0.0)
    kept = torch.zeros_like(gv) if ge is None else torch.where(passed, ge, 0.0)
    if bar is not None:
        unsure = (bar > 0) & ((value - threshold).abs() <= bar)
        kept = torch.where(unsure, gv.abs() + (0.0 if ge is None else ge), kept)
    elif ge is None:
        return Bounded(out, None)
    return Bounded(out, kept)


@rule(aten.addcmul.default)
def _addcmul(func: Any, tensor: Any, left: Any, right: Any, *, value: Any = 1) -> Any:
    return tensor + left * right * value


@rule(aten.addcdiv.default)
def _addcdiv(func: Any, tensor: Any, left: Any, right: Any, *, value: Any = 1) -> Any:
    return tensor + left / right * value


@rule(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(func: Any, start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)
