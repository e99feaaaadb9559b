"""Paged attention: one query a sequence against a key/value cache that lies in blocks."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import attention as _attention
from assay.reference.router import softmax

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]  # query (H, 1, D), keys and values (H, T, width), scale -> (H, 1, Dv)


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor, *, scale: float | None = None,
    empty_row: str = "zeros",
) -> Tensor:
    """Attend from each sequence's newest token to the tokens that its block table names.

    Formula: token t of sequence b lies in block block_table[b, t div block_size], slot t mod block_size;
    out_b = softmax(q_b · K_bᵀ · scale) · V_b over t < lengths_b, head h reading key/value head ⌊h·G/H⌋.

    q: (B, H, D)
    k_cache: (blocks, block_size, G, D)
    v_cache: (blocks, block_size, G, Dv)
    block_table: (B, max_blocks) integers; entries beyond ⌈lengths/block_size⌉ are never read
    lengths: (B,) integers
    returns: (B, H, Dv)

    Conventions: scale 1/√D by default; empty_row: length 0 gives "zeros", "nan_row", or is "refused" ("mean" of no
    value is NaN).
    Raises: ValueError where G does not divide H, a length exceeds the table, a block does not exist, or an empty row
    is refused.
    Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", section
    4.1,
    arXiv 2309.06180.

    >>> cache = torch.tensor([[[[9.0]], [[9.0]]], [[[1.0]], [[3.0]]]])
    >>> table, lengths = torch.tensor([[1, 0]]), torch.tensor([2])
    >>> paged_attention(torch.zeros(1, 1, 1), cache, cache, table, lengths).item()
    2.0
    """
    return _sequence_by_sequence(_attend, q, k_cache, v_cache, block_table, lengths, scale, empty_row)


def _attend(query: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return softmax((query @ k.transpose(-1, -2)) * scale) @ v


def _sequence_by_sequence(attend: Attend, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor,
                          scale: float | None, empty_row: str) -> Tensor:
    _check(q, k_cache, block_table, lengths, empty_row)
    factor = _attention.scale_of(q, scale)
    rows = []
    for b in range(q.shape[0]):
        length = int(lengths[b])
        if length == 0:
            rows.append(torch.full_like(q[b, :, :1], 0.0 if empty_row == "zeros" else float("nan")).expand(
                q.shape[1], v_cache.shape[-1]))
            continue
        k, v = (_read(cache, block_table[b], length, q.shape[1]) for cache in (k_cache, v_cache))
        rows.append(attend(q[b].unsqueeze(1), k, v, factor).squeeze(1))
    return torch.stack(rows) if rows else torch.zeros(0, q.shape[1], v_cache.shape[-1], dtype=q.dtype, device=q.device)


def _read(cache: Tensor, table: Tensor, length: int, heads: int) -> Tensor:
    """The first `length` tokens of a sequence, a head for each query head: (H, length, width)."""
    t = torch.arange(length, device=cache.device)
    size = cache.shape[1]
    block = table.long()[t // size]
    if int(block.min()) < 0 or int(block.max()) >= cache.shape[0]:
        raise ValueError(f"block_table={block.tolist()} must lie in 0 … {cache.shape[0] - 1}, got {block.tolist()}; "
                         "correct the table")
    tokens = cache[block, t % size].transpose(0, 1)  # (G, length, width)
    return tokens.repeat_interleave(heads // cache.shape[2], dim=0)


def _check(q: Tensor, k_cache: Tensor, block_table: Tensor, lengths: Tensor, empty_row: str) -> None:
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(f"k_cache.shape[2]={k_cache.shape[2]} must divide H = {q.shape[1]}, got {k_cache.shape[2]}; repeat heads")
    room = block_table.shape[1] * k_cache.shape[1]
    if lengths.numel() and (int(lengths.max()) > room or int(lengths.min()) < 0):
        raise ValueError(f"lengths={lengths.tolist()} must lie in 0 … {room}, got {lengths.tolist()}; "
                         "name more blocks in the table")
    if empty_row not in ("zeros", "mean", "nan_row", "refused"):
        raise ValueError(f"empty_row={empty_row!r} must be zeros, mean, nan_row or refused, got {empty_row!r}; choose one")
    if empty_row == "refused" and lengths.numel() and int(lengths.min()) == 0:
        raise ValueError("lengths=0 must be at least 1, got 0 (empty_row is refused); leave the sequence out")


def _by(inner: Form) -> Form:
    """A form of attention, over the tokens of each sequence."""
    def attend(query: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        out: Tensor = inner.forward(query.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), scale=scale)
        return out.squeeze(0)

    def forward(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor, *, scale: float | None = None,
        empty_row: str = "zeros",
    ) -> Tensor:
        return _sequence_by_sequence(attend, q, k_cache, v_cache, block_table, lengths, scale, empty_row)

    return Form(f"each sequence: {inner.name}", forward, additions=inner.additions, usual=inner.usual)


FORMS: tuple[Form, ...] = (
    Form("scores scaled", paged_attention, additions=2), *(_by(form) for form in _attention.FORMS[1:]),
)
