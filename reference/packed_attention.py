"""Attention of sequences of different lengths that lie end to end, without padding."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import attention as _attention


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, causal: bool = False,
    scale: float | None = None, causal_alignment: str = "bottom_right",
) -> Tensor:
    """Attend within each sequence of a batch whose tokens lie end to end.

    Formula: rows cu_q[b] … cu_q[b+1]−1 of the output are Attention of those rows of q over rows cu_k[b] … cu_k[b+1]−1 of k and v;
    causal positions are counted within the sequence. A query that sees no key gives zeros.

    q: (Nq, H, D), the tokens of all sequences
    k: (Nk, G, D), G divides H; head h reads group floor(h G / H)
    v: (Nk, G, Dv)
    cu_seqlens_q, cu_seqlens_k: (B + 1,) int32, from 0 to Nq and to Nk, never falling; equal neighbours: no token
    causal_alignment: a sequence's last query is at its last key (`bottom_right`), or its first at the first (`top_left`)
    returns: (Nq, H, Dv)

    Raises: ValueError where G does not divide H, or the boundaries do not run from 0 to the number of tokens.
    Source: Dao, "FlashAttention-2", arXiv 2307.08691 (`flash_attn_varlen_func`); Krell et al., "Efficient Sequence Packing
    without Cross-contamination", section 3.2, arXiv 2107.02027.

    >>> x, bounds = torch.tensor([[[1.0]], [[3.0]], [[8.0]]]), torch.tensor([0, 2, 3])
    >>> packed_attention(0 * x, x, x, bounds, bounds).flatten().tolist()
    [2.0, 2.0, 8.0]
    """
    _check(q, k, cu_seqlens_q, cu_seqlens_k)
    rows = []
    for first, last, begin, end in spans(cu_seqlens_q, cu_seqlens_k):
        alone = (x.transpose(0, 1).unsqueeze(0) for x in (q[first:last], k[begin:end], v[begin:end]))
        out = _attention.attention(*alone, causal=causal, scale=scale, causal_alignment=causal_alignment)
        if begin == end:  # no key at all, and no mask that says so
            out = torch.zeros_like(out)
        rows.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(rows) if rows else torch.zeros(0, q.shape[1], v.shape[-1], dtype=q.dtype, device=q.device)


def spans(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> list[tuple[int, int, int, int]]:
    """First query, behind the last query, first key and behind the last key of each sequence that has a query."""
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    found = zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True)
    return [(a, b, c, d) for a, b, c, d in found if b > a]


def _check(q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> None:
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k.shape[1]={k.shape[1]} must divide H = {q.shape[1]}, got {k.shape[1]}; repeat or drop heads")
    for name, bounds, total in (("cu_seqlens_q", cu_seqlens_q, q.shape[0]), ("cu_seqlens_k", cu_seqlens_k, k.shape[0])):
        places = bounds.tolist()
        if not places or places[0] != 0 or places[-1] != total or sorted(places) != places:
            raise ValueError(f"{name}={places} must run from 0 to {total} without falling, got {places}; pass the running sum of "
                             "the lengths")
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(f"cu_seqlens_k.shape={tuple(cu_seqlens_k.shape)} must be that of cu_seqlens_q, "
                         f"{tuple(cu_seqlens_q.shape)}, got {tuple(cu_seqlens_k.shape)}; both name the same sequences")


# --- other legitimate ways to evaluate it: all at once, behind a mask of blocks ---------------------------------------


def blocks(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, causal: bool, causal_alignment: str) -> Tensor:
    """Which keys each query may attend to (Nq, Nk)."""
    queries, keys = (bounds.long().diff() for bounds in (cu_seqlens_q, cu_seqlens_k))
    sequence = torch.arange(len(queries), device=queries.device)
    of_query, of_key = sequence.repeat_interleave(queries), sequence.repeat_interleave(keys)
    seen = of_query[:, None] == of_key[None, :]
    if not causal:
        return seen
    shift = keys - queries if causal_alignment == "bottom_right" else torch.zeros_like(keys)
    row = torch.arange(len(of_query), device=seen.device) - cu_seqlens_q.long()[of_query] + shift[of_query]
    column = torch.arange(len(of_key), device=seen.device) - cu_seqlens_k.long()[of_key]
    return seen & (column[None, :] <= row[:, None])


def _one_batch(x: Tensor) -> Tensor:
    return x.transpose(0, 1).unsqueeze(0)


def _behind_a_mask(inner: Form) -> Form:
    """A form of attention over all tokens at once."""
    def forward(
        q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, causal: bool = False,
        scale: float | None = None, causal_alignment: str = "bottom_right",
    ) -> Tensor:
        mask = blocks(cu_seqlens_q, cu_seqlens_k, causal, causal_alignment)
        if not mask.shape[1]:
            return packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=causal, scale=scale)
        out: Tensor = inner.forward(*(_one_batch(x) for x in (q, k, v)), mask=mask, scale=scale)
        return out.squeeze(0).transpose(0, 1)

    def backward(
        upstream: Tensor, wrt: tuple[str, ...], q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *,
        causal: bool = False, scale: float | None = None, causal_alignment: str = "bottom_right",
    ) -> Mapping[str, Any]:
        mask = blocks(cu_seqlens_q, cu_seqlens_k, causal, causal_alignment)
        if not mask.numel():
            return {name: torch.zeros_like(x) for name, x in (("q", q), ("k", k), ("v", v)) if name in wrt}
        found = inner.backward(  # type: ignore[misc]
            _one_batch(upstream), wrt, *(_one_batch(x) for x in (q, k, v)), mask=mask, scale=scale)
        return {name: gradient.squeeze(0).transpose(0, 1) for name, gradient in found.items()}

    return Form(f"behind a mask: {inner.name}", forward, backward=None if inner.backward is None else backward,
                additions=inner.additions, usual=inner.usual)


FORMS: tuple[Form, ...] = (
    Form("sequence by sequence", packed_attention), *(_behind_a_mask(form) for form in _attention.FORMS[1:]),
)
