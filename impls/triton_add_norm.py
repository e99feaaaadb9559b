"""A residual added and the sum normalised in Triton: one kernel forward, one backward, each reading its inputs once.

The norm is that of the sum in float32, before it is stored; the backward reads the stored sum, and adds the sum's own gradient in
float32. The weight's gradient is added up as in `triton_norms`.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import INTERPRETED, VERSION, kernel, launches, on_cuda, processors, rows_of, staged, supported, tiles
from assay.impls.triton_norms import SINGLE, sizes

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)


@kernel
def add_normalise(x, residual, weight, y, summed, roots, rows, columns, x_step, residual_step,  # type: ignore[no-untyped-def]
                  out_step, eps, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """summed = x + residual; y = summed/√(mean of squares + eps)·weight; kept: 1/√… of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (at < columns)
    total = tl.load(x + row * x_step + at, mask=inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row * residual_step + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(summed + row * out_step + at, total.to(summed.dtype.element_ty), mask=inside)
    root = tl.div_rn(tl.full((ROWS, 1), 1.0, tl.float32), tl.sqrt_rn(tl.sum(total * total, 1, keep_dims=True) / columns + eps))
    tl.store(roots + row, root, mask=row < rows)
    result = total * root * tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(y + row * out_step + at, result.to(y.dtype.element_ty), mask=inside)


@kernel
def add_normalise_backward(summed, weight, of_y, of_sum, slopes, of_weight, roots, rows, columns,  # type: ignore[no-untyped-def]
                           step, y_step, sum_step, slope_step, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """slopes = g_s + r·(h − ŝ·mean(h·ŝ)), h = weight·g_y, for both addends; of_weight (programs, C): own sums of g_y·ŝ."""
    at = tl.arange(0, COLUMNS)[None, :]
    scale = tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    scales = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (at < columns)
        g = tl.load(of_y + row * y_step + at, mask=inside, other=0.0).to(tl.float32)
        root = tl.load(roots + row, mask=row < rows, other=0.0)
        normal = tl.load(summed + row * step + at, mask=inside, other=0.0).to(tl.float32) * root
        scales += g * normal
        h = g * scale
        slope = (h - normal * (tl.sum(h * normal, 1, keep_dims=True) / columns)) * root
        slope += tl.load(of_sum + row * sum_step + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(slopes + row * slope_step + at, slope.to(slopes.dtype.element_ty), mask=inside)
    own = tl.program_id(0).to(tl.int64) * columns
    tl.store(of_weight + own + at, tl.sum(scales, 0, keep_dims=True), mask=at < columns)


@launches(add_normalise)
def forward(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised rows, the sums, and each row's reciprocal root."""
    rows, others = rows_of(x), rows_of(residual)
    tile, (y, summed) = sizes(rows), (torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(2))
    roots = torch.empty(len(rows), dtype=torch.float32, device=x.device)
    add_normalise[(tiles(len(rows), tile["ROWS"]),)](rows, others, staged(weight).contiguous(), y, summed, roots, *rows.shape,
                                                     rows.stride(0), others.stride(0), y.stride(0), eps, **tile)
    return y.to(x.dtype).view(x.shape), summed.to(x.dtype).view(x.shape), roots


@launches(add_normalise_backward)
def backward(of_y: Tensor, of_sum: Tensor, summed: Tensor, weight: Tensor, roots: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of either addend, and the weight's."""
    rows, g, direct = (rows_of(one) for one in (summed, of_y, of_sum))
    tile, slopes = sizes(rows), torch.empty_like(rows, memory_format=torch.contiguous_format)
    programs = min(max(1, tiles(len(rows), tile["ROWS"])), 4 * processors(rows) if on_cuda(rows) else 2)
    parts = torch.empty(programs, rows.shape[1], dtype=torch.float32, device=rows.device)
    add_normalise_backward[(programs,)](rows, staged(weight).contiguous(), g, direct, slopes, parts, roots, *rows.shape,
                                        *(one.stride(0) for one in (rows, g, direct, slopes)), **tile)
    return slopes.to(summed.dtype).view(summed.shape), parts.sum(0).to(weight.dtype)


class AddNormalised(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, summed, roots = forward(x, residual, weight, eps)
        ctx.save_for_backward(summed, weight, roots)
        return y, summed

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_y: Tensor, of_sum: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        both, of_weight = backward(of_y, of_sum, *ctx.saved_tensors)
        return both, both, of_weight, None


@assay.implements("add_rms_norm", name="triton-add-rms-norm", arithmetic=SINGLE, version=VERSION, deep=INTERPRETED)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """The sum is rounded on its way to memory alone."""
    supported(x, residual, weight)
    y, summed = AddNormalised.apply(x, residual, weight, eps)
    return y, summed
