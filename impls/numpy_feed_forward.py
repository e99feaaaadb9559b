"""Feed-forward networks in NumPy, plain and gated, the backward and the activations' slopes written out by hand."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import assay
from assay.impls._modules import late
from assay.impls.numpy_attention import ORACLE
from assay.impls.numpy_bridge import Array, bridged
from assay.impls.numpy_norms import over_tokens

WithSlope = Callable[[Array], tuple[Array, Array]]  # x -> (σ(x), σ′(x))


# ------------------------------------------------------------------------------------------------ activations
def sigmoid(x: Array) -> Array:
    """1/(1 + e^−x); of −|x|, so that no exponential overflows."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def relu(x: Array) -> tuple[Array, Array]:
    """max(x, 0), slope 1 above 0; at 0 the slope is that of the left side, 0."""
    return np.maximum(x, 0), (x > 0).astype(x.dtype)


def gelu(x: Array) -> tuple[Array, Array]:
    """x·Φ(x), slope Φ(x) + x·φ(x), with Φ(x) = ½·erfc(−x/√2)."""
    below = 0.5 * late("scipy.special").erfc(-x / math.sqrt(2))
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return x * below, below + x * density


def gelu_tanh(x: Array) -> tuple[Array, Array]:
    """½·x·(1 + t), t = tanh(u), u = √(2/π)·(x + 0.044715·x³); slope ½·(1 + t) + ½·x·(1 − t²)·u′."""
    root = math.sqrt(2 / math.pi)
    t = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + t), 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x)


def silu(x: Array) -> tuple[Array, Array]:
    """x·σ(x), slope σ(x)·(1 + x·(1 − σ(x))); 1 − σ(x) is σ(−x)."""
    s = sigmoid(x)
    return x * s, s * (1 + x * sigmoid(-x))


ACTIVATIONS: dict[str, WithSlope] = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


def activation_named(name: str) -> WithSlope:
    """The activation of that name."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation={name!r} must be one of {', '.join(ACTIVATIONS)}, got {name!r}; choose one of them")
    return ACTIVATIONS[name]


# ------------------------------------------------------------------------------------------------ networks
def linear(x: Array, w: Array, b: Array | None = None) -> Array:
    """y = x·wᵀ + b; tokens are rows, w is (out, in)."""
    y = x @ w.T
    return np.asarray(y if b is None else y + b)


def weight_gradient(dy: Array, x: Array) -> Array:
    """Of y = x·wᵀ: dw = dyᵀ·x, summed over all tokens."""
    tokens = math.prod(x.shape[:-1])
    return np.asarray(dy.reshape(tokens, dy.shape[-1]).T @ x.reshape(tokens, x.shape[-1]))


def feed_forward(
    x: Array, w_in: Array, b_in: Array | None, w_out: Array, b_out: Array | None, *, activation: str
) -> tuple[Array, Any]:
    """y = σ(x·w_inᵀ + b_in)·w_outᵀ + b_out."""
    hidden, slope = activation_named(activation)(linear(x, w_in, b_in))
    return linear(hidden, w_out, b_out), (x, w_in, w_out, hidden, slope)


def feed_forward_backward(saved: Any, dy: Array) -> dict[str, Array]:
    """dh = dy·w_out, dz = dh ⊙ σ′(z), dx = dz·w_in; weights by what they multiplied, biases by sums over the tokens."""
    x, w_in, w_out, hidden, slope = saved
    dz = (dy @ w_out) * slope
    return {"x": dz @ w_in, "w_in": weight_gradient(dz, x), "b_in": over_tokens(dz),
            "w_out": weight_gradient(dy, hidden), "b_out": over_tokens(dy)}


def gated_feed_forward(
    x: Array, w_gate: Array, w_up: Array, w_down: Array, *, activation: str = "silu"
) -> tuple[Array, Any]:
    """y = (σ(x·w_gateᵀ) ⊙ (x·w_upᵀ))·w_downᵀ."""
    gate, slope = activation_named(activation)(linear(x, w_gate))
    up = linear(x, w_up)
    return linear(gate * up, w_down), (x, w_gate, w_up, w_down, gate, slope, up)


def gated_feed_forward_backward(saved: Any, dy: Array) -> dict[str, Array]:
    """dh = dy·w_down, d(up) = dh ⊙ gate, dz = dh ⊙ up ⊙ σ′(z), dx = dz·w_gate + d(up)·w_up."""
    x, w_gate, w_up, w_down, gate, slope, up = saved
    dh = dy @ w_down
    dup, dz = dh * gate, dh * up * slope
    return {"x": dz @ w_gate + dup @ w_up, "w_gate": weight_gradient(dz, x), "w_up": weight_gradient(dup, x),
            "w_down": weight_gradient(dy, gate * up)}


numpy_feed_forward = assay.implements("feed_forward", name="numpy-feed-forward", **ORACLE)(
    bridged(feed_forward, feed_forward_backward, inside="float64"))
numpy_gated_feed_forward = assay.implements("gated_feed_forward", name="numpy-gated-feed-forward", **ORACLE)(
    bridged(gated_feed_forward, gated_feed_forward_backward, inside="float64"))
