"""FlashAttention in plain PyTorch: an online softmax over tiles, and gradients from recomputed weights.

Source: Dao et al., "FlashAttention", algorithms 1 and 4, arXiv:2205.14135. What is kept for the gradients is the output and the
logarithm of each row's sum, so that memory grows with T and not with T². Half precision is turned into float32 a tile at a time.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._tiles import INFINITY, Tiling, folded, scale_of, single

QUERY_TILE = KEY_TILE = 64


def forward(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """Output (B, H, Tq, Dv) and log-sum-exp (B, H, Tq), in float32 for half precision; 0 and −∞ where no key is seen."""
    wide = single(q[:0]).dtype
    out = torch.empty(*q.shape[:3], v.shape[-1], dtype=wide, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=wide, device=q.device)
    for rows in tiling.query_tiles(q.shape[2]):
        found = _row_of_tiles(folded(single(q[:, :, rows]), k.shape[1]), k, v, rows, tiling)
        out[:, :, rows], lse[:, :, rows] = (one.reshape(to[:, :, rows].shape) for one, to in zip(found, (out, lse), strict=True))
    return out, lse


def _row_of_tiles(query: Tensor, k: Tensor, v: Tensor, rows: slice, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """One tile of queries against all keys in its reach."""
    out = query.new_zeros(*query.shape[:3], v.shape[-1])
    top, total = query.new_full(query.shape[:3], -INFINITY), query.new_zeros(query.shape[:3])
    for columns in tiling.key_tiles(rows, k.shape[2]):
        scores, _ = tiling.scores(query, single(k[:, :, columns]), rows, columns)
        new = torch.maximum(top, scores.amax(-1))
        shift = _finite(new)
        old, weights = torch.exp(top - shift), torch.exp(scores - shift.unsqueeze(-1))
        out = old.unsqueeze(-1) * out + weights @ single(v[:, :, columns])
        top, total = new, old * total + weights.sum(-1)
    seen = top > -INFINITY
    safe = torch.where(seen, total, 1.0)
    return out / safe.unsqueeze(-1), torch.where(seen, top + safe.log(), -INFINITY)


def backward(q: Tensor, k: Tensor, v: Tensor, lse: Tensor, rest: Tensor, upstream: Tensor,
             tiling: Tiling) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v: P = e^(S − lse), ∂S = P ⊙ (∂O·Vᵀ − rest), rest = rowsum(∂O ⊙ O) − ∂lse."""
    dq, dk, dv = (torch.zeros(x.shape, dtype=lse.dtype, device=x.device) for x in (q, k, v))
    groups = k.shape[1]
    for rows in tiling.query_tiles(q.shape[2]):
        query, above = (folded(single(x[:, :, rows]), groups) for x in (q, upstream))
        shift, less = (folded(x[:, :, rows, None], groups) for x in (_finite(lse), rest))
        slope = torch.zeros_like(query)
        for columns in tiling.key_tiles(rows, k.shape[2]):
            key, value = single(k[:, :, columns]), single(v[:, :, columns])
            scores, tame = tiling.scores(query, key, rows, columns)
            weights = torch.exp(scores - shift)
            dv[:, :, columns] += weights.mT @ above
            ds = weights * (above @ value.mT - less) * tiling.scale
            ds = ds if tame is None else ds * (1 - tame * tame)
            dk[:, :, columns] += ds.mT @ query
            slope += ds @ key
        dq[:, :, rows] = slope.reshape(dq[:, :, rows].shape)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _finite(top: Tensor) -> Tensor:
    """0 in place of −∞: a row that has seen no key is shifted by nothing, since −∞ − −∞ is NaN."""
    return torch.where(top == -INFINITY, 0.0, top)


class Flash(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
        out, lse = forward(q, k, v, tiling)
        ctx.tiling = tiling
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype), lse.clone()  # a saved output of its own type is no result: autograd would keep it twice

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor, of_lse: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        rest = (single(upstream) * out).sum(-1) - of_lse
        return *backward(q, k, v, lse, rest, upstream, ctx.tiling), None


def _flash(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """The two results, after what the algorithm does not do is refused."""
    if tiling.bias is not None and tiling.bias.requires_grad:
        raise NotImplementedError("bias: no gradient is computed for it")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k.shape[1]={k.shape[1]} must divide the number of query heads, got {q.shape[1]}; repeat or drop heads")
    return Flash.apply(q, k, v, tiling)


@assay.implements("blockwise_attention", name="flash-torch-blockwise", arithmetic={"internal": "float32"},
                  version=torch.__version__)
def flash_blockwise(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Any tile sizes, lse out (in float32 for half precision)."""
    if block_q < 1 or block_k < 1:
        raise ValueError(f"block_q, block_k={block_q, block_k} must be at least 1, got {min(block_q, block_k)}; 64 is usual")
    offset = k.shape[2] - q.shape[2] if causal else None
    return _flash(q, k, v, Tiling(block_q, block_k, scale_of(q, scale), mask, offset=offset))


@assay.implements("attention", name="flash-torch", arithmetic={"internal": "float32"}, version=torch.__version__)
def flash(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None, softcap: float | None = None,
) -> Tensor:
    """Tiles of 64 queries and 64 keys; tiles beyond causality and window are not touched."""
    offset = k.shape[2] - q.shape[2] if causal or window is not None else None
    return _flash(q, k, v, Tiling(QUERY_TILE, KEY_TILE, scale_of(q, scale), mask, bias, offset, window, softcap))[0]


@assay.implements("attention", name="flash-torch-top-left", conventions={"causal_alignment": "top_left"},
                  arithmetic={"internal": "float32"}, version=torch.__version__)
def flash_top_left(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None, softcap: float | None = None,
) -> Tensor:
    """The same with query 0 at key 0, and tiles of 16 queries and 32 keys."""
    offset = 0 if causal or window is not None else None
    return _flash(q, k, v, Tiling(16, 32, scale_of(q, scale), mask, bias, offset, window, softcap))[0]
