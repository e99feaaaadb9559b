"""Transformer layer: attention and a feed-forward network, each with its norm and residual connection."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import feed_forward as _feed_forward
from assay.reference import gated_feed_forward as _gated
from assay.reference import layer_norm as _layer_norm
from assay.reference import moe as _moe
from assay.reference import multi_head_attention as _multi_head
from assay.reference import rms_norm as _rms_norm
from assay.reference.dropout import dropout as drop
from assay.reference.residual import residual

Params = Mapping[str, Any]
PROJECTIONS = ("w_q", "w_k", "w_v", "w_o")
OPTIONAL = ("b_q", "b_k", "b_v", "b_o", "w_gate")


class Parts(NamedTuple):
    """The components that a layer is made of, each in one form."""

    attention: Callable[..., Tensor] = _multi_head.multi_head_attention
    rms: Callable[..., Tensor] = _rms_norm.rms_norm
    layer: Callable[..., Tensor] = _layer_norm.layer_norm
    mlp: Callable[..., Tensor] = _feed_forward.feed_forward
    swiglu: Callable[..., Tensor] = _gated.gated_feed_forward
    moe: Callable[..., Tensor] = _moe.FORMS[0].forward  # every expert at once: nothing hangs on values


AS_WRITTEN = Parts()


@dataclass(frozen=True)
class Settings:
    """What all layers of a stack have in common."""

    num_heads: int
    num_kv_heads: int | None = None
    placement: str = "pre"
    norm: str = "rms"
    ffn: str = "swiglu"
    activation: str = "silu"
    positions: Tensor | None = None
    dropout: float = 0.0
    training: bool = False
    seed: int = 0
    eps: float = 1e-6
    top_k: int | None = None
    router: str = "softmax_of_topk"
    capacity: str = "none"
    parts: Parts = AS_WRITTEN


def block(
    x: Tensor, params: Params, *, num_heads: int, num_kv_heads: int | None = None, placement: str = "pre",
    norm: str = "rms",
    ffn: str = "swiglu", activation: str = "silu", causal: bool = True, mask: Tensor | None = None,
    positions: Tensor | None = None, dropout: float = 0.0, training: bool = False, seed: int = 0, eps: float = 1e-6,
    top_k: int | None = None, router: str = "softmax_of_topk", capacity: str = "none",
) -> Tensor:
    """One Transformer layer.

    Formula, pre-norm: h = x + drop(Attention(norm1(x))); y = h + drop(FFN(norm2(h))). Post-norm: h = norm1(x +
    drop(…)), and so
    on; sandwich: h = x + norm1_post(drop(Attention(norm1(x)))).

    x: (B, T, C)
    params: norm1.weight, attn.w_q … attn.w_o, norm2.weight, and ffn.w_in, ffn.w_out (mlp), ffn.w_gate, ffn.w_up,
    ffn.w_down
    (swiglu) or moe.w_router, moe.w_gate, moe.w_up, moe.w_down, moe.shared.… (moe); biases, attn.w_gate and norm….bias
    optional
    mask: None, (B, T) bool over keys, True = real, or (B, T, T) bool over queries and keys
    positions: None, or (T,) or (B, T): rotary in the attention
    returns: (B, T, C)

    Conventions: placement "pre", "post", "sandwich", "deepnorm" (alpha 1); norm "rms", "layer"; ffn "mlp", "swiglu",
    "moe";
    router and capacity as `moe`; dropout's seed is seed for the attention and seed + 2 for the FFN.
    Raises: ValueError for a missing parameter, an unknown choice, a mask of another shape, and as the parts do.
    Source: Vaswani et al., section 3.1, arXiv 1706.03762; Xiong et al., arXiv 2002.04745; Touvron et al., "LLaMA",
    section 2.2,
    arXiv 2302.13971.

    >>> import torch
    >>> one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    >>> params = {"norm1.weight": one[0], "attn.w_q": one, "attn.w_k": one, "attn.w_v": one, "attn.w_o": zero,
    ...           "norm2.weight": one[0], "ffn.w_gate": one, "ffn.w_up": one, "ffn.w_down": zero}
    >>> block(torch.tensor([[[2.0], [5.0]]]), params, num_heads=1).flatten().tolist()
    [2.0, 5.0]
    """
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity)
    return layer(x, params, settings, causal=causal, mask=mask)


def layer(x: Tensor, params: Params, settings: Settings, *, causal: bool, mask: Tensor | None, memory: Tensor | None = None,
          memory_mask: Tensor | None = None) -> Tensor:
    """Self-attention, cross-attention where there is a memory, feed-forward network."""
    h = sublayer(x, params, settings, "norm1", 0, lambda t: attend(t, params, settings, "attn", causal=causal, mask=mask))
    if memory is not None:
        across = replace(settings, positions=None)
        h = sublayer(h, params, settings, "norm3", 1, lambda t: attend(
            t, params, across, "cross", causal=False, mask=memory_mask, context=memory))
    return sublayer(h, params, settings, "norm2", 2, lambda t: feed(t, params, settings))


def sublayer(x: Tensor, params: Params, settings: Settings, norm: str, index: int, f: Callable[[Tensor], Tensor]) -> Tensor:
    """f with dropout, norm and residual connection where the placement puts them."""
    def dropped(t: Tensor) -> Tensor:
        return drop(f(t), p=settings.dropout, training=settings.training, seed=settings.seed + index)

    before = normalised(params, settings, norm)
    around = (before, normalised(params, settings, f"{norm}_post")) if settings.placement == "sandwich" else before
    return residual(x, dropped, around, placement=settings.placement)


def normalised(params: Params, settings: Settings, name: str) -> Callable[[Tensor], Tensor]:
    """The norm of that name."""
    weight = required(params, f"{name}.weight")
    if settings.norm == "rms":
        return lambda t: settings.parts.rms(t, weight, eps=settings.eps)
    if settings.norm != "layer":
        raise ValueError(f"norm={settings.norm!r} must be 'rms' or 'layer', got {settings.norm!r}; choose one of them")
    bias = params.get(f"{name}.bias")
    return lambda t: settings.parts.layer(t, weight, weight.new_zeros(weight.shape) if bias is None else bias, eps=settings.eps)


def attend(x: Tensor, params: Params, settings: Settings, name: str, *, causal: bool, mask: Tensor | None,
           context: Tensor | None = None) -> Tensor:
    """Multi-head attention with the parameters of that name; a mask of two axes is over keys."""
    if mask is not None and mask.dim() not in (2, 3):
        raise ValueError(f"mask.shape={tuple(mask.shape)} must be (B, T) or (B, T, T), got {mask.dim()} axes; spell the batch out")
    over_keys = mask is not None and mask.dim() == 2
    return settings.parts.attention(
        x, *(required(params, f"{name}.{weight}") for weight in PROJECTIONS), num_heads=settings.num_heads,
        num_kv_heads=settings.num_kv_heads, context=context, key_mask=mask if over_keys else None,
        mask=None if over_keys else mask, causal=causal, positions=settings.positions,
        **{option: params.get(f"{name}.{option}") for option in OPTIONAL})


def feed(x: Tensor, params: Params, settings: Settings) -> Tensor:
    """The feed-forward network, plain, gated or a mixture of experts."""
    if settings.ffn == "mlp":
        return settings.parts.mlp(x, required(params, "ffn.w_in"), params.get("ffn.b_in"), required(params, "ffn.w_out"),
                                  params.get("ffn.b_out"), activation=settings.activation)
    if settings.ffn == "swiglu":
        weights = (required(params, f"ffn.{name}") for name in ("w_gate", "w_up", "w_down"))
        return settings.parts.swiglu(x, *weights, activation=settings.activation)
    if settings.ffn != "moe" or settings.top_k is None:
        raise ValueError(f"ffn={settings.ffn!r} must be 'mlp', 'swiglu' or 'moe' (with top_k), got {settings.ffn!r} with "
                         f"top_k={settings.top_k}; choose one, and top_k for 'moe'")
    shared = tuple(params.get(f"moe.shared.{name}") for name in ("w_gate", "w_up", "w_down"))
    weights = (required(params, f"moe.{name}") for name in ("w_router", "w_gate", "w_up", "w_down"))
    return settings.parts.moe(x, *weights, top_k=settings.top_k, shared=None if None in map(_kind, shared) else shared,
                              router=settings.router, capacity=settings.capacity)


def _kind(weight: Tensor | None) -> type | None:
    return None if weight is None else type(weight)


def required(params: Params, name: str) -> Any:
    """The parameter of that name."""
    if params.get(name) is None:
        raise ValueError(f"params[{name!r}] must be given, got {sorted(params)}; add it")
    return params[name]


def other_parts() -> Parts:
    """Every component in another of its forms."""
    return Parts(_multi_head.FORMS[-1].forward, _rms_norm.by_rsqrt, _layer_norm.by_rsqrt,
                 _feed_forward.FORMS[0].forward, _gated.FORMS[0].forward, _moe.FORMS[1].forward)


def _of_other_parts(
    x: Tensor, params: Params, *, num_heads: int, num_kv_heads: int | None = None, placement: str = "pre",
    norm: str = "rms",
    ffn: str = "swiglu", activation: str = "silu", causal: bool = True, mask: Tensor | None = None,
    positions: Tensor | None = None, dropout: float = 0.0, training: bool = False, seed: int = 0, eps: float = 1e-6,
    top_k: int | None = None, router: str = "softmax_of_topk", capacity: str = "none",
) -> Tensor:
    """The layer made of other forms of its parts."""
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity, other_parts())
    return layer(x, params, settings, causal=causal, mask=mask)


BOUND = "sampled"  # worst-case bars explode through a layer
FORMS: tuple[Form, ...] = (Form("as written", block, additions=2), Form("other forms of the parts", _of_other_parts, additions=2))
