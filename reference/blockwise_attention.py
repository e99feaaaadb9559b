"""Blockwise attention: tile by tile with a running maximum and a running sum, never all scores at once."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form

INFINITY = float("inf")
LOG2_E = math.log2(math.e)
Partial = tuple[Tensor, Tensor, Tensor]


def blockwise_attention(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, mask: Tensor | None = None,
    scale: float | None = None, causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> tuple[Tensor, Tensor]:
    """Attention over tiles of block_q queries and block_k keys, and the logarithm of each row's sum of exponentials.

    Formula: over key tiles j, with scores S_j: m' = max(m, rowmax S_j); l' = e^(m−m')·l + rowsum e^(S_j−m');
    o' = e^(m−m')·o + e^(S_j−m')·V_j; at the end out = o/l, lse = m + log l.

    q: (B, H, Tq, D)
    k: (B, G, Tk, D), G divides H
    v: (B, G, Tk, Dv)
    mask: None or bool, broadcast to (B, H, Tq, Tk), True = may attend
    returns: out (B, H, Tq, Dv), lse (B, H, Tq), natural logarithm

    Conventions: causal_alignment "bottom_right" or "top_left"; empty_row: a row without keys gives "zeros" and lse
    −∞, "nan_row",
    "mean" (of the row's values), or is "refused".
    Raises: ValueError where a block size < 1, G does not divide H, shapes do not fit, or an empty row is refused.
    Source: Dao et al., "FlashAttention", section 3.1, arXiv 2205.14135; Milakov, Gimelshein, "Online normalizer
    calculation for
    softmax", arXiv 1805.02867.

    >>> q, v = torch.zeros(1, 1, 1, 2), torch.tensor([[[[1.0], [3.0], [8.0]]]])
    >>> out, lse = blockwise_attention(q, torch.zeros(1, 1, 3, 2), v, block_q=1, block_k=2)
    >>> out.item(), round(lse.exp().item(), 4)
    (4.0, 3.0)
    """
    _check(q, k, v, block_q, block_k, causal_alignment, empty_row)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    tiles = []
    for rows in torch.arange(q.shape[2], device=q.device).split(block_q):
        partial = start(q[:, :, rows], v)
        for columns in torch.arange(k.shape[2], device=q.device).split(block_k) if k.shape[2] else ():
            scores = (q[:, :, rows] @ _heads(k[:, :, columns], q).transpose(-1, -2)) * factor
            keep = _visible(rows, columns, q, k, causal, mask, causal_alignment)
            partial = absorb(partial, scores, keep, _heads(v[:, :, columns], q))
        tiles.append(finish(partial))
    out, lse = (torch.cat(parts, 2) for parts in zip(*tiles, strict=True))
    return _empty_rows(out, lse, _heads(v, q), empty_row), lse


def start(q: Tensor, v: Tensor) -> Partial:
    """Nothing seen yet: output 0, maximum −∞, sum 0."""
    shape = q.shape[:-1]
    out = torch.zeros(*shape, v.shape[-1], dtype=q.dtype, device=q.device)
    return out, torch.full(shape, -INFINITY, dtype=q.dtype, device=q.device), torch.zeros(shape, dtype=q.dtype, device=q.device)


def absorb(partial: Partial, scores: Tensor, keep: Tensor, values: Tensor) -> Partial:
    """Take one tile of keys into the running output, maximum and sum."""
    out, top, total = partial
    scores = torch.where(keep, scores, torch.full_like(scores, -INFINITY))
    new = freely_chosen(torch.maximum(top, scores.amax(-1)))
    shift = torch.where(new == -INFINITY, torch.zeros_like(new), new)  # −∞ − −∞ is NaN; an empty row keeps zeros
    old, p = torch.exp(top - shift), torch.exp(scores - shift.unsqueeze(-1))
    return old.unsqueeze(-1) * out + p @ values, new, old * total + p.sum(-1)


def finish(partial: Partial) -> tuple[Tensor, Tensor]:
    """Output and logarithm of the sum: 0 and −∞ where nothing was seen."""
    out, top, total = partial
    seen = top > -INFINITY
    total = torch.where(seen, total, torch.ones_like(total))
    lse = torch.where(seen, top, torch.zeros_like(top)) + torch.log(total)
    return out / total.unsqueeze(-1), torch.where(seen, lse, torch.full_like(lse, -INFINITY))


def _heads(shared: Tensor, q: Tensor) -> Tensor:
    """Key or value heads repeated in blocks, one for each query head."""
    times = q.shape[1] // shared.shape[1]
    return shared if times == 1 else shared.repeat_interleave(times, dim=1)


def _visible(rows: Tensor, columns: Tensor, q: Tensor, k: Tensor, causal: bool, mask: Tensor | None, alignment: str) -> Tensor:
    """Which keys of the tile each of its queries may attend to."""
    if causal:
        shift = k.shape[2] - q.shape[2] if alignment == "bottom_right" else 0
        keep = columns[None, :] <= rows[:, None] + shift
    else:
        keep = torch.ones(len(rows), len(columns), dtype=torch.bool, device=q.device)
    if mask is None:
        return keep
    return keep & mask.bool().expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])[:, :, rows][..., columns]


def _empty_rows(out: Tensor, lse: Tensor, values: Tensor, empty_row: str) -> Tensor:
    """The declared outcome of rows without keys; zeros are already there."""
    empty = (lse.detach() == -INFINITY).unsqueeze(-1)
    if empty_row == "refused" and bool(empty.any()):
        raise ValueError("mask=a row without keys must have a key, got none (empty_row is refused); drop the row")
    if empty_row == "nan_row":
        return torch.where(empty, torch.full_like(out, float("nan")), out)
    if empty_row == "mean" and values.shape[2]:
        return torch.where(empty, values.sum(2, keepdim=True) / values.shape[2], out)
    return out


def _check(q: Tensor, k: Tensor, v: Tensor, block_q: int, block_k: int, alignment: str, empty_row: str) -> None:
    for name, value in (("block_q", block_q), ("block_k", block_k)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1, got {value}; 64 is usual")
    if q.shape[1] % k.shape[1] or k.shape[1] != v.shape[1]:
        raise ValueError(f"k.shape[1]={k.shape[1]} key heads must divide H = {q.shape[1]} and equal v's {v.shape[1]}, "
                         f"got {k.shape[1]}; repeat or drop heads")
    if q.shape[-1] != k.shape[-1] or k.shape[2] != v.shape[2]:
        raise ValueError(f"k.shape={tuple(k.shape)} must have q's width {q.shape[-1]} and v's length {v.shape[2]}, "
                         f"got {tuple(k.shape)}; pass tensors that fit")
    if alignment not in ("bottom_right", "top_left"):
        raise ValueError(f"causal_alignment={alignment!r} must be 'bottom_right' or 'top_left', got {alignment!r}; choose one")
    if empty_row not in ("zeros", "mean", "nan_row", "refused"):
        raise ValueError(f"empty_row={empty_row!r} must be zeros, mean, nan_row or refused, got {empty_row!r}; choose one")


def _scaled_on_both_sides(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, mask: Tensor | None = None,
    scale: float | None = None, causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> tuple[Tensor, Tensor]:
    """Queries and keys are each multiplied by the root of the scale before the products."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    root = math.sqrt(abs(factor))
    return blockwise_attention(q * math.copysign(root, factor), k * root, v, block_q=block_q, block_k=block_k, causal=causal,
                               mask=mask, scale=1.0, causal_alignment=causal_alignment, empty_row=empty_row)


def _base_two(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, mask: Tensor | None = None,
    scale: float | None = None, causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> tuple[Tensor, Tensor]:
    """One tile in powers of two: whole scores times log₂ e, before the maximum is taken off; lse turned back at the end."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    full_k, full_v = _heads(k, q), _heads(v, q)
    keep = _visible(torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device), q, k, causal, mask,
                    causal_alignment)
    scores = (q @ full_k.transpose(-1, -2)) * factor * LOG2_E
    scores = torch.where(keep, scores, torch.full_like(scores, -INFINITY))
    top = freely_chosen(scores.amax(-1))
    shift = torch.where(top == -INFINITY, torch.zeros_like(top), top)
    p = torch.exp2(scores - shift.unsqueeze(-1))
    total = p.sum(-1)
    seen = top > -INFINITY
    safe = torch.where(seen, total, torch.ones_like(total))
    lse = shift / LOG2_E + torch.log(safe)
    out = (p @ full_v) / safe.unsqueeze(-1)
    return _empty_rows(out, torch.where(seen, lse, torch.full_like(lse, -INFINITY)), full_v, empty_row), torch.where(
        seen, lse, torch.full_like(lse, -INFINITY))


def _all_keys_at_once(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, mask: Tensor | None = None,
    scale: float | None = None, causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> tuple[Tensor, Tensor]:
    """One tile over everything: what a plain attention with its logarithm gives."""
    return blockwise_attention(q, k, v, block_q=max(1, q.shape[2]), block_k=max(1, k.shape[2]), causal=causal, mask=mask,
                               scale=scale, causal_alignment=causal_alignment, empty_row=empty_row)


def _backward(
    upstream: Sequence[Tensor | None], wrt: Sequence[str], *, q: Tensor, k: Tensor, v: Tensor, block_q: int,
    block_k: int,
    causal: bool = False, mask: Tensor | None = None, scale: float | None = None, causal_alignment: str = "bottom_right",
    empty_row: str = "zeros",
) -> Mapping[str, Tensor]:
    """P recomputed as e^(S−lse): ∂V = Pᵀ∂O, ∂S = P⊙(∂O·Vᵀ − rowsum(∂O⊙O) + ∂lse), as kernels that store lse alone."""
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out, lse = blockwise_attention(q, k, v, block_q=block_q, block_k=block_k, causal=causal, mask=mask, scale=scale,
                                   causal_alignment=causal_alignment)
    rows, columns = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
    keep = _visible(rows, columns, q, k, causal, mask, causal_alignment)
    full_k, full_v = _heads(k, q), _heads(v, q)
    shift = torch.where(lse == -INFINITY, torch.zeros_like(lse), lse).unsqueeze(-1)
    scores = (q @ full_k.transpose(-1, -2)) * factor
    p = torch.exp(torch.where(keep, scores, torch.full_like(scores, -INFINITY)) - shift)
    up = torch.zeros_like(out) if upstream[0] is None else upstream[0]
    rest = (up * out).sum(-1, keepdim=True)
    rest = rest if len(upstream) < 2 or upstream[1] is None else rest - upstream[1].unsqueeze(-1)
    ds = p * (up @ full_v.transpose(-1, -2) - rest)
    gradients = {"q": (ds @ full_k) * factor, "k": _grouped(ds.transpose(-1, -2) @ q, k) * factor,
                 "v": _grouped(p.transpose(-1, -2) @ up, v)}
    return {name: gradients[name] for name in wrt}


def _grouped(gradient: Tensor, shared: Tensor) -> Tensor:
    """The gradients of a shared head's query heads, summed."""
    times = gradient.shape[1] // shared.shape[1]
    return gradient.reshape(shared.shape[0], shared.shape[1], times, *gradient.shape[2:]).sum(2)


FORMS: tuple[Form, ...] = (
    Form("tile by tile", blockwise_attention, additions=2),
    Form("scaled on both sides", _scaled_on_both_sides, additions=2),
    Form("powers of two", _base_two, additions=7, usual=True, applies=lambda arguments: arguments["k"].shape[2] > 0),
    Form("one tile, gradients recomputed from lse", _all_keys_at_once, backward=_backward, additions=2),
)
