"""Softmax in Triton: several rows a program where they are short, an online maximum and sum where a row is longer than a block."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import FAST, INTERPRETED, VERSION, kernel, launches, on_cuda, power_of_two, rows_of, supported, tiles

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)
ELEMENTS = 4096  # of a tile


@kernel
def weigh(x, y, rows, columns, x_step, y_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """y = softmax(x) by rows: largest element and sum in one pass over the blocks of a row, results in a second."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.where(row < rows, row, rows - 1)[:, None]  # rows beyond the last are the last one again
    column = tl.arange(0, COLUMNS)[None, :]
    x_row, y_row = x + row * x_step, y + row * y_step
    top = tl.full((ROWS, 1), float("-inf"), tl.float32)
    total = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, columns, COLUMNS):
        at = start + column
        z = tl.load(x_row + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(z, 1, keep_dims=True))
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift), 1, keep_dims=True)
        top = new
    shift = tl.where(top == float("-inf"), 0.0, top)  # a row of -inf alone is 0/0: NaN, by convention
    for start in range(0, columns, COLUMNS):
        at = start + column
        z = tl.load(x_row + at, mask=at < columns, other=float("-inf")).to(tl.float32)
        share = tl.exp(z - shift) / total
        tl.store(y_row + at, share.to(y.dtype.element_ty), mask=at < columns)


@kernel
def weigh_backward(y, upstream, dx, rows, columns, y_step, up_step, dx_step,  # type: ignore[no-untyped-def]
                   ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """dx = y ⊙ (g − Σ g·y)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.where(row < rows, row, rows - 1)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    y_row, up_row, dx_row = y + row * y_step, upstream + row * up_step, dx + row * dx_step
    inner = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, columns, COLUMNS):
        at = start + column
        p = tl.load(y_row + at, mask=at < columns, other=0.0).to(tl.float32)
        g = tl.load(up_row + at, mask=at < columns, other=0.0).to(tl.float32)
        inner += tl.sum(p * g, 1, keep_dims=True)
    for start in range(0, columns, COLUMNS):
        at = start + column
        p = tl.load(y_row + at, mask=at < columns, other=0.0).to(tl.float32)
        g = tl.load(up_row + at, mask=at < columns, other=0.0).to(tl.float32)
        tl.store(dx_row + at, (p * (g - inner)).to(dx.dtype.element_ty), mask=at < columns)


def sizes(rows: Tensor) -> dict[str, int]:
    """The tile: all of a short row, and so many rows that the tile is worth a program."""
    columns = min(power_of_two(rows.shape[1]), ELEMENTS if on_cuda(rows) else 256)
    height = max(1, (1024 if on_cuda(rows) else 2048) // columns)
    return {"ROWS": min(height, power_of_two(len(rows))), "COLUMNS": columns, "num_warps": 8 if columns > 2048 else 4}


@launches(weigh)
def forward(x: Tensor) -> Tensor:
    """By rows of the last axis."""
    rows = rows_of(x)
    y, tile = torch.empty_like(rows, memory_format=torch.contiguous_format), sizes(rows)
    weigh[(tiles(len(rows), tile["ROWS"]),)](rows, y, *rows.shape, rows.stride(0), y.stride(0), **tile)
    return y.to(x.dtype).view(x.shape)


@launches(weigh_backward)
def backward(y: Tensor, upstream: Tensor) -> Tensor:
    """Out of the result alone."""
    p, g = rows_of(y), rows_of(upstream)
    dx, tile = torch.empty_like(p, memory_format=torch.contiguous_format), sizes(p)
    weigh_backward[(tiles(len(p), tile["ROWS"]),)](p, g, dx, *p.shape, p.stride(0), g.stride(0), dx.stride(0), **tile)
    return dx.to(y.dtype).view(y.shape)


class Softmax(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = forward(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return backward(ctx.saved_tensors[0], upstream)


@assay.implements("softmax", name="triton-softmax", arithmetic=FAST, version=VERSION, deep=INTERPRETED)
def softmax(x: Tensor, *, dim: int = -1) -> Tensor:
    """Any axis: rows of another than the last are copied."""
    supported(x)
    return Softmax.apply(x.movedim(dim, -1)).movedim(-1, dim)
