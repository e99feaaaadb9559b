"""Encoder–decoder: source and target ids to logits over the next target token."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.block import Params, Settings, normalised, other_parts, required
from assay.reference.decoder import decode
from assay.reference.embedding import embedding
from assay.reference.encoder import encode


def encoder_decoder(
    src: Tensor, tgt: Tensor, params: Params, *, num_heads: int, src_mask: Tensor | None = None,
    tgt_mask: Tensor | None = None,
    num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms", ffn: str = "swiglu", activation: str = "silu",
    positions: Tensor | str | None = None, dropout: float = 0.0, training: bool = False, seed: int = 0,
    eps: float = 1e-6,
    top_k: int | None = None, router: str = "softmax_of_topk", capacity: str = "none", counting: str = "index",
) -> Tensor:
    """Encode the source once, decode the target against it, and score every word at every target position.

    Formula: memory = FinalNorm_enc(encoder(E[src] + P)); h = decoder(E[tgt] + P, memory); logits = FinalNorm(h) · W_Uᵀ.

    src: (B, S) integers
    tgt: (B, T) integers
    params: embed.weight (V, C); encoder and decoder, lists of layers named as for `encoder` and `decoder`; optional
    pos.weight
    (T_max, C), encoder_norm.weight, final_norm.weight (with .bias), unembed.weight (V, C), which is embed.weight
    where absent
    src_mask: None or (B, S) bool, True = real
    tgt_mask: None or (B, T) bool, True = real
    returns: logits (B, T, V)

    Conventions: as `block`; a norm that params lacks is left out; counting (the convention `positions`) "index", or
    "from_mask":
    pos.weight is read from the first real token on.
    Raises: ValueError for ids outside the vocabulary, sequences longer than pos.weight, and as `block`.
    Source: Vaswani et al., section 3, arXiv 1706.03762; Raffel et al., "T5", section 2.1, arXiv 1910.10683.

    >>> logits = encoder_decoder(torch.tensor([[0]]), torch.tensor([[1]]),
    ...                          {"embed.weight": torch.eye(2), "encoder": [], "decoder": []}, num_heads=1)
    >>> logits.tolist()
    [[[0.0, 1.0]]]
    """
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, None, dropout, training, seed, eps, top_k,
                        router, capacity)
    return _translated(src, tgt, params, settings, src_mask, tgt_mask, positions, counting)


def _translated(src: Tensor, tgt: Tensor, params: Params, settings: Settings, src_mask: Tensor | None, tgt_mask: Tensor | None,
                positions: Tensor | str | None, counting: str) -> Tensor:
    """The formula under common settings."""
    if isinstance(positions, str):  # the convention of the same name
        counting = positions
        positions = None
    at = [replace(settings, positions=None if positions is None else positions[..., : ids.shape[1]]) for ids in (src, tgt)]
    memory = encode(entered(src, params, src_mask, counting), params.get("encoder", ()), at[0], src_mask)
    memory = _normalised(memory, params, settings, "encoder_norm")
    across = replace(at[1], seed=settings.seed + 3 * len(params.get("encoder", ())))
    h = decode(entered(tgt, params, tgt_mask, counting), memory, params.get("decoder", ()), across, tgt_mask, src_mask)
    out = params.get("unembed.weight")
    table: Tensor = required(params, "embed.weight") if out is None else out
    return _normalised(h, params, settings, "final_norm") @ table.transpose(0, 1)


def entered(ids: Tensor, params: Params, mask: Tensor | None, counting: str) -> Tensor:
    """Token plus, where there is a table, position embedding (B,T,C)."""
    x = embedding(ids, required(params, "embed.weight"))
    table = params.get("pos.weight")
    return x if table is None else x + embedding(counted_positions(ids, mask, counting), table)


def counted_positions(ids: Tensor, mask: Tensor | None, counting: str) -> Tensor:
    """0, 1, 2, … along each row; under "from_mask" from its first real token on."""
    if counting not in ("index", "from_mask"):
        raise ValueError(f"counting={counting!r} must be 'index' or 'from_mask', got {counting!r}; choose one of them")
    if counting == "index" or mask is None:
        return torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return (torch.cumsum(mask.long(), -1) - 1).clamp(min=0)


def _normalised(h: Tensor, params: Params, settings: Settings, name: str) -> Tensor:
    return h if params.get(f"{name}.weight") is None else normalised(params, settings, name)(h)


def _of_other_parts(
    src: Tensor, tgt: Tensor, params: Params, *, num_heads: int, src_mask: Tensor | None = None,
    tgt_mask: Tensor | None = None,
    num_kv_heads: int | None = None, placement: str = "pre", norm: str = "rms", ffn: str = "swiglu", activation: str = "silu",
    positions: Tensor | str | None = None, dropout: float = 0.0, training: bool = False, seed: int = 0,
    eps: float = 1e-6,
    top_k: int | None = None, router: str = "softmax_of_topk", capacity: str = "none", counting: str = "index",
) -> Tensor:
    """The model made of other forms of its parts."""
    settings = Settings(num_heads, num_kv_heads, placement, norm, ffn, activation, None, dropout, training, seed, eps, top_k,
                        router, capacity, other_parts())
    return _translated(src, tgt, params, settings, src_mask, tgt_mask, positions, counting)


CONVENTION_KEYWORDS = {"positions": "counting"}  # `positions` is the option of the layers
BOUND = "sampled"  # worst-case bars explode through a stack
FORMS: tuple[Form, ...] = (
    Form("as written", encoder_decoder, additions=2), Form("other forms of the parts", _of_other_parts, additions=2),
)
