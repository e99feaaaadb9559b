"""FlashAttention in Triton: an online softmax over tiles of keys, and gradients from weights recomputed out of the log-sum-exp.

Source: Dao, "FlashAttention-2", algorithms 1 and 2, arXiv:2307.08691. Grouped heads, causality in both alignments, windows, any
lengths, and any head widths up to 256, which are padded to a power of two. Scores are taken to the base 2. Nothing is added up by
atomics: a program owns a tile of queries, or a tile of keys with all the query heads that share it, so that a repeat gives the same
bits. Not here: mask, bias, soft cap.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._tiles import scale_of
from assay.impls._triton import FAST, INTERPRETED, VERSION, kernel, launches, on_cuda, power_of_two, roomy, staged, supported, tiles

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)
WIDEST = 256
LN2 = math.log(2.0)


@kernel
def attend(q, k, v, out, lse, q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,  # type: ignore[no-untyped-def]
           heads, group, queries, keys, width, v_width, offset, window, scale, BOUNDED: tl.constexpr, WINDOWED: tl.constexpr,
           QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr):
    """One tile of queries of one head: out (B·H, Tq, Dv), contiguous, and lse (B·H, Tq) to the base 2.

    scale: that of the scores times log2(e). offset: the key at query 0. q, k, v have a last stride of 1.
    """
    blocks = (queries + QUERIES - 1) // QUERIES
    first_row = tl.program_id(0) % blocks * QUERIES
    owner = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = owner // heads, owner % heads
    row, channel, v_channel = first_row + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, V_WIDTH)
    k_part, v_part = k + batch * k_batch + head // group * k_head, v + batch * v_batch + head // group * v_head
    query = tl.load(q + batch * q_batch + head * q_head + row.to(tl.int64)[:, None] * q_token + channel[None, :],
                    mask=(row < queries)[:, None] & (channel < width)[None, :], other=0.0)
    top = tl.full((QUERIES,), float("-inf"), tl.float32)
    total, sums = tl.zeros((QUERIES,), tl.float32), tl.zeros((QUERIES, V_WIDTH), tl.float32)
    first, last = 0, keys
    if BOUNDED:
        last = tl.minimum(keys, first_row + QUERIES + offset)
    if WINDOWED:
        first = tl.maximum(0, first_row + offset - window + 1) // KEYS * KEYS
    for start in range(first, last, KEYS):
        column = start + tl.arange(0, KEYS)
        key = tl.load(k_part + column.to(tl.int64)[:, None] * k_token + channel[None, :],
                      mask=(column < keys)[:, None] & (channel < width)[None, :], other=0.0)
        seen = (column < keys)[None, :]
        if BOUNDED:
            seen = seen & (column[None, :] <= row[:, None] + offset)
        if WINDOWED:
            seen = seen & (column[None, :] > row[:, None] + (offset - window))
        scores = tl.where(seen, tl.dot(query, tl.trans(key), input_precision="ieee") * scale, float("-inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        shift = tl.where(new == float("-inf"), 0.0, new)  # of a row that has seen no key yet
        old, weights = tl.exp2(top - shift), tl.exp2(scores - shift[:, None])
        value = tl.load(v_part + column.to(tl.int64)[:, None] * v_token + v_channel[None, :],
                        mask=(column < keys)[:, None] & (v_channel < v_width)[None, :], other=0.0)
        sums = tl.dot(weights.to(v.dtype.element_ty), value, sums * old[:, None], input_precision="ieee")
        total = total * old + tl.sum(weights, 1)
        top = new
    seen_any = top != float("-inf")
    safe = tl.where(seen_any, total, 1.0)
    place = owner * queries + row
    tl.store(lse + place, tl.where(seen_any, top + tl.log2(safe), float("-inf")), mask=row < queries)
    tl.store(out + place[:, None] * v_width + v_channel[None, :], (sums / safe[:, None]).to(out.dtype.element_ty),
             mask=(row < queries)[:, None] & (v_channel < v_width)[None, :])


@kernel
def row_products(out, upstream, of_lse, rest, rows, v_width, ROWS: tl.constexpr, V_WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """rest = rowsum(∂O ⊙ O) − ∂lse, both contiguous."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, V_WIDTH)
    at, inside = row[:, None] * v_width + channel[None, :], (row < rows)[:, None] & (channel < v_width)[None, :]
    o = tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(upstream + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(rest + row, tl.sum(o * g, 1) - tl.load(of_lse + row, mask=row < rows, other=0.0), mask=row < rows)


@kernel
def of_queries(q, k, v, upstream, lse, rest, dq, q_batch, q_head, q_token, k_batch, k_head, k_token,  # type: ignore[no-untyped-def]
               v_batch, v_head, v_token, heads, group, queries, keys, width, v_width, offset, window, scale, slope,
               BOUNDED: tl.constexpr, WINDOWED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
               V_WIDTH: tl.constexpr):
    """∂q of one tile of queries: Σ over keys of P ⊙ (∂O·Vᵀ − rest) · K, times the slope, which is the scale of the scores."""
    blocks = (queries + QUERIES - 1) // QUERIES
    first_row = tl.program_id(0) % blocks * QUERIES
    owner = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = owner // heads, owner % heads
    row, channel, v_channel = first_row + tl.arange(0, QUERIES), tl.arange(0, WIDTH), tl.arange(0, V_WIDTH)
    k_part, v_part = k + batch * k_batch + head // group * k_head, v + batch * v_batch + head // group * v_head
    q_there = (row < queries)[:, None] & (channel < width)[None, :]
    query = tl.load(q + batch * q_batch + head * q_head + row.to(tl.int64)[:, None] * q_token + channel[None, :], mask=q_there,
                    other=0.0)
    place = owner * queries + row
    above = tl.load(upstream + place[:, None] * v_width + v_channel[None, :],
                    mask=(row < queries)[:, None] & (v_channel < v_width)[None, :], other=0.0)
    level = tl.load(lse + place, mask=row < queries, other=0.0)
    level = tl.where(level == float("-inf"), 0.0, level)
    less = tl.load(rest + place, mask=row < queries, other=0.0)
    sums = tl.zeros((QUERIES, WIDTH), tl.float32)
    first, last = 0, keys
    if BOUNDED:
        last = tl.minimum(keys, first_row + QUERIES + offset)
    if WINDOWED:
        first = tl.maximum(0, first_row + offset - window + 1) // KEYS * KEYS
    for start in range(first, last, KEYS):
        column = start + tl.arange(0, KEYS)
        key = tl.load(k_part + column.to(tl.int64)[:, None] * k_token + channel[None, :],
                      mask=(column < keys)[:, None] & (channel < width)[None, :], other=0.0)
        value = tl.load(v_part + column.to(tl.int64)[:, None] * v_token + v_channel[None, :],
                        mask=(column < keys)[:, None] & (v_channel < v_width)[None, :], other=0.0)
        seen = (column < keys)[None, :]
        if BOUNDED:
            seen = seen & (column[None, :] <= row[:, None] + offset)
        if WINDOWED:
            seen = seen & (column[None, :] > row[:, None] + (offset - window))
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        weights = tl.exp2(tl.where(seen, scores - level[:, None], float("-inf")))
        pulled = weights * (tl.dot(above, tl.trans(value), input_precision="ieee") - less[:, None])
        sums = tl.dot(pulled.to(k.dtype.element_ty), key, sums, input_precision="ieee")
    tl.store(dq + place[:, None] * width + channel[None, :], (sums * slope).to(dq.dtype.element_ty), mask=q_there)


@kernel
def of_keys(q, k, v, upstream, lse, rest, dk, dv, q_batch, q_head, q_token, k_batch, k_head, k_token,  # type: ignore[no-untyped-def]
            v_batch, v_head, v_token, heads, group, queries, keys, width, v_width, offset, window, scale, slope,
            BOUNDED: tl.constexpr, WINDOWED: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
            V_WIDTH: tl.constexpr):
    """∂k and ∂v of one tile of keys: the sums over the queries of all heads of its group, one head after the other."""
    blocks = (keys + KEYS - 1) // KEYS
    first_column = tl.program_id(0) % blocks * KEYS
    owner = (tl.program_id(0) // blocks).to(tl.int64)
    groups = heads // group
    batch, shared = owner // groups, owner % groups
    column, channel, v_channel = first_column + tl.arange(0, KEYS), tl.arange(0, WIDTH), tl.arange(0, V_WIDTH)
    k_there = (column < keys)[:, None] & (channel < width)[None, :]
    v_there = (column < keys)[:, None] & (v_channel < v_width)[None, :]
    key = tl.load(k + batch * k_batch + shared * k_head + column.to(tl.int64)[:, None] * k_token + channel[None, :], mask=k_there,
                  other=0.0)
    value = tl.load(v + batch * v_batch + shared * v_head + column.to(tl.int64)[:, None] * v_token + v_channel[None, :],
                    mask=v_there, other=0.0)
    k_sums, v_sums = tl.zeros((KEYS, WIDTH), tl.float32), tl.zeros((KEYS, V_WIDTH), tl.float32)
    first, last = 0, queries
    if BOUNDED:
        first = tl.maximum(0, first_column - offset) // QUERIES * QUERIES
    if WINDOWED:
        last = tl.minimum(queries, first_column + KEYS - 1 - offset + window)
    for member in range(0, group):
        head = shared * group + member
        q_part = q + batch * q_batch + head * q_head
        own = (batch * heads + head) * queries
        for start in range(first, last, QUERIES):
            row = start + tl.arange(0, QUERIES)
            query = tl.load(q_part + row.to(tl.int64)[:, None] * q_token + channel[None, :],
                            mask=(row < queries)[:, None] & (channel < width)[None, :], other=0.0)
            above = tl.load(upstream + (own + row)[:, None] * v_width + v_channel[None, :],
                            mask=(row < queries)[:, None] & (v_channel < v_width)[None, :], other=0.0)
            level = tl.load(lse + own + row, mask=row < queries, other=0.0)
            level = tl.where(level == float("-inf"), 0.0, level)
            less = tl.load(rest + own + row, mask=row < queries, other=0.0)
            seen = (column < keys)[:, None] & (row < queries)[None, :]
            if BOUNDED:
                seen = seen & (column[:, None] <= row[None, :] + offset)
            if WINDOWED:
                seen = seen & (column[:, None] > row[None, :] + (offset - window))
            scores = tl.dot(key, tl.trans(query), input_precision="ieee") * scale
            weights = tl.exp2(tl.where(seen, scores - level[None, :], float("-inf")))
            v_sums = tl.dot(weights.to(upstream.dtype.element_ty), above, v_sums, input_precision="ieee")
            pulled = weights * (tl.dot(value, tl.trans(above), input_precision="ieee") - less[None, :])
            k_sums = tl.dot(pulled.to(q.dtype.element_ty), query, k_sums, input_precision="ieee")
    place = owner * keys + column.to(tl.int64)
    tl.store(dk + place[:, None] * width + channel[None, :], (k_sums * slope).to(dk.dtype.element_ty), mask=k_there)
    tl.store(dv + place[:, None] * v_width + v_channel[None, :], v_sums.to(dv.dtype.element_ty), mask=v_there)


# ------------------------------------------------------------------------------------------------ launching
@dataclass(frozen=True)
class Options:
    """What one call asks for. offset: the key at query 0 under causality or a window, None without either."""

    scale: float
    offset: int | None = None
    window: int | None = None
    blocks: tuple[int, int] | None = None  # of queries and keys; None: by width and type

    def told(self) -> dict[str, Any]:
        """The two flags that kernels are compiled for."""
        return {"BOUNDED": self.offset is not None, "WINDOWED": self.window is not None}


def tile(x: Tensor, value: Tensor, options: Options, *, backward: bool = False) -> dict[str, int]:
    """Block sizes: a table by head width and type; compiled for compute capability 9.0, at most a few registers spill."""
    width, v_width = (max(16, power_of_two(one.shape[-1])) for one in (x, value))
    found = {"WIDTH": width, "V_WIDTH": v_width, "QUERIES": 64, "KEYS": 32, "num_warps": 4, "num_stages": 2}
    if on_cuda(x):
        names = "QUERIES", "KEYS", "num_warps", "num_stages"
        found |= dict(zip(names, chosen(max(width, v_width), x.dtype, backward), strict=True))
        if not roomy(x):
            found["num_stages"] = max(1, found["num_stages"] - 1)
    if options.blocks is not None:
        found |= dict(zip(("QUERIES", "KEYS"), options.blocks, strict=True))
    return found


def chosen(width: int, dtype: torch.dtype, backward: bool) -> tuple[int, int, int, int]:
    """Queries, keys, warps and stages on a GPU. float32 is multiplied without tensor cores, out of registers: small tiles."""
    if dtype == torch.float32:
        return (32, 32, 8, 1) if width <= 128 else (16, 16, 8, 1)
    if backward:
        return (64, 64, 4, 2) if width <= 64 else (64, 64, 8, 2) if width <= 128 else (32, 32, 8, 1)
    return (128, 64, 4, 3) if width <= 64 else (128, 64, 8, 3) if width <= 128 else (64, 64, 8, 2)


def lying(x: Tensor) -> Tensor:
    """As kernels read it: a last stride of 1, the others as they are."""
    x = staged(x)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def strides(*tensors: Tensor) -> list[int]:
    """Strides of batch, head and token."""
    return [step for x in tensors for step in x.stride()[:3]]


def sizes(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Any, ...]:
    """What every kernel is told after the strides."""
    return (q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3], options.offset or 0,
            options.window or 0, options.scale / LN2)


@launches(attend)
def forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Output like q, and log-sum-exp (B, H, Tq) to the base 2; 0 and −∞ where no key is seen."""
    dtype, (q, k, v) = q.dtype, (lying(one) for one in (q, k, v))
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
    lse, how = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device), tile(q, v, options)
    attend[(tiles(q.shape[2], how["QUERIES"]) * q.shape[0] * q.shape[1],)](
        q, k, v, out, lse, *strides(q, k, v), *sizes(q, k, v, options), **options.told(), **how)
    return out.to(dtype), lse


@launches(row_products, of_queries, of_keys)
def backward(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, upstream: Tensor, of_lse: Tensor,
             options: Options) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v; lse to the base 2, of_lse to that of the natural one."""
    dtype, (q, k, v) = q.dtype, (lying(one) for one in (q, k, v))
    above, how = staged(upstream).contiguous(), tile(q, v, options, backward=True)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    rest, rows = torch.empty_like(lse), lse.numel()
    height = max(1, 4096 // how["V_WIDTH"])
    row_products[(tiles(rows, height),)](staged(out).contiguous(), above, of_lse.float().contiguous(), rest, rows, v.shape[3],
                                         ROWS=height, V_WIDTH=how["V_WIDTH"], num_warps=4)
    told = *strides(q, k, v), *sizes(q, k, v, options), options.scale
    of_queries[(tiles(q.shape[2], how["QUERIES"]) * q.shape[0] * q.shape[1],)](
        q, k, v, above, lse, rest, dq, *told, **options.told(), **how)
    of_keys[(tiles(k.shape[2], how["KEYS"]) * k.shape[0] * k.shape[1],)](
        q, k, v, above, lse, rest, dk, dv, *told, **options.told(), **how)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype)


class Attention(torch.autograd.Function):
    """Forward and backward, joined for autograd: the output, and the natural log-sum-exp in float32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        out, lse = forward(q, k, v, options)
        ctx.options = options
        ctx.save_for_backward(q, k, v, out, lse)
        return out, lse * LN2

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor, of_lse: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        return *backward(q, k, v, out, lse, upstream, of_lse, ctx.options), None


def attended(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Both results, after what the kernels do not do is refused."""
    supported(q, k, v)
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"k.shape[1]={k.shape[1]} must divide the number of query heads, got {q.shape[1]}; repeat or drop heads")
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        raise NotImplementedError(f"q.shape[-1], v.shape[-1]={q.shape[-1], v.shape[-1]} must be at most {WIDEST}")
    return Attention.apply(q, k, v, options)


@assay.implements("attention", name="triton-attention", arithmetic=FAST, version=VERSION, deep=INTERPRETED)
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None,
) -> Tensor:
    """The last query at the last key."""
    offset = k.shape[2] - q.shape[2] if causal or window is not None else None
    return attended(q, k, v, Options(scale_of(q, scale), offset, window))[0]


@assay.implements("attention", name="triton-attention-top-left", conventions={"causal_alignment": "top_left"}, arithmetic=FAST,
                  version=VERSION, deep=INTERPRETED)
def attention_top_left(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None,
) -> Tensor:
    """Query 0 at key 0."""
    return attended(q, k, v, Options(scale_of(q, scale), 0 if causal or window is not None else None, window))[0]


@assay.implements("blockwise_attention", name="triton-blockwise", limits={"block_q": {16, 32, 64}, "block_k": {16, 32, 64}},
                  arithmetic=FAST, version=VERSION, deep=INTERPRETED)
def blockwise(
    q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False, scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Tiles that tensor cores take: powers of two from 16; the log-sum-exp in float32."""
    offset = k.shape[2] - q.shape[2] if causal else None
    return attended(q, k, v, Options(scale_of(q, scale), offset, blocks=(block_q, block_k)))
