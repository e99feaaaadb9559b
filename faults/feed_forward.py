"""Planted faults of the feed-forward network, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, wide
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}
FLOAT32_INSIDE = {"internal": "float32"}
Activation = Callable[[Tensor], Tensor]
Way = Callable[[Tensor, Tensor, "Tensor | None", Tensor, "Tensor | None", str], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(wide(x), wide(weight), None if bias is None else wide(bias))


def _right(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, activation: str,
    between: Activation | None = None,
) -> Tensor:
    hidden = (between or ACTIVATIONS[activation])(_linear(x, w_in, b_in))
    return _linear(hidden, w_out, b_out).to(x.dtype)


def _planted(name: str, summary: str, way: Way, origin: str = "", **options: Any) -> None:
    def feed_forward(
        x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
    ) -> Tensor:
        return way(x, w_in, b_in, w_out, b_out, activation)

    feed_forward.__name__ = feed_forward.__qualname__ = name
    globals()[name] = fault("feed_forward", origin=origin, summary=summary, **options)(feed_forward)


def _between(change: Callable[[str, Tensor], Tensor]) -> Way:
    """Right but for what stands between the two maps."""
    return lambda x, wi, bi, wo, bo, act: _right(x, wi, bi, wo, bo, act, lambda t: change(act, t))


def _for(activation: str, wrong: Activation) -> Way:
    """One activation wrong."""
    return _between(lambda act, t: wrong(t) if act == activation else ACTIVATIONS[act](t))


def _in_half_before_the_bias(
    x: Tensor, wi: Tensor, bi: Tensor | None, wo: Tensor, bo: Tensor | None, act: str
) -> Tensor:
    stored = _linear(ACTIVATIONS[act](_linear(x, wi, bi)), wo, None).to(x.dtype)
    return stored if bo is None else stored + bo


def _sharded(x: Tensor, wi: Tensor, bi: Tensor | None, wo: Tensor, bo: Tensor | None, act: str) -> Tensor:
    hidden = ACTIVATIONS[act](_linear(x, wi, bi))
    half = wo.shape[1] // 2
    parts = (_linear(hidden[..., :half], wo[:, :half], bo), _linear(hidden[..., half:], wo[:, half:], bo))
    return (parts[0] + parts[1]).to(x.dtype)


def _last_hidden_lost(x: Tensor, wi: Tensor, bi: Tensor | None, wo: Tensor, bo: Tensor | None, act: str) -> Tensor:
    hidden = ACTIVATIONS[act](_linear(x, wi, bi))
    whole = wo.shape[1] // 4 * 4
    return _linear(hidden[..., :whole], wo[:, :whole], bo).to(x.dtype)


def _mixes_tokens(x: Tensor, wi: Tensor, bi: Tensor | None, wo: Tensor, bo: Tensor | None, act: str) -> Tensor:
    before = torch.cat((x[..., :1, :] * 0, x[..., :-1, :]), dim=-2) if x.dim() > 1 else x
    return _right(x + before / 64, wi, bi, wo, bo, act)


def _slope_of(t: Tensor, slope: Activation, value: Activation) -> Tensor:
    """The right value, another derivative."""
    return value(t).detach() + slope(t.detach()) * (t - t.detach())


_KEPT: dict[tuple[int, ...], Tensor] = {}


def _remembered(x: Tensor, wi: Tensor, bi: Tensor | None, wo: Tensor, bo: Tensor | None, act: str) -> Tensor:
    kept = _KEPT.setdefault(tuple(wi.shape), wi.detach().clone())
    return _right(x, wi - wi.detach() + kept.to(wi.dtype), bi, wo, bo, act)


def _hard_swish(t: Tensor) -> Tensor:
    """Clipped at ±2: right near 0 only."""
    return t * (0.5 + t.clamp(-2, 2) / 4)


_planted("projection_in_half_before_the_bias", "The output product is stored in half: inf above 65504.",
         _in_half_before_the_bias, "BUG-159", arithmetic=FLOAT32_INSIDE)
_planted("hidden_in_half", "The hidden layer is stored in half: inf above 65504.",
         _between(lambda act, t: ACTIVATIONS[act](t).half().to(t.dtype)), "BUG-159", arithmetic=FLOAT32_INSIDE)
_planted("gelu_tanh_for_gelu", "The tanh approximation passes for the exact one.",
         _for("gelu", ACTIVATIONS["gelu_tanh"]))
_planted("gelu_for_gelu_tanh", "The exact one passes for the tanh approximation.",
         _for("gelu_tanh", ACTIVATIONS["gelu"]))
_planted("quick_gelu", "x·sigmoid(1.702x) for gelu.", _for("gelu", lambda t: t * torch.sigmoid(1.702 * t)))
_planted("silu_by_hard_swish", "x·clip(½ + x/4) for silu.", _for("silu", _hard_swish))
_planted("silu_with_two_beta", "x·sigmoid(2x) for silu.", _for("silu", lambda t: t * torch.sigmoid(2 * t)))
_planted("sigmoid_for_silu", "The factor x was forgotten.", _for("silu", torch.sigmoid))
_planted("leaky_relu", "Negative units leak one hundredth.", _for("relu", lambda t: F.leaky_relu(t, 0.01)))
_planted("no_activation", "The two maps are one.", _between(lambda act, t: t))
_planted("always_relu", "The activation is ignored.", _between(lambda act, t: F.relu(t)))
_planted("activation_twice", "The activation is applied twice.",
         _between(lambda act, t: ACTIVATIONS[act](ACTIVATIONS[act](t))))
_planted("activation_at_the_end", "The activation comes after the second map.",
         lambda x, wi, bi, wo, bo, act: ACTIVATIONS[act](_right(x, wi, bi, wo, bo, act, lambda t: t)))
_planted("first_bias_left_out", "b_in is not added.", lambda x, wi, bi, wo, bo, act: _right(x, wi, None, wo, bo, act))
_planted("second_bias_left_out", "b_out is not added.", lambda x, wi, bi, wo, bo, act: _right(x, wi, bi, wo, None, act))
_planted("bias_after_activation", "b_in is added after the activation.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi, None, wo, bo, act, lambda t: ACTIVATIONS[act](t) if bi is None
                                               else ACTIVATIONS[act](t) + wide(bi)))
_planted("bias_once_a_shard", "The hidden layer is split in two and b_out added to both parts.", _sharded)
_planted("last_hidden_units_lost", "Hidden units beyond the last multiple of 4 are left out.", _last_hidden_lost)
_planted("tokens_leak", "A part of the token before is added.", _mixes_tokens)
_planted("adds_its_input", "A residual that belongs to the block.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi, bi, wo, bo, act) + x)
_planted("remembers_the_weight", "w_in is kept from the first call of its shape.", _remembered)
_planted("reads_as_contiguous", "Strides of x are ignored.",
         lambda x, wi, bi, wo, bo, act: _right(packed(x), wi, bi, wo, bo, act), "BUG-095")
_planted("weight_read_as_packed", "A transposed view of w_in is read as if packed.",
         lambda x, wi, bi, wo, bo, act: _right(x, packed(wi), bi, wo, bo, act), "BUG-095")
_planted("weight_not_transposed", "x·w_in where w_in is square: columns taken for tokens' weights.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi.T if wi.shape[0] == wi.shape[1] else wi, bi, wo, bo, act))
_planted("hidden_width_four_times", "The hidden width is taken for 4C: what lies beyond is left out.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi[: 4 * x.shape[-1]], None if bi is None else bi[: 4 * x.shape[-1]],
                                               wo[:, : 4 * x.shape[-1]], bo, act))
_planted("hidden_width_of_llama", "The hidden width is taken for ⌊8C/3⌋: what lies beyond is left out.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi[: 8 * x.shape[-1] // 3], None if bi is None
                                               else bi[: 8 * x.shape[-1] // 3], wo[:, : 8 * x.shape[-1] // 3], bo, act))
_planted("gelu_slope_without_the_density", "gelu' = Φ(x): the term x·φ(x) is missing.", _between(
    lambda act, t: _slope_of(t, lambda s: 0.5 * (1 + torch.erf(s * math.sqrt(0.5))), F.gelu) if act == "gelu"
    else ACTIVATIONS[act](t)))
_planted("silu_slope_of_sigmoid", "silu' = sigmoid(x): a term is missing.", _between(
    lambda act, t: _slope_of(t, torch.sigmoid, F.silu) if act == "silu" else ACTIVATIONS[act](t)))
_planted("slope_one_below_zero", "relu' is 1 everywhere.", _between(
    lambda act, t: _slope_of(t, torch.ones_like, F.relu) if act == "relu" else ACTIVATIONS[act](t)))
_planted("first_bias_without_gradient", "b_in gets no gradient.",
         lambda x, wi, bi, wo, bo, act: _right(x, wi, None if bi is None else bent(bi, torch.zeros_like), wo, bo, act))
_planted("weight_gradient_of_mean", "The gradient of w_out is averaged over tokens.",
         lambda x, wi, bi, wo, bo, act: _right(
    x, wi, bi, bent(wo, lambda g: g / max(x[..., 0].numel(), 1)), bo, act))
_planted("gradient_of_the_wrong_sign", "∂x is negated.",
         lambda x, wi, bi, wo, bo, act: _right(bent(x, torch.neg), wi, bi, wo, bo, act))


@benign("feed_forward")
def in_the_input_type(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Every intermediate in the input's type."""
    return F.linear(ACTIVATIONS[activation](F.linear(x, w_in, b_in)), w_out, b_out)


@benign("feed_forward")
def in_double(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Everything in float64, rounded once."""
    biases = [None if bias is None else bias.double() for bias in (b_in, b_out)]
    return _right(x.double(), w_in.double(), biases[0], w_out.double(), biases[1], activation).to(x.dtype)


@benign("feed_forward")
def hidden_in_chunks(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Hidden units in chunks of 5, partial outputs added up in float32."""
    biases = [None] * math.ceil(w_in.shape[0] / 5) if b_in is None else list(b_in.split(5))
    y: Tensor | None = None
    for rows, bias, columns in zip(w_in.split(5), biases, w_out.split(5, 1), strict=True):
        part = _linear(ACTIVATIONS[activation](_linear(x, rows, bias)), columns, None)
        y = part if y is None else y + part
    assert y is not None  # F is at least 1
    return (y if b_out is None else y + wide(b_out)).to(x.dtype)


@benign("feed_forward")
def bias_as_a_column(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Biases as one more input that is always 1."""

    def affine(t: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            return wide(t) @ wide(weight).T
        return torch.cat((wide(t), torch.ones_like(wide(t[..., :1]))), -1) @ torch.cat(
            (wide(weight), wide(bias).unsqueeze(-1)), -1).T

    return affine(ACTIVATIONS[activation](affine(x, w_in, b_in)), w_out, b_out).to(x.dtype)


@benign("feed_forward")
def activations_written_out(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """The activation from its formula: erfc for gelu, the logistic for its tanh form."""
    written: dict[str, Activation] = {
        "relu": lambda t: torch.where(t > 0, t, torch.zeros_like(t)),
        "gelu": lambda t: t * (0.5 * torch.erfc(-t * math.sqrt(0.5))),
        "gelu_tanh": lambda t: t * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (t + 0.044715 * t**3)),
        "silu": lambda t: t / (1 + torch.exp(-t.clamp(min=-80))),
    }
    return _right(x, w_in, b_in, w_out, b_out, activation, written[activation])
