"""Softmax and attention in NumPy, the backward written out by hand: a second oracle, independent of the torch reference.

Everything is computed in float64 whatever comes in, and declared so: one rounding, of the result, is all that its bars leave.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import assay
from assay.impls.numpy_bridge import Array, bridged

Window = int | tuple[int, int] | None
DTYPES = ("float64", "float32", "bfloat16", "float16")
# What every declaration of the oracle says: in float64 inside, on the host.
ORACLE: dict[str, Any] = {"dtypes": DTYPES, "devices": ("cpu",), "version": np.__version__,
                          "arithmetic": {"internal": "float64", "accumulate": "float64"}}


def swapped(x: Array) -> Array:
    """xᵀ: the last two axes swapped. `x.transpose(-2, -1)`, torch's words for it, names a permutation in NumPy."""
    return np.swapaxes(x, -1, -2)


# ------------------------------------------------------------------------------------------------ softmax
def softmax(x: Array, *, dim: int = -1) -> tuple[Array, Any]:
    """y = exp(x − max) / Σ exp(x − max); a row of −∞ alone is NaN, since −∞ − (−∞) is."""
    e = np.exp(x - x.max(axis=dim, keepdims=True))
    y = e / e.sum(axis=dim, keepdims=True)
    return y, (y, dim)


def softmax_backward(saved: Any, dy: Array) -> dict[str, Array]:
    """dx = y ⊙ (dy − Σ dy ⊙ y), since ∂yᵢ/∂xⱼ = yᵢ(δᵢⱼ − yⱼ)."""
    y, dim = saved
    return {"x": y * (dy - (dy * y).sum(axis=dim, keepdims=True))}


# ------------------------------------------------------------------------------------------------ attention
@dataclass(frozen=True)
class Saved:
    """What the backward needs; heads by the group that they read from: (B,G,H/G,Tq,…), keys and values (B,G,1,Tk,…)."""

    q: Array
    k: Array
    v: Array
    p: Array  # the weights
    slope: Array | float  # of the softcap: 1 − tanh²
    scale: float


def attend(q: Array, k: Array, v: Array, visible: Array, bias: Array | None, scale: float, softcap: float | None
           ) -> tuple[Array, Saved]:
    """O = P·V, P = softmax(S) over the visible keys, S = softcap·tanh(scale·Q·Kᵀ/softcap) + bias; without a key, P is 0.

    q: (B,H,Tq,D)
    k: (B,G,Tk,D)
    v: (B,G,Tk,Dv)
    visible, bias: broadcast to (B,H,Tq,Tk)
    returns: (B,H,Tq,Dv)
    """
    (batch, heads, queries), (groups, keys) = q.shape[:3], k.shape[1:3]
    if heads % groups:
        raise ValueError(f"k.shape[1]={groups} must divide the number of query heads, got {heads}; repeat or drop heads")

    def by_group(x: Array, width: int) -> Array:
        whole = np.broadcast_to(x, (batch, heads, queries, width))
        return whole.reshape(batch, groups, heads // groups, queries, width)

    q, k, v = by_group(q, q.shape[-1]), k[:, :, None], v[:, :, None]
    s, slope = capped(q @ swapped(k) * scale, softcap)
    if bias is not None:
        s = s + by_group(bias, keys)
    seen = by_group(visible, keys)
    p = weights(s, seen)
    out = (p @ v).reshape(batch, heads, queries, v.shape[-1])
    return out, Saved(q, k, v, p, slope, scale)


def capped(s: Array, softcap: float | None) -> tuple[Array, Array | float]:
    """softcap·tanh(s/softcap), and its slope 1 − tanh²."""
    if softcap is None:
        return s, 1.0
    t = np.tanh(s / softcap)
    return softcap * t, 1 - t * t


def weights(s: Array, seen: Array) -> Array:
    """Softmax of the scores over the keys that are seen; 0 elsewhere, and everywhere in a row that sees none."""
    s = np.where(seen, s, -np.inf)
    top = s.max(axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isneginf(top), 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def attend_backward(saved: Saved, do: Array) -> dict[str, Array]:
    """dV = Pᵀ·dO, dP = dO·Vᵀ, dS = P ⊙ (dP − rowsum(dP ⊙ P)), dQ = scale·dS·K, dK = scale·dSᵀ·Q.

    Keys and values are shared within a group: their gradients are summed over its heads.
    """
    q, k, v, p = saved.q, saved.k, saved.v, saved.p
    do = do.reshape(*p.shape[:-1], v.shape[-1])
    dp = do @ swapped(v)
    ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) * saved.slope * saved.scale
    batch, groups, shared, queries, width = q.shape
    return {"q": (ds @ k).reshape(batch, groups * shared, queries, width),
            "k": (swapped(ds) @ q).sum(axis=2), "v": (swapped(p) @ do).sum(axis=2)}


def band(queries: int, keys: int, causal: bool, window: Window, shift: int) -> Array:
    """(Tq,Tk): the keys that causality and the window leave; query i stands at key i + shift."""
    ahead = np.arange(keys)[None, :] - np.arange(queries)[:, None] - shift  # of the query's own position
    left, right = (np.inf, np.inf) if window is None else window if isinstance(window, tuple) else (window - 1, 0)
    return np.asarray((ahead >= -left) & (ahead <= (0 if causal else right)))


def visible_keys(q: Array, k: Array, mask: Array | None, bias: Array | None, causal: bool, window: Window,
                 alignment: str) -> Array:
    """What each query may attend to, broadcasting to (B,H,Tq,Tk): mask, causality, window, and bias above −∞."""
    queries, keys = q.shape[-2], k.shape[-2]
    seen = band(queries, keys, causal, window, keys - queries if alignment == "bottom_right" else 0)
    if mask is not None:
        seen = seen & (mask != 0)
    return seen if bias is None else seen & ~np.isneginf(bias)


def attention(
    q: Array, k: Array, v: Array, *, mask: Array | None = None, bias: Array | None = None, causal: bool = False,
    window: Window = None, scale: float | None = None, softcap: float | None = None,
) -> tuple[Array, Saved]:
    """The last query stands at the last key."""
    visible = visible_keys(q, k, mask, bias, causal, window, "bottom_right")
    return attend(q, k, v, visible, bias, q.shape[-1] ** -0.5 if scale is None else scale, softcap)


def attention_top_left(
    q: Array, k: Array, v: Array, *, mask: Array | None = None, bias: Array | None = None, causal: bool = False,
    window: Window = None, scale: float | None = None, softcap: float | None = None,
) -> tuple[Array, Saved]:
    """The first query stands at the first key."""
    visible = visible_keys(q, k, mask, bias, causal, window, "top_left")
    return attend(q, k, v, visible, bias, q.shape[-1] ** -0.5 if scale is None else scale, softcap)


numpy_softmax = assay.implements("softmax", name="numpy-softmax", **ORACLE)(
    bridged(softmax, softmax_backward, inside="float64"))
numpy_attention = assay.implements("attention", name="numpy-attention", offers={"two_sided_window"}, **ORACLE)(
    bridged(attention, attend_backward, inside="float64"))
numpy_attention_top_left = assay.implements(
    "attention", name="numpy-attention-top-left", offers={"two_sided_window"},
    conventions={"causal_alignment": "top_left"}, **ORACLE)(bridged(attention_top_left, attend_backward, inside="float64"))
