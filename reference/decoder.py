"""Decoder: a stack of layers that look back over the target and across to a memory."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.block import Params, Settings, layer, other_parts


def decoder(
    y: Tensor, memory: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None,
    memory_mask: Tensor | None = None, num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms",
    ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None, dropout: float = 0.0,
    training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None, router: str = "softmax_of_topk",
    capacity: str = "none",
) -> Tensor:
    """Layers of causal self-attention, cross-attention over the memory, and feed-forward network; no final norm.

    Formula, pre-norm, a layer: h = y + SelfAttention(norm1(y)); u = h + CrossAttention(norm3(h), memory); u +
    FFN(norm2(u)).

    y: (B, T, C)
    memory: (B, S, C), not normalised here
    layers: one dict of parameters a layer, named as for `block`, plus cross.w_q … cross.w_o and norm3.weight
    mask: None, (B, T) bool, True = real, or (B, T, T) bool
    memory_mask: None, (B, S) bool, True = real, or (B, T, S) bool
    returns: (B, T, C)

    Conventions: as `block`; cross-attention is never causal and has no rotary; layer l takes seed + 3·l for its
    dropout.
    Raises: ValueError as `block`.
    Source: Vaswani et al., sections 3.1 and 3.2.3, arXiv 1706.03762.

    >>> import torch
    >>> decoder(torch.ones(1, 2, 3), torch.ones(1, 5, 3), [], num_heads=1).shape
    torch.Size([1, 2, 3])
    """
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity)
    return decode(y, memory, layers, settings, mask, memory_mask)


def decode(y: Tensor, memory: Tensor, layers: Sequence[Params], settings: Settings, mask: Tensor | None,
           memory_mask: Tensor | None) -> Tensor:
    """The stack under common settings."""
    for depth, params in enumerate(layers):
        y = layer(y, params, replace(settings, seed=settings.seed + 3 * depth), causal=True, mask=mask, memory=memory,
                  memory_mask=memory_mask)
    return y


def _of_other_parts(
    y: Tensor, memory: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None,
    memory_mask: Tensor | None = None, num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms",
    ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None, dropout: float = 0.0,
    training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None, router: str = "softmax_of_topk",
    capacity: str = "none",
) -> Tensor:
    """The stack made of other forms of its parts."""
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity, other_parts())
    return decode(y, memory, layers, settings, mask, memory_mask)


BOUND = "sampled"  # worst-case bars explode through a stack
FORMS: tuple[Form, ...] = (Form("as written", decoder, additions=2), Form("other forms of the parts", _of_other_parts, additions=2))
