"""MLX's own functions through the bridge: softmax, attention with and without sinks, norms, rotary embedding, losses, networks."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late
from assay.impls.mlx_bridge import bridged

REQUIRES = ("mlx",)
OPTIONS: dict[str, Any] = {"devices": ("cpu",), "version": installed("mlx"), "url": "https://github.com/ml-explore/mlx"}


@assay.implements("softmax", name="mlx-softmax", **OPTIONS)
@bridged
def softmax(x: Any, *, dim: int = -1) -> Any:
    """`mx.softmax`, sums in float32 (`precise`)."""
    return late("mlx.core").softmax(x, axis=dim, precise=True)


# What is hidden gets the lowest number of the type, so that a query without keys has the mean of all values.
@assay.implements("attention", name="mlx-attention", conventions={"empty_row": "mean"}, **OPTIONS)
@bridged
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    """`mx.fast.scaled_dot_product_attention`, the mask as it is: True = may attend. The function would add one of integers."""
    if mask is not None and mask.dtype != late("mlx.core").bool_:
        raise TypeError(f"mask is {mask.dtype}, which the function adds to the scores; give a boolean one")
    if mask is not None and causal:
        raise NotImplementedError("mask and causal=True: the function takes one of them")
    return attend(q, k, v, "causal" if causal else mask, scale)


@assay.implements("sink_attention", name="mlx-attention-sinks", **OPTIONS)
@bridged
def sink_attention(q: Any, k: Any, v: Any, sinks: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """`mx.fast.scaled_dot_product_attention(sinks=…)`."""
    return attend(q, k, v, "causal" if causal else None, scale, sinks=sinks)


def attend(q: Any, k: Any, v: Any, mask: Any, scale: float | None, **options: Any) -> Any:
    """The function, which has no scale of its own."""
    return late("mlx.core").fast.scaled_dot_product_attention(
        q, k, v, scale=q.shape[-1] ** -0.5 if scale is None else scale, mask=mask, **options)


@assay.implements("rms_norm", name="mlx-rms-norm", **OPTIONS)
@bridged
def rms_norm(x: Any, weight: Any, *, eps: float) -> Any:
    """`mx.fast.rms_norm`."""
    return late("mlx.core").fast.rms_norm(x, weight, eps)


# Over no row the bias's gradient is what was in memory (reports/findings/mlx_layer_norm_empty.md).
@assay.implements("layer_norm", name="mlx-layer-norm", lacks={"empty"}, **OPTIONS)
@bridged
def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Any:
    """`mx.fast.layer_norm`."""
    return late("mlx.core").fast.layer_norm(x, weight, bias, eps)


@assay.implements("rotary", name="mlx-rope", **OPTIONS)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
           rotary_dim: int | None = None) -> Tensor:
    """`mx.fast.rope`, which takes the first position of each sequence; from there it counts."""
    start = positions[..., :1]
    if not torch.equal(positions, start + torch.arange(positions.shape[-1], device=positions.device)):
        raise NotImplementedError("positions must count up by one: the function takes the first of them alone")
    out: Tensor = turned(x, start[..., 0] if positions.numel() else torch.zeros(()).long(), base, pairing, rotary_dim)
    return out


@bridged
def turned(x: Any, start: Any, base: float, pairing: str, rotary_dim: int | None) -> Any:
    """Positions from `start` on, of all sequences or of each."""
    mx = late("mlx.core")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    return mx.fast.rope(x, width, traditional=pairing == "interleaved", base=base, scale=1.0, offset=start.astype(mx.int32))


def activated(x: Any, activation: str) -> Any:
    """`mlx.nn`'s function of that name."""
    nn = late("mlx.nn")
    return (nn.gelu_approx if activation == "gelu_tanh" else getattr(nn, activation))(x)


@assay.implements("feed_forward", name="mlx-feed-forward", **OPTIONS)
@bridged
def feed_forward(x: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *, activation: str) -> Any:
    """Two products around the activation; absent biases are left out."""
    inner = activated(x @ w_in.T if b_in is None else x @ w_in.T + b_in, activation)
    return inner @ w_out.T if b_out is None else inner @ w_out.T + b_out


@assay.implements("gated_feed_forward", name="mlx-gated-feed-forward", **OPTIONS)
@bridged
def gated_feed_forward(x: Any, w_gate: Any, w_up: Any, w_down: Any, *, activation: str = "silu") -> Any:
    """Three products."""
    return (activated(x @ w_gate.T, activation) * (x @ w_up.T)) @ w_down.T


# No row at all is refused by its logarithm of sums.
@assay.implements("cross_entropy", name="mlx-cross-entropy", conventions={"smoothing": "all"}, lacks={"empty"}, **OPTIONS)
@bridged
def cross_entropy(logits: Any, targets: Any, *, label_smoothing: float = 0.0, reduction: str = "mean") -> Any:
    """`nn.losses.cross_entropy`, which ignores no target."""
    return late("mlx.nn").losses.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction=reduction)
