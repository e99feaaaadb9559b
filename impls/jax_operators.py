"""JAX's own functions through the bridge: softmax, attention, two norms and two feed-forward networks, compiled by XLA."""
from __future__ import annotations

from typing import Any

import assay
from assay.impls._modules import installed, late
from assay.impls.jax_bridge import bridged

REQUIRES = ("jax",)
OPTIONS: dict[str, Any] = {"devices": ("cpu",), "version": installed("jax"), "url": "https://github.com/jax-ml/jax"}


@assay.implements("softmax", name="jax-softmax", **OPTIONS)
@bridged(jit=True)
def softmax(x: Any, *, dim: int = -1) -> Any:
    """`jax.nn.softmax`."""
    return late("jax").nn.softmax(x, axis=dim)


# Queries and keys are both counted from the first; what the mask hides gets one large negative number, so that a query without keys
# has the mean of all values, but not where a bias hides some (reports/findings/jax_hidden_keys.md). Values are as wide as keys.
@assay.implements("attention", name="jax-dot-product-attention", lacks={"value_width", "empty_rows"}, offers={"two_sided_window"},
                  conventions={"causal_alignment": "top_left", "empty_row": "mean"}, **OPTIONS)
@bridged(jit=True)
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, causal: bool = False,
              window: int | tuple[int, int] | None = None, scale: float | None = None) -> Any:
    """`jax.nn.dot_product_attention` on (B,T,H,D), the mask as it is: True = may attend."""
    jax = late("jax")
    tokens = [one.swapaxes(1, 2) for one in (q, k, v)]
    reach = (window - 1, 0) if isinstance(window, int) else window
    out = jax.nn.dot_product_attention(*tokens, bias=bias, mask=mask, scale=scale, is_causal=causal, local_window_size=reach)
    return out.swapaxes(1, 2)


@assay.implements("rms_norm", name="jax-rms-norm", **OPTIONS)
@bridged(jit=True)
def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    """`jax.lax.rsqrt` of the mean of squares in float32, rounded before the weight, as Flax does."""
    jax = late("jax")
    wide = x.astype(jax.numpy.promote_types(x.dtype, jax.numpy.float32))
    return (wide * jax.lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + eps)).astype(x.dtype) * weight


@assay.implements("layer_norm", name="jax-standardize", **OPTIONS)
@bridged(jit=True)
def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """`jax.nn.standardize` by its stable algorithm: the default one, E[x²] − E[x]², is documented to cancel, and does."""
    return late("jax").nn.standardize(x, axis=-1, epsilon=eps, algorithm="stable") * weight + bias


def activated(x: Any, activation: str) -> Any:
    """`jax.nn`'s function of that name; `gelu` there is the tanh form unless it is told otherwise."""
    nn = late("jax").nn
    if activation in ("gelu", "gelu_tanh"):
        return nn.gelu(x, approximate=activation == "gelu_tanh")
    return getattr(nn, activation)(x)


@assay.implements("feed_forward", name="jax-feed-forward", **OPTIONS)
@bridged(jit=True)
def feed_forward(x: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *, activation: str) -> Any:
    """Two products around the activation; absent biases are left out."""
    inner = x @ w_in.T if b_in is None else x @ w_in.T + b_in
    out = activated(inner, activation) @ w_out.T
    return out if b_out is None else out + b_out


@assay.implements("gated_feed_forward", name="jax-gated-feed-forward", **OPTIONS)
@bridged(jit=True)
def gated_feed_forward(x: Any, w_gate: Any, w_up: Any, w_down: Any, *, activation: str = "silu") -> Any:
    """Three products."""
    return (activated(x @ w_gate.T, activation) * (x @ w_up.T)) @ w_down.T
