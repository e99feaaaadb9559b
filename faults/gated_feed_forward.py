"""Planted faults of the gated feed-forward network, and unusual ways that are right."""
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
Join = Callable[[str, Tensor, Tensor], Tensor]
Way = Callable[[Tensor, Tensor, Tensor, Tensor, str], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}


def _join(activation: str, gate: Tensor, up: Tensor) -> Tensor:
    return ACTIVATIONS[activation](gate) * up


def _right(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, activation: str, join: Join = _join
) -> Tensor:
    t = wide(x)
    return (join(activation, t @ wide(w_gate).T, t @ wide(w_up).T) @ wide(w_down).T).to(x.dtype)


def _planted(name: str, summary: str, way: Way, origin: str = "", **options: Any) -> None:
    def gated_feed_forward(
        x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
    ) -> Tensor:
        return way(x, w_gate, w_up, w_down, activation)

    gated_feed_forward.__name__ = gated_feed_forward.__qualname__ = name
    globals()[name] = fault("gated_feed_forward", origin=origin, summary=summary, **options)(gated_feed_forward)


def _joined(join: Join) -> Way:
    """Right but for how gate and up branch meet."""
    return lambda x, g, u, d, act: _right(x, g, u, d, act, join)


def _interleaved(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, act: str) -> Tensor:
    """Gate and up rows are fused in halves and read alternately."""
    fused = torch.cat((gate, up))
    return _right(x, fused[0::2], fused[1::2], down, act)


def _slope_without_its_term(act: str, gate: Tensor, up: Tensor) -> Tensor:
    if act != "silu":
        return _join(act, gate, up)
    fixed = gate.detach()
    return (F.silu(fixed) + torch.sigmoid(fixed) * (gate - fixed)) * up


def _last_hidden_lost(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, act: str) -> Tensor:
    whole = gate.shape[0] // 4 * 4
    return _right(x, gate[:whole], up[:whole], down[:, :whole], act)


_KEPT: dict[tuple[int, ...], Tensor] = {}


def _remembered(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, act: str) -> Tensor:
    kept = _KEPT.setdefault(tuple(gate.shape), gate.detach().clone())
    return _right(x, gate - gate.detach() + kept.to(gate.dtype), up, down, act)


_planted("gate_and_up_swapped", "The up branch is activated instead of the gate.",
         lambda x, g, u, d, act: _right(x, u, g, d, act), "BUG-157")
_planted("interleaved_packing", "Gate and up rows are stored in halves and read alternately.", _interleaved)
_planted("both_activated", "Both branches are activated.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate) * ACTIVATIONS[act](up)))
_planted("product_activated", "The product is activated.", _joined(lambda act, gate, up: ACTIVATIONS[act](gate * up)))
_planted("nothing_activated", "The gate is not activated: a bilinear layer.", _joined(lambda act, gate, up: gate * up))
_planted("sigmoid_gate", "The gate is a sigmoid (the plain GLU).",
         _joined(lambda act, gate, up: torch.sigmoid(gate) * up if act == "silu" else _join(act, gate, up)))
_planted("branches_added", "The branches are added instead of multiplied.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate) + up))
_planted("always_silu", "The activation is ignored.", _joined(lambda act, gate, up: F.silu(gate) * up))
_planted("gelu_tanh_for_gelu", "The tanh approximation passes for the exact one.",
         _joined(lambda act, gate, up: _join("gelu_tanh" if act == "gelu" else act, gate, up)))
_planted("silu_with_two_beta", "x·sigmoid(2x) for silu.",
         _joined(lambda act, gate, up: gate * torch.sigmoid(2 * gate) * up if act == "silu" else _join(act, gate, up)))
_planted("up_missing", "The up branch is not multiplied in.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate) + 0 * up))
_planted("up_offset_by_one", "The up branch is 1 + x·w_up.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate) * (1 + up)))
_planted("gate_clamped", "The gate is clamped at 7.", _joined(lambda act, gate, up: _join(act, gate.clamp(max=7), up)))
_planted("product_in_half", "The product of the branches is stored in half: inf above 65504.",
         _joined(lambda act, gate, up: _join(act, gate, up).half().to(gate.dtype)), "BUG-159",
         arithmetic=FLOAT32_INSIDE)
_planted("last_hidden_units_lost", "Hidden units beyond the last multiple of 4 are left out.", _last_hidden_lost)
_planted("tokens_leak", "The mean over tokens enters the gate.",
         lambda x, g, u, d, act: _right(x + x.mean(-2, keepdim=True) / 64 if x.dim() > 1 and x.shape[-2] else x,
                                        g, u, d, act))
_planted("remembers_the_weight", "w_gate is kept from the first call of its shape.", _remembered)
_planted("reads_as_contiguous", "Strides of x are ignored.",
         lambda x, g, u, d, act: _right(packed(x), g, u, d, act), "BUG-095")
_planted("weight_read_as_packed", "A transposed view of w_down is read as if packed.",
         lambda x, g, u, d, act: _right(x, g, u, packed(d), act), "BUG-095")
_planted("weight_not_transposed", "x·w_gate and x·w_up where they are square.",
         lambda x, g, u, d, act: _right(x, g.T, u.T, d, act) if g.shape[0] == g.shape[1] else _right(x, g, u, d, act))
_planted("indicator_of_the_last_weight", "Where w_down is not 0 stands for w_down.",
         lambda x, g, u, d, act: _right(x, g, u, (d != 0).to(d.dtype) + 0 * d, act))
_planted("hidden_width_twice", "The hidden width is taken for 2C: what lies beyond is left out.",
         lambda x, g, u, d, act: _right(x, g[: 2 * x.shape[-1]], u[: 2 * x.shape[-1]], d[:, : 2 * x.shape[-1]], act))
_planted("hidden_width_rounded_down", "The hidden width is taken for ⌊8C/3⌋, not rounded up: what lies beyond is left out.",
         lambda x, g, u, d, act: _right(x, g[: 8 * x.shape[-1] // 3], u[: 8 * x.shape[-1] // 3],
                                        d[:, : 8 * x.shape[-1] // 3], act))
_planted("silu_slope_of_sigmoid", "silu' = sigmoid(x): a term is missing.", _joined(_slope_without_its_term))
_planted("gate_without_gradient", "No gradient through the gate.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate.detach()) * up))
_planted("up_without_gradient", "No gradient through the up branch.",
         _joined(lambda act, gate, up: ACTIVATIONS[act](gate) * up.detach()))
_planted("gradient_of_one_branch", "∂x comes from the up branch alone.", lambda x, g, u, d, act: (
    (_join(act, wide(x).detach() @ wide(g).T, wide(x) @ wide(u).T) @ wide(d).T).to(x.dtype)))
_planted("gradient_doubled", "∂w_gate counts twice.",
         lambda x, g, u, d, act: _right(x, bent(g, lambda t: 2 * t), u, d, act))
_planted("gradient_of_the_wrong_sign", "∂x is negated.",
         lambda x, g, u, d, act: _right(bent(x, torch.neg), g, u, d, act))


@benign("gated_feed_forward")
def in_the_input_type(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """Every intermediate in the input's type."""
    return F.linear(ACTIVATIONS[activation](F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


@benign("gated_feed_forward")
def fused_projection(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """One product for both branches, then a split."""
    gate, up = F.linear(x, torch.cat((w_gate, w_up))).chunk(2, -1)
    return F.linear(up * ACTIVATIONS[activation](gate), w_down)


@benign("gated_feed_forward")
def in_double(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """Everything in float64, rounded once."""
    return _right(x.double(), w_gate.double(), w_up.double(), w_down.double(), activation).to(x.dtype)


@benign("gated_feed_forward")
def hidden_in_chunks(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """Hidden units in chunks of 5, partial outputs added up in float32."""
    t = wide(x)
    parts = [
        _join(activation, t @ wide(gate).T, t @ wide(up).T) @ wide(down).T
        for gate, up, down in zip(w_gate.split(5), w_up.split(5), w_down.split(5, 1), strict=True)
    ]
    return torch.stack(parts).sum(0).to(x.dtype)


@benign("gated_feed_forward")
def silu_written_out(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """The activation from its formula, the product as gate·up·sigmoid."""
    written: dict[str, Join] = {
        "relu": lambda act, gate, up: torch.where(gate > 0, gate, torch.zeros_like(gate)) * up,
        "gelu": lambda act, gate, up: gate * up * (0.5 * torch.erfc(-gate * math.sqrt(0.5))),
        "gelu_tanh": lambda act, gate, up: gate * up * (
            0.5 + 0.5 * torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))),
        "silu": lambda act, gate, up: gate * up * torch.sigmoid(gate),
    }
    return _right(x, w_gate, w_up, w_down, activation, written[activation])
