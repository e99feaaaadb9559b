"""Sliding-window attention that does w·T work: blocks of w queries, each against the 2w − 1 keys in its reach.

The keys of all blocks are overlapping slices of one padded tensor, so that the whole is one product of blocks.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay
from assay.impls._tiles import INFINITY, scale_of, single


@assay.implements("attention", name="sliding-window-blocks", arithmetic={"internal": "float32"}, version=torch.__version__)
def sliding_window(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, window: int | None = None,
                   scale: float | None = None) -> Tensor:
    """Needs a window, which implies causality: without one there is nothing that bounds the keys of a query."""
    if window is None:
        raise NotImplementedError("window: must be given; there is no attention over all keys here")
    batch, heads, queries, _ = q.shape
    groups, keys = k.shape[1:3]
    window = min(window, max(1, keys))  # more than all keys is all keys
    block = max(1, min(window, queries))
    blocks = -(-queries // block)
    short = blocks * block - queries
    before = window - 1 + queries - keys  # padding that puts the reach of block 0 at the start; keys out of all reach are cut off
    query = F.pad(single(q), (0, 0, 0, short)).reshape(batch, groups, heads // groups, blocks, block, q.shape[-1])
    key, value = (_overlapping(x, before, short, block + window - 1, block) for x in (k, v))
    seen = _seen(block, window, blocks, before, keys, q.device)
    out = _attended(query.transpose(2, 3).flatten(3, 4) * scale_of(q, scale), key, value, seen)
    by_head = out.unflatten(3, (heads // groups, block)).transpose(2, 3)
    return by_head.reshape(batch, heads, blocks * block, v.shape[-1])[:, :, :queries].to(q.dtype)


def _overlapping(x: Tensor, before: int, after: int, reach: int, block: int) -> Tensor:
    """(B, G, Tk, D) as (B, G, blocks, D, reach): the keys that each block of queries reaches, as views of one padded tensor."""
    padded = F.pad(single(x), (0, 0, before, after))
    return padded.unfold(2, reach, block) if padded.shape[2] >= reach else padded.new_empty(*x.shape[:2], 0, x.shape[3], reach)


def _seen(block: int, window: int, blocks: int, before: int, keys: int, device: torch.device) -> Tensor:
    """(blocks, n, reach): which keys of its block's reach a query sees; what was padded none does."""
    row, column = torch.arange(block, device=device)[:, None], torch.arange(block + window - 1, device=device)
    place = torch.arange(blocks, device=device)[:, None, None] * block + column - before
    return (column >= row) & (column < row + window) & (place >= 0) & (place < keys)


def _attended(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """Plain attention within every block: (B, G, blocks, H/G·n, Dv)."""
    empty = ~seen.any(-1, keepdim=True)
    times = query.shape[3] // seen.shape[1]
    hidden, nothing = (~(seen | empty)).repeat(1, times, 1), empty.repeat(1, times, 1)
    weights = (query @ key).masked_fill(hidden, -INFINITY).softmax(-1)
    return (weights @ value.mT).masked_fill(nothing, 0.0)
