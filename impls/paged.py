"""Paged attention that walks the block tables: a block of every sequence at a time, the cache never gathered as a whole.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.1,
arXiv 2309.06180.
"""
from __future__ import annotations

import torch
from torch import Tensor

import assay
from assay.impls._tiles import INFINITY, scale_of, single


@assay.implements("paged_attention", name="paged-torch", arithmetic={"internal": "float32"}, version=torch.__version__)
def paged(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor, *,
          scale: float | None = None) -> Tensor:
    """An online softmax over the blocks, over the sequences that have that many; other entries of the table are not read."""
    size, groups = k_cache.shape[1:3]
    query = single(q).unflatten(1, (groups, q.shape[1] // groups)) * scale_of(q, scale)  # (B, G, H/G, D)
    out = query.new_zeros(*query.shape[:3], v_cache.shape[-1])
    top, total = query.new_full(query.shape[:3], -INFINITY), query.new_zeros(query.shape[:3])
    slot, room = torch.arange(size, device=q.device), block_table.shape[1] * size
    longest = int(lengths.max()) if lengths.numel() else 0
    if longest > room:
        raise ValueError(f"lengths={lengths.tolist()} must be at most {room}, got {longest}; name more blocks in the table")
    for column in range(-(-longest // size)):
        active = torch.nonzero(lengths > column * size).flatten()
        block = block_table[active, column].long()
        key, value = (single(cache[block]).transpose(1, 2) for cache in (k_cache, v_cache))  # (b, G, S, width)
        beyond = column * size + slot >= lengths[active, None]
        scores = (query[active] @ key.mT).masked_fill(beyond[:, None, None], -INFINITY)
        new = torch.maximum(top[active], scores.amax(-1))
        old, weights = torch.exp(top[active] - new), torch.exp(scores - new.unsqueeze(-1))
        out[active] = old.unsqueeze(-1) * out[active] + weights @ value
        top[active], total[active] = new, old * total[active] + weights.sum(-1)
    return (out / torch.where(total == 0, 1.0, total).unsqueeze(-1)).flatten(1, 2).to(q.dtype)
