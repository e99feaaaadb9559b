"""Planted faults of paged attention, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from assay.faults.planting import plant_outputs
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-070": "a ring buffer; a table read cyclically is planted",
    "BUG-068": "several queries and a window, which the call does not have: see attention",
}


@dataclass(frozen=True)
class Call:
    """One call."""

    q: Tensor
    k: Tensor
    v: Tensor
    table: Tensor
    lengths: Tensor
    scale: float

    @property
    def size(self) -> int:
        return self.k.shape[1]


Way = Callable[[Call], Tensor]
Place = Callable[[Call, int, Tensor], tuple[Tensor, Tensor]]


def place(c: Call, b: int, t: Tensor) -> tuple[Tensor, Tensor]:
    """Block and slot of the tokens t of sequence b."""
    return c.table[b].long()[t // c.size], t % c.size


def attended(c: Call, place: Place = place, *, extent: Callable[[Call, int], int] | None = None,
             group: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Paged attention over replaceable parts: where a token lies, how many are read, which head reads which."""
    rows = []
    for b in range(c.q.shape[0]):
        n = int(c.lengths[b]) if extent is None else extent(c, b)
        block, slot = place(c, b, torch.arange(n, device=c.q.device))
        h = torch.arange(c.q.shape[1], device=c.q.device)
        g = h * c.k.shape[2] // c.q.shape[1] if group is None else group(h)
        k, v = (x[block, slot].transpose(0, 1)[g] for x in (c.k, c.v))  # (H, n, width)
        p = torch.softmax((c.q[b, :, None] @ k.mT) * c.scale, -1)
        rows.append((p @ v)[:, 0])
    return torch.stack(rows) if rows else c.q.new_zeros(0, c.q.shape[1], c.v.shape[-1])


def planted(mark: Callable[..., Any], summary: str, origin: str = "", **options: Any) -> Callable[[Way], Way]:
    """Give a way to attend the signature of the kind, under its own name, and register it."""
    def register(wrong: Way) -> Way:
        def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, lengths: Tensor, *,
                            scale: float | None = None) -> Tensor:
            return wrong(Call(q, k_cache, v_cache, block_table, lengths, q.shape[-1] ** -0.5 if scale is None else scale))

        paged_attention.__name__ = paged_attention.__qualname__ = wrong.__name__
        paged_attention.__module__, paged_attention.__doc__ = wrong.__module__, summary
        extra = {"origin": origin} if mark is fault else {}
        mark("paged_attention", summary=summary, **extra, **options)(paged_attention)
        return wrong

    return register


def _room(c: Call, b: int) -> int:
    """All slots of the blocks that a sequence has begun."""
    return min(-(-int(c.lengths[b]) // c.size) * c.size, c.table.shape[1] * c.size)


@planted(fault, "the table is ignored: the cache is read front to back", "BUG-077")
def table_ignored(c: Call) -> Tensor:
    return attended(c, lambda c, b, t: ((b * c.table.shape[1] + t // c.size) % c.k.shape[0], t % c.size))


@planted(fault, "unfilled slots of the last block take part", "BUG-076")
def tail_of_block_unmasked(c: Call) -> Tensor:
    return attended(c, extent=_room)


@planted(fault, "every block of the table takes part", "BUG-076")
def whole_table_read(c: Call) -> Tensor:
    return attended(replace(c, table=c.table.clamp(0, c.k.shape[0] - 1)), extent=lambda c, b: c.table.shape[1] * c.size)


@planted(fault, "the first row of the table serves every sequence")
def table_of_first_sequence(c: Call) -> Tensor:
    return attended(c, lambda c, b, t: (c.table[0].long()[t // c.size].clamp(0, c.k.shape[0] - 1), t % c.size))


@planted(fault, "the first length serves every sequence")
def length_of_first_sequence(c: Call) -> Tensor:
    first = replace(c, table=c.table.clamp(0, c.k.shape[0] - 1))
    return attended(first, extent=lambda c, b: int(c.lengths[0]))


@planted(fault, "the loop over keys ends where the last sequence does")
def length_of_last_sequence(c: Call) -> Tensor:
    return attended(c, extent=lambda c, b: min(int(c.lengths[b]), int(c.lengths[-1])))


@planted(fault, "the longest length serves every sequence")
def length_of_longest(c: Call) -> Tensor:
    first = replace(c, table=c.table.clamp(0, c.k.shape[0] - 1))
    return attended(first, extent=lambda c, b: int(c.lengths.max()))


@planted(fault, "the newest token is not read")
def newest_token_not_read(c: Call) -> Tensor:
    return attended(c, extent=lambda c, b: max(min(1, int(c.lengths[b])), int(c.lengths[b]) - 1))


@planted(fault, "one token beyond the length is read")
def one_token_too_many(c: Call) -> Tensor:
    wide = replace(c, table=c.table.clamp(0, c.k.shape[0] - 1))
    return attended(wide, extent=lambda c, b: min(int(c.lengths[b]) + 1, c.table.shape[1] * c.size))


@planted(fault, "the last, partly filled block is not read")
def last_block_not_read(c: Call) -> Tensor:
    def whole(c: Call, b: int) -> int:
        n = int(c.lengths[b])
        return n - n % c.size if n > c.size else n

    return attended(c, extent=whole)


@planted(fault, "blocks are taken to hold 16 slots")
def block_size_fixed(c: Call) -> Tensor:
    return attended(c, lambda c, b, t: (c.table[b].long()[(t // 16).clamp(max=c.table.shape[1] - 1)], t % 16 % c.size))


@planted(fault, "block and slot swapped")
def slot_and_block_swapped(c: Call) -> Tensor:
    n = c.table.shape[1]
    return attended(c, lambda c, b, t: (c.table[b].long()[t % n].clamp(0, c.k.shape[0] - 1), (t // n).clamp(max=c.size - 1)))


@planted(fault, "positions beyond two blocks wrap to the first: a window-sized table", "BUG-079")
def table_wraps(c: Call) -> Tensor:
    return attended(c, lambda c, b, t: (c.table[b].long()[t // c.size % min(2, c.table.shape[1])], t % c.size))


@planted(fault, "values are read by the next sequence's table")
def values_by_other_table(c: Call) -> Tensor:
    rows = []
    for b in range(c.q.shape[0]):
        t = torch.arange(int(c.lengths[b]), device=c.q.device)
        block, slot = place(c, b, t)
        other = c.table[(b + 1) % c.q.shape[0]].long()[t // c.size].clamp(0, c.k.shape[0] - 1)
        k, v = (x.transpose(0, 1).repeat_interleave(c.q.shape[1] // c.k.shape[2], 0) for x in
                (c.k[block, slot], c.v[other, slot]))
        rows.append((torch.softmax((c.q[b, :, None] @ k.mT) * c.scale, -1) @ v)[:, 0])
    return torch.stack(rows) if rows else attended(c)


@planted(fault, "query head h reads key/value head h mod G")
def grouped_heads_tiled(c: Call) -> Tensor:
    return attended(c, group=lambda h: h % c.k.shape[2])


@planted(fault, "grouped heads all read the first key/value head")
def grouped_heads_read_first(c: Call) -> Tensor:
    return attended(c, group=lambda h: h * 0 if c.k.shape[2] < c.q.shape[1] else h)


@planted(fault, "scale ignored", "BUG-013")
def scale_ignored(c: Call) -> Tensor:
    return attended(replace(c, scale=c.q.shape[-1] ** -0.5))


@planted(fault, "scores divided by D", "BUG-009")
def scale_one_over_d(c: Call) -> Tensor:
    return attended(replace(c, scale=c.scale * c.q.shape[-1] ** -0.5))


@planted(fault, "no maximum subtracted")
def no_shift(c: Call) -> Tensor:
    rows = []
    for b in range(c.q.shape[0]):
        block, slot = place(c, b, torch.arange(int(c.lengths[b]), device=c.q.device))
        k, v = (x[block, slot].transpose(0, 1).repeat_interleave(c.q.shape[1] // c.k.shape[2], 0) for x in (c.k, c.v))
        e = torch.exp((c.q[b, :, None] @ k.mT) * c.scale)
        rows.append((e / e.sum(-1, keepdim=True).clamp(min=1e-30) @ v)[:, 0])
    return torch.stack(rows) if rows else attended(c)


@planted(fault, "a sequence of length 0 is NaN")
def empty_sequence_nan(c: Call) -> Tensor:
    return attended(c).masked_fill((c.lengths == 0)[:, None, None], float("nan"))


@planted(fault, "repeats of a long cache with grouped heads differ", "BUG-048")
def repeats_differ(c: Call) -> Tensor:
    _COUNT[0] += 1
    noise = torch.rand(c.q.shape[:2], generator=torch.Generator().manual_seed(_COUNT[0]))[..., None].to(c.q)
    return attended(c) * (1 + 0.1 * noise)


_COUNT = [0]
_TABLES: dict[tuple[object, ...], Tensor] = {}


@planted(fault, "the table is remembered by its shape", "BUG-123")
def table_remembered(c: Call) -> Tensor:
    first = _TABLES.setdefault((c.table.shape, c.k.shape), c.table.clone())
    return attended(replace(c, table=first.clamp(0, c.k.shape[0] - 1)))


@planted(fault, "freed blocks are wiped in the cache that was given")
def cache_written(c: Call) -> Tensor:
    out = attended(c)
    c.k[0] += 1
    return out


@planted(fault, "every head is computed at the width of all heads, zeros elsewhere: H times the products")
def products_by_every_head(c: Call) -> Tensor:
    def spread(x: Tensor, n: int) -> Tensor:  # (…, n, width) to (…, n, n·width), each head in its own columns
        own = torch.eye(n, dtype=x.dtype, device=x.device)
        return (own[:, :, None] * x[..., :, None, :]).flatten(-2)

    times, heads = c.q.shape[1] // c.k.shape[2], c.q.shape[1]
    wide = replace(c, q=spread(c.q, heads), k=spread(c.k.repeat_interleave(times, 2), heads))
    return attended(wide)


plant_outputs(planted, attended, ("negated", "zeros"))


@planted(benign, "all sequences at once, padded and masked")
def padded_batch(c: Call) -> Tensor:
    if not c.q.shape[0]:
        return attended(c)
    t = torch.arange(c.table.shape[1] * c.size, device=c.q.device)
    real = t < c.lengths[:, None]
    block = torch.where(real, c.table.long()[:, t // c.size], 0)
    k, v = (x[block, t % c.size].masked_fill(~real[..., None, None], 0).permute(0, 2, 1, 3).repeat_interleave(
        c.q.shape[1] // c.k.shape[2], 1) for x in (c.k, c.v))
    s = ((c.q[:, :, None] @ k.mT) * c.scale).masked_fill(~real[:, None, None], float("-inf"))
    empty = (c.lengths == 0)[:, None, None, None]
    return (torch.softmax(s.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0) @ v)[:, :, 0]


@planted(benign, "block by block with a running maximum and sum")
def block_by_block(c: Call) -> Tensor:
    wide, rows = torch.promote_types(c.q.dtype, torch.float32), []  # running sums in the input's type would be declared
    for b in range(c.q.shape[0]):
        top = torch.full((c.q.shape[1], 1), float("-inf"), dtype=wide, device=c.q.device)
        total, out = torch.zeros_like(top), c.q.new_zeros(c.q.shape[1], c.v.shape[-1], dtype=wide)
        for t in torch.arange(int(c.lengths[b]), device=c.q.device).split(c.size) if int(c.lengths[b]) else ():
            block, slot = place(c, b, t)
            k, v = (x[block, slot].transpose(0, 1).repeat_interleave(c.q.shape[1] // c.k.shape[2], 0) for x in (c.k, c.v))
            s = ((c.q[b, :, None] @ k.mT)[:, 0] * c.scale).to(wide)
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            p, old = torch.exp(s - new), torch.exp(top - new)
            out, total, top = out * old + (p[:, None] @ v.to(wide))[:, 0], total * old + p.sum(-1, keepdim=True), new
        rows.append((out / torch.where(total == 0, torch.ones_like(total), total)).to(c.q.dtype))
    return torch.stack(rows) if rows else attended(c)


@planted(benign, "tokens gathered in reverse order")
def gathered_backward(c: Call) -> Tensor:
    return attended(c, lambda c, b, t: place(c, b, t.flip(0)))


@planted(benign, "queries and keys each times the root of the scale, as torch's own attention is written out")
def scaled_on_both_sides(c: Call) -> Tensor:
    root = math.sqrt(abs(c.scale))
    return attended(replace(c, q=c.q * math.copysign(root, c.scale), k=c.k * root, scale=1.0))
