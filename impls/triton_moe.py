"""A mixture of experts with grouped products in Triton: all experts in one launch, over tokens that lie in their order.

Source: Gale et al., "MegaBlocks", section 5, arXiv 2211.15841. A tile of rows never crosses from one expert to the next; which
expert a tile is for is worked out on the device, so that nothing waits for it, and tiles that there might have been do nothing.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import FAST, INTERPRETED, VERSION, kernel, launches, on_cuda, rows_of, staged, supported, tiles
from assay.impls.grouped_moe import Shared, routed
from assay.impls.triton_swiglu import gated

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)


@kernel
def multiply(x, weight, out, tile_expert, tile_start, tile_end, inner, columns, x_step,  # type: ignore[no-untyped-def]
             w_expert, w_column, w_inner, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    """out[s] = x[s] · weight[e(s)]ᵀ for one tile of rows and one of columns; weight by its strides, so transposed too."""
    start, end = tl.load(tile_start + tl.program_id(0)), tl.load(tile_end + tl.program_id(0))
    expert = tl.load(tile_expert + tl.program_id(0)).to(tl.int64)
    if start < end:
        row, column = start + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        wide = column.to(tl.int64)
        sums = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in range(0, inner, INNER):
            at = first + tl.arange(0, INNER)
            a = tl.load(x + row.to(tl.int64)[:, None] * x_step + at[None, :], mask=(row < end)[:, None] & (at < inner)[None, :],
                        other=0.0)
            b = tl.load(weight + expert * w_expert + at.to(tl.int64)[:, None] * w_inner + wide[None, :] * w_column,
                        mask=(at < inner)[:, None] & (column < columns)[None, :], other=0.0)
            sums = tl.dot(a, b, sums, input_precision="ieee")
        tl.store(out + row.to(tl.int64)[:, None] * columns + column[None, :], sums.to(out.dtype.element_ty),
                 mask=(row < end)[:, None] & (column < columns)[None, :])


@kernel
def multiply_rows(upstream, x, of_weight, ends, rows_out, rows_in, up_step, x_step,  # type: ignore[no-untyped-def]
                  OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr):
    """of_weight[e] = Σ upstream[s]ᵀ · x[s] over the rows of expert e: (E, F, C), one tile of it."""
    expert = tl.program_id(0).to(tl.int64)
    start = tl.load(ends + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends + expert)
    left, right = tl.program_id(1) * OUT + tl.arange(0, OUT), tl.program_id(2) * IN + tl.arange(0, IN)
    sums = tl.zeros((OUT, IN), tl.float32)
    for first in range(start, end, ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        g = tl.load(upstream + row[:, None] * up_step + left[None, :], mask=(row < end)[:, None] & (left < rows_out)[None, :],
                    other=0.0)
        a = tl.load(x + row[:, None] * x_step + right[None, :], mask=(row < end)[:, None] & (right < rows_in)[None, :], other=0.0)
        sums = tl.dot(tl.trans(g), a, sums, input_precision="ieee")
    tl.store(of_weight + (expert * rows_out + left.to(tl.int64)[:, None]) * rows_in + right[None, :],
             sums.to(of_weight.dtype.element_ty), mask=(left < rows_out)[:, None] & (right < rows_in)[None, :])


def tile_of(x: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Rows, columns, inner elements; and what the compiler is told."""
    if not on_cuda(x):
        return 16, 32, 32, {}
    if x.dtype == torch.float32:
        return 32, 64, 32, {"num_warps": 4, "num_stages": 2}
    return 64, 128, 64, {"num_warps": 4, "num_stages": 3}


def placed(ends: Tensor, rows: int, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Expert, first row and end of every tile there might be; those there are not end where they start."""
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    last = ((ends - starts + height - 1) // height).cumsum(0)  # tiles up to and with each expert
    tile = torch.arange(tiles(rows, height) + len(ends), device=ends.device)
    expert = torch.searchsorted(last, tile, right=True).clamp_max(len(ends) - 1)
    before = torch.where(expert > 0, last[expert - 1], 0)
    start = starts[expert] + (tile - before) * height
    end = torch.where(tile < last[-1], torch.minimum(start + height, ends[expert]), start)
    return expert.int(), start.int(), end.int()


@launches(multiply)
def grouped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """(S, F) of x (S, C) and weight (E, F, C), in any strides."""
    rows, w = rows_of(x), staged(weight)
    height, columns, inner, told = tile_of(rows)
    out = torch.empty(len(rows), w.shape[1], dtype=rows.dtype, device=rows.device)
    where = placed(ends, len(rows), height)
    multiply[(len(where[0]), tiles(w.shape[1], columns))](
        rows, w, out, *where, w.shape[2], w.shape[1], rows.stride(0), *w.stride(), ROWS=height, COLUMNS=columns, INNER=inner,
        **told)
    return out.to(x.dtype)


@launches(multiply_rows)
def of_weights(upstream: Tensor, x: Tensor, ends: Tensor, like: Tensor) -> Tensor:
    """(E, F, C): every expert's own sum of outer products."""
    g, rows = rows_of(upstream), rows_of(x)
    height, columns, _, told = tile_of(rows)
    found = torch.empty(like.shape, dtype=rows.dtype, device=rows.device)
    grid = len(like), tiles(like.shape[1], height), tiles(like.shape[2], columns)
    multiply_rows[grid](g, rows, found, ends.int(), like.shape[1], like.shape[2], g.stride(0), rows.stride(0), OUT=height,
                        IN=columns, ROWS=32, **told)
    return found.to(like.dtype)


class Grouped(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return grouped(x, weight, ends)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, ends = ctx.saved_tensors
        return grouped(upstream, weight.mT, ends), of_weights(upstream, x, ends, weight), None


def experts(sent: Tensor, ends: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Every expert on its own run of rows."""
    hidden = gated(Grouped.apply(sent, w_gate, ends), Grouped.apply(sent, w_up, ends))
    out: Tensor = Grouped.apply(hidden, w_down, ends)
    return out


def multiply_adds(x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int,
                  shared: Shared | None = None) -> int:
    """What the kernels hide from the counter: the router's, those of K experts a token, and those of the shared one."""
    tokens, width = x[..., 0].numel(), x.shape[-1]
    chosen = top_k * (w_gate.shape[1] + w_up.shape[1] + w_down.shape[2])
    always = 0 if shared is None else sum(w.numel() for w in shared) // width
    return tokens * width * (chosen + always + len(w_router))


@assay.implements("moe", name="triton-moe", arithmetic=FAST, cost=multiply_adds, version=VERSION, deep=INTERPRETED)
def moe(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, shared: Shared | None = None,
) -> Tensor:
    """Routing and sums by torch, the shared expert too."""
    supported(x)
    return routed(x, w_router, (w_gate, w_up, w_down), top_k, shared, experts)
