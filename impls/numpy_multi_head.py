"""Multi-head attention in NumPy, the backward written out by hand: projections, rotary, heads, gate, output projection."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import assay
from assay.impls.numpy_attention import ORACLE, Saved, Window, attend, attend_backward, visible_keys
from assay.impls.numpy_bridge import Array, bridged
from assay.impls.numpy_feed_forward import linear, sigmoid, weight_gradient
from assay.impls.numpy_norms import over_tokens

# Angles are computed in float64 like everything else.
TURNING: dict[str, Any] = {**ORACLE, "arithmetic": {**ORACLE["arithmetic"], "angles": "float64"}}


def split(x: Array, heads: int) -> Array:
    """(B,T,heads·width) to (B,heads,T,width)."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).swapaxes(1, 2)


def merged(x: Array) -> Array:
    """The inverse: heads side by side."""
    batch, heads, length, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, length, heads * width)


def turned(x: Array, angles: Array | None, way: int = 1) -> Array:
    """Channels 2i and 2i+1 as a point of the plane, turned by angle i; turning back (way −1) is the gradient."""
    if angles is None:
        return x
    cos, sin = np.cos(angles), way * np.sin(angles)
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def rotary_angles(positions: Array | None, width: int, base: float) -> Array | None:
    """position · base^(−2i/D): (B or 1, 1, T, D/2)."""
    if positions is None:
        return None
    per_channel = float(base) ** (-np.arange(0, width, 2) / width)
    return np.asarray(np.atleast_2d(positions)[:, None, :, None] * per_channel)


@dataclass(frozen=True)
class Parts:
    """What the backward needs."""

    x: Array
    sources: tuple[Array, Array]  # of keys, of values
    weights: tuple[Array, Array, Array, Array]
    heads: Saved
    angles: Array | None
    side_by_side: Array  # heads, before the gate
    gate: tuple[Array, Array] | None  # its weight, its value
    given: frozenset[str]  # of context and values


def multi_head(
    x: Array, w_q: Array, w_k: Array, w_v: Array, w_o: Array, *, num_heads: int, num_kv_heads: int | None = None,
    context: Array | None = None, values: Array | None = None, key_mask: Array | None = None, mask: Array | None = None,
    causal: bool = False, window: Window = None, b_q: Array | None = None, b_k: Array | None = None,
    b_v: Array | None = None, b_o: Array | None = None, w_gate: Array | None = None, positions: Array | None = None,
    base: float = 10000.0,
) -> tuple[Array, Parts]:
    """y = ((head_1 … head_H) ⊙ σ(x·w_gateᵀ))·w_oᵀ + b_o, head_h = Attention(x·w_qᵀ, context·w_kᵀ, values·w_vᵀ) of its slices."""
    groups = num_heads if num_kv_heads is None else num_kv_heads
    keys_from = x if context is None else context
    values_from = keys_from if values is None else values
    q, k, v = (split(linear(source, w, b), count) for source, w, b, count in (
        (x, w_q, b_q, num_heads), (keys_from, w_k, b_k, groups), (values_from, w_v, b_v, groups)))
    angles = rotary_angles(positions, q.shape[-1], base)
    q, k = turned(q, angles), turned(k, angles)
    visible = visible_keys(q, k, None, None, causal, window, "bottom_right")
    if mask is not None:
        visible = visible & (mask if mask.ndim == 2 else mask[:, None])
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    out, heads = attend(q, k, v, visible, None, q.shape[-1] ** -0.5, None)
    side_by_side = merged(out)
    gate = None if w_gate is None else (w_gate, sigmoid(linear(x, w_gate)))
    y = linear(side_by_side if gate is None else side_by_side * gate[1], w_o, b_o)
    given = frozenset(name for name, source in (("context", context), ("values", values)) if source is not None)
    return y, Parts(x, (keys_from, values_from), (w_q, w_k, w_v, w_o), heads, angles, side_by_side, gate, given)


def multi_head_backward(saved: Parts, dy: Array) -> dict[str, Array]:
    """Back through the output projection, the gate, the heads, the turn and the three projections."""
    (w_q, w_k, w_v, w_o), side_by_side = saved.weights, saved.side_by_side
    dmixed = dy @ w_o
    found = {"b_o": over_tokens(dy)}
    if saved.gate is None:
        found["w_o"] = weight_gradient(dy, side_by_side)
        dheads, dx = dmixed, np.zeros_like(saved.x)
    else:
        w_gate, gate = saved.gate
        found["w_o"] = weight_gradient(dy, side_by_side * gate)
        dheads, dz = dmixed * gate, dmixed * side_by_side * gate * (1 - gate)
        found["w_gate"], dx = weight_gradient(dz, saved.x), dz @ w_gate
    inner = attend_backward(saved.heads, split(dheads, saved.heads.p.shape[1] * saved.heads.p.shape[2]))
    dq, dk = (merged(turned(inner[name], saved.angles, -1)) for name in ("q", "k"))
    dv = merged(inner["v"])
    for name, slope, source in (("q", dq, saved.x), ("k", dk, saved.sources[0]), ("v", dv, saved.sources[1])):
        found |= {f"w_{name}": weight_gradient(slope, source), f"b_{name}": over_tokens(slope)}
    return found | to_sources(saved.given, dx + dq @ w_q, dk @ w_k, dv @ w_v)


def to_sources(given: frozenset[str], from_queries: Array, from_keys: Array, from_values: Array) -> dict[str, Array]:
    """What comes back through queries, keys and values goes to whichever argument they were projected from."""
    owner = {"x": from_queries}
    keys_from = "context" if "context" in given else "x"
    for name, slope in ((keys_from, from_keys), ("values" if "values" in given else keys_from, from_values)):
        owner[name] = owner[name] + slope if name in owner else slope
    return owner


numpy_multi_head = assay.implements("multi_head_attention", name="numpy-multi-head-attention",
                                    offers={"two_sided_window", "negative_positions"}, **TURNING)(
    bridged(multi_head, multi_head_backward, inside="float64"))
