"""Encoder: a stack of layers in which every position sees every real position."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.block import Params, Settings, layer, other_parts


def encoder(
    x: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None, num_kv_heads: int | None = None,
    placement: str = "pre", norm: str = "rms", ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None,
    dropout: float = 0.0, training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None,
    router: str = "softmax_of_topk", capacity: str = "none",
) -> Tensor:
    """Bidirectional layers one after another; no final norm.

    Formula: x_0 = x, x_l = block_l(x_{l−1}) without causal mask.

    x: (B, T, C)
    layers: one dict of parameters a layer, named as for `block`
    mask: None, (B, T) bool, True = real, or (B, T, T) bool
    returns: (B, T, C)

    Conventions: as `block`; layer l takes seed + 3·l for its dropout.
    Raises: ValueError as `block`.
    Source: Vaswani et al., section 3.1, arXiv 1706.03762; Devlin et al., "BERT", section 3, arXiv 1810.04805.

    >>> import torch
    >>> encoder(torch.ones(1, 2, 3), [], num_heads=1).shape
    torch.Size([1, 2, 3])
    """
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity)
    return encode(x, layers, settings, mask)


def encode(x: Tensor, layers: Sequence[Params], settings: Settings, mask: Tensor | None) -> Tensor:
    """The stack under common settings."""
    for depth, params in enumerate(layers):
        x = layer(x, params, replace(settings, seed=settings.seed + 3 * depth), causal=False, mask=mask)
    return x


def _of_other_parts(
    x: Tensor, layers: Sequence[Params], *, num_heads: int, mask: Tensor | None = None, num_kv_heads: int | None = None,
    placement: str = "pre", norm: str = "rms", ffn: str = "swiglu", activation: str = "silu", positions: Tensor | None = None,
    dropout: float = 0.0, training: bool = False, seed: int = 0, eps: float = 1e-6, top_k: int | None = None,
    router: str = "softmax_of_topk", capacity: str = "none",
) -> Tensor:
    """The stack made of other forms of its parts."""
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, positions, dropout, training, seed, eps, top_k,
                        router, capacity, other_parts())
    return encode(x, layers, settings, mask)


BOUND = "sampled"  # worst-case bars explode through a stack
FORMS: tuple[Form, ...] = (Form("as written", encoder, additions=2), Form("other forms of the parts", _of_other_parts, additions=2))
