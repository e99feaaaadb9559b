"""Split-KV decoding: few queries against a long cache, cut into parts that are attended to apart and merged by log-sum-exp.

Source: Dao et al., "Flash-Decoding for long-context inference", 2023.
out = Σ e^(lse_s − m)·out_s / Σ e^(lse_s − m), m = max lse_s.
"""
from __future__ import annotations

import torch
from torch import Tensor

import assay
from assay.impls._tiles import INFINITY, Tiling, folded, scale_of, single

PART = 32  # keys
FEW = range(17)  # queries: they all lie in one tile


@assay.implements("attention", name="split-kv", limits={"Tq": FEW}, arithmetic={"internal": "float32"}, version=torch.__version__)
def split_kv(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None, softcap: float | None = None,
) -> Tensor:
    """Parts of 32 keys; those that causality and the window put out of reach are not read."""
    offset = k.shape[2] - q.shape[2] if causal or window is not None else None
    tiling = Tiling(q.shape[2], PART, scale_of(q, scale), mask, bias, offset, window, softcap)
    query, rows = folded(single(q), k.shape[1]), slice(0, q.shape[2])
    parts = [_part(query, k[:, :, columns], v[:, :, columns], rows, columns, tiling)
             for columns in (tiling.key_tiles(rows, k.shape[2]) if q.shape[2] else ())]
    nothing = query.new_zeros(*query.shape[:3], v.shape[-1]) + query[..., :0].sum()  # with gradients of 0
    out = merged(parts) if parts else nothing
    return out.reshape(*q.shape[:3], v.shape[-1]).to(q.dtype)


def _part(query: Tensor, k: Tensor, v: Tensor, rows: slice, columns: slice, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Attention over some of the keys, and its log-sum-exp: 0 and −∞ for queries that see none of them."""
    scores, _ = tiling.scores(query, single(k), rows, columns)
    empty = (scores == -INFINITY).all(-1)
    scores = scores.masked_fill(empty.unsqueeze(-1), 0.0)
    out = (scores.softmax(-1) @ single(v)).masked_fill(empty.unsqueeze(-1), 0.0)
    return out, scores.logsumexp(-1).masked_fill(empty, -INFINITY)


def merged(parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over all keys from that over each part."""
    outs, lses = (torch.stack(one) for one in zip(*parts, strict=True))
    top = lses.detach().amax(0)
    shares = torch.exp(lses - torch.where(top == -INFINITY, 0.0, top)).unsqueeze(-1)
    total = shares.sum(0)
    return (shares * outs).sum(0) / torch.where(total == 0, 1.0, total)
