"""Functions of one number: interval ends for monotone ones, the declared accuracy of the library, then a rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from assay.numbers.arithmetic import Model
from assay.numbers.bound import Bounded, current, finish, freely_chosen, parts, plus, rounded, rule, values

aten = torch.ops.aten
ARGUMENT_ROUNDINGS = (
    1.5  # exp2 forms multiply the argument by log2(e): one rounding of the product, half a one of the constant
)


def _accurate(value: torch.Tensor, bar: Any, name: str) -> torch.Tensor:
    """The propagated bar plus the library's own error, relative to the result."""
    relative = current().model.function_error(name)
    return plus(bar, (value.abs() if bar is None else value.abs() + bar) * relative)


def _keep(out: Bounded, at: Any, bar: Any) -> Bounded:
    """No bar where the argument is exactly a point whose image every library hits."""
    sure = at if bar is None else at & (bar == 0)
    if out._bar is not None and bool(sure.any()):
        return Bounded(out._value, out._bar.masked_fill(sure, 0.0))
    return out


def exponential(value: torch.Tensor, bar: Any, model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """exp and its bar before the result is rounded."""
    size = value.abs().clamp_max(2000.0)  # exp underflows long before; keeps 0 * inf out
    shift = size * (ARGUMENT_ROUNDINGS * model.internal.u)
    out = value.exp()
    grown = torch.expm1(plus(shift, bar))
    relative = model.function_error("exp")
    return out, out * (grown * (1.0 + relative) + relative)


@rule(aten.exp.default)
def _exp(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    return _keep(rounded(*exponential(value, bar, current().model)), (value == 0) | (value == -math.inf), bar)


@rule(aten.exp2.default)
def _exp2(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    out = value.exp2()
    grown = None if bar is None else out * torch.expm1(bar * math.log(2.0) * (1.0 + 2.0**-50))
    return _keep(rounded(out, _accurate(out, grown, "exp")), (value == 0) | (value == -math.inf), bar)


def _softplus_of(value: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.softplus(value, threshold=60.0)


# function, lower end of its domain, the accuracy it goes by, the argument and image that every library hits
MONOTONE: dict[Any, tuple[Callable[[torch.Tensor], torch.Tensor], float, str, float | None]] = {
    aten.log.default: (torch.log, 0.0, "log", 1.0),
    aten.log2.default: (torch.log2, 0.0, "log", 1.0),
    aten.log10.default: (torch.log10, 0.0, "log", 1.0),
    aten.log1p.default: (torch.log1p, -1.0, "log", 0.0),
    aten.expm1.default: (torch.expm1, -math.inf, "exp", 0.0),
    aten.sqrt.default: (torch.sqrt, 0.0, "sqrt", 0.0),
    aten.rsqrt.default: (torch.rsqrt, 0.0, "sqrt", 1.0),
    aten.tanh.default: (torch.tanh, -math.inf, "tanh", 0.0),
    aten.erf.default: (torch.erf, -math.inf, "erf", None),
    aten.sigmoid.default: (torch.sigmoid, -math.inf, "exp", None),
    aten.atan.default: (torch.atan, -math.inf, "tanh", 0.0),
    aten.asin.default: (torch.asin, -1.0, "tanh", 0.0),
}


@rule(*MONOTONE)
def _monotone(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    function, lowest, accuracy, fixed = MONOTONE[func]
    out = function(value)
    spread = None
    if bar is not None:
        low, high = function((value - bar).clamp_min(lowest)), function(value + bar)
        spread = torch.maximum((high - out).abs(), (out - low).abs())
    if accuracy == "erf":  # absolute: torch's own is not relatively accurate near 0
        error = plus(spread, torch.full_like(out, current().model.function_error("erf")))
    else:
        error = _accurate(out, spread, accuracy)
    if func is aten.log.default or func is aten.log2.default or func is aten.log10.default:
        # log(x) by way of log2: the constant rounds too; near 1 the result is small but libraries stay relative.
        error = error + out.abs() * current().model.internal.u
    if func is aten.sigmoid.default:  # 1 / (1 + exp(-x)) written out: argument, exponential, sum, quotient
        error = error + out * (1.0 - out) * value.abs() * current().model.internal.u * ARGUMENT_ROUNDINGS
        error = error + out * (3.0 * current().model.internal.u)
    made = rounded(out, error)
    if fixed is None:
        return made
    return _keep(made, (value == fixed) | value.isinf() if accuracy != "tanh" else value == fixed, bar)


@rule(aten.sin.default, aten.cos.default)
def _trigonometric(func: Any, tensor: Any) -> Bounded:
    value, bar = parts(tensor)
    out = func(value)
    # Range reduction leaves an absolute error: relative accuracy near the zeros is not promised.
    error = torch.full_like(out, current().model.function_error("sin"))
    made = rounded(out, plus(None if bar is None else bar.clamp_max(2.0), error))
    return _keep(made, value == 0, bar)


@rule(aten.pow.Tensor_Scalar)
def _pow(func: Any, tensor: Any, exponent: Any) -> Any:
    if exponent == 2:
        return tensor * tensor
    if exponent == 1:
        return tensor * 1.0
    if exponent == 0.5:
        return tensor.sqrt()
    if exponent == -0.5:
        return tensor.rsqrt()
    if exponent == 3:
        return tensor * tensor * tensor
    value, bar = parts(tensor)
    out = value**exponent
    size = value.abs()
    spread = None
    if bar is not None:
        worst = (size + bar) if exponent >= 1 else (size - bar).clamp_min(0.0)
        spread = bar * abs(exponent) * worst ** (exponent - 1)
    return rounded(out, _power_error(out, spread, size, abs(exponent)))


def _power_error(out: torch.Tensor, spread: Any, base: torch.Tensor, exponent: Any) -> torch.Tensor:
    """Library accuracy, and the rounding of exponent * log(base) for those who write it so."""
    turned = (base.log() * exponent).abs().nan_to_num(posinf=0.0).clamp_max(2000.0)
    relative = torch.expm1(turned * (2.0 * ARGUMENT_ROUNDINGS * current().model.internal.u))
    size = out.abs() if spread is None else out.abs() + spread
    return _accurate(out, plus(spread, size * relative), "exp")


@rule(aten.pow.Scalar)
def _pow_scalar(func: Any, base: Any, exponent: Any) -> Bounded:
    return _powers(*parts(base), *parts(exponent))


@rule(aten.pow.Tensor_Tensor)
def _pow_tensor(func: Any, base: Any, exponent: Any) -> Bounded:
    return _powers(*parts(base), *parts(exponent))


def _powers(bv: Any, be: Any, ev: torch.Tensor, ee: Any) -> Bounded:
    """base ** exponent for base > 0."""
    base = bv if isinstance(bv, torch.Tensor) else torch.tensor(bv, dtype=torch.float64)
    out = base**ev
    turn = None if ee is None else base.log().abs() * ee
    if be is not None:
        turn = plus(turn, (abs(ev) + (0.0 if ee is None else ee)) * be / (base - be).clamp_min(0.0))
    spread = None if turn is None else out * torch.expm1(turn)
    return _keep(rounded(out, _power_error(out, spread, base, ev)), ev == 0, ee)


# --- compositions: written out in the rules above --------------------------------------------------------------------


def _softmax_parts(tensor: Any, dim: int) -> tuple[Any, Any]:
    value = values(tensor)
    top = value.amax(dim, keepdim=True) if value.shape[dim] else value.sum(dim, keepdim=True)
    shifted = tensor - freely_chosen(Bounded(top.to(torch.float64)))
    return shifted, shifted.exp()


@rule(aten._softmax.default, aten._safe_softmax.default, aten.softmax.int)
def _softmax(func: Any, tensor: Any, dim: int, *rest: Any, **named: Any) -> Any:
    _, weights = _softmax_parts(tensor, dim)
    return weights / weights.sum(dim, keepdim=True)


@rule(aten._log_softmax.default, aten.log_softmax.int)
def _log_softmax(func: Any, tensor: Any, dim: int, *rest: Any, **named: Any) -> Any:
    shifted, weights = _softmax_parts(tensor, dim)
    return shifted - weights.sum(dim, keepdim=True).log()


@rule(aten._softmax_backward_data.default)
def _softmax_backward(func: Any, gradient: Any, output: Any, dim: int, dtype: Any) -> Any:
    return output * (gradient - (gradient * output).sum(dim, keepdim=True))


@rule(aten._log_softmax_backward_data.default)
def _log_softmax_backward(func: Any, gradient: Any, output: Any, dim: int, dtype: Any) -> Any:
    return gradient - output.exp() * gradient.sum(dim, keepdim=True)


@rule(aten.silu.default)
def _silu(func: Any, tensor: Any) -> Any:
    return tensor * tensor.sigmoid()


@rule(aten.silu_backward.default)
def _silu_backward(func: Any, gradient: Any, tensor: Any) -> Any:
    gate = tensor.sigmoid()
    return gradient * gate * (1.0 + tensor * (1.0 - gate))


@rule(aten.sigmoid_backward.default)
def _sigmoid_backward(func: Any, gradient: Any, output: Any) -> Any:
    return gradient * output * (1.0 - output)


@rule(aten.tanh_backward.default)
def _tanh_backward(func: Any, gradient: Any, output: Any) -> Any:
    return gradient * (1.0 - output * output)


@rule(aten.softplus.default)
def _softplus(func: Any, tensor: Any, beta: Any = 1, threshold: Any = 20) -> Any:
    """max(x, 0) + log(1 + exp(-|x|)); beyond the threshold torch returns x, which differs by less than
    exp(-threshold)."""
    scaled = tensor if beta == 1 else tensor * beta
    out = scaled.clamp_min(0.0) + (-scaled.abs()).exp().log1p()
    cut = torch.where(values(scaled) > threshold - 1.0, (-values(scaled)).exp(), 0.0)
    out = Bounded(out._value, out.bar + cut)
    return out if beta == 1 else out / beta


@rule(aten.softplus_backward.default)
def _softplus_backward(func: Any, gradient: Any, tensor: Any, beta: Any, threshold: Any) -> Any:
    return gradient * (tensor if beta == 1 else tensor * beta).sigmoid()


@rule(aten.log_sigmoid_forward.default)
def _log_sigmoid(func: Any, tensor: Any) -> Any:
    out = tensor.clamp_max(0.0) - (-tensor.abs()).exp().log1p()
    return out, torch.zeros_like(values(tensor))


@rule(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(func: Any, gradient: Any, tensor: Any, buffer: Any) -> Any:
    return gradient * (-tensor).sigmoid()


@rule(aten.gelu.default)
def _gelu(func: Any, tensor: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        return tensor * 0.5 * ((tensor * math.sqrt(0.5)).erf() + 1.0)
    inner = (tensor + tensor * tensor * tensor * 0.044715) * math.sqrt(2.0 / math.pi)
    return tensor * 0.5 * (inner.tanh() + 1.0)


@rule(aten.gelu_backward.default)
def _gelu_backward(func: Any, gradient: Any, tensor: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        density = (tensor * tensor * -0.5).exp() * (1.0 / math.sqrt(2.0 * math.pi))
        return gradient * (((tensor * math.sqrt(0.5)).erf() + 1.0) * 0.5 + tensor * density)
    slope = math.sqrt(2.0 / math.pi)
    curve = ((tensor + tensor * tensor * tensor * 0.044715) * slope).tanh()
    inner = (tensor * tensor * (3.0 * 0.044715) + 1.0) * slope
    return gradient * ((curve + 1.0) * 0.5 + tensor * 0.5 * (1.0 - curve * curve) * inner)


@rule(aten.nan_to_num.default)
def _nan_to_num(func: Any, tensor: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Bounded:
    value, bar = parts(tensor)
    return finish(func(value, nan, posinf, neginf), bar)
