"""RMSNorm and LayerNorm in Triton: a row is held by one program, statistics are float32.

The gradients of weight and bias are sums over all rows: every program adds up its own rows, in order, and the sums of the programs
are added up after that, in order too, so that a repeat gives the same bits.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import (
    INTERPRETED,
    VERSION,
    kernel,
    launches,
    on_cuda,
    power_of_two,
    processors,
    rows_of,
    staged,
    supported,
    tiles,
)

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)
LONGEST = 1 << 14  # elements of a row: more do not fit the registers of one program
SINGLE = {"internal": "float32"}


@kernel
def normalise(x, weight, bias, y, means, roots, rows, columns, x_step, y_step, eps,  # type: ignore[no-untyped-def]
              CENTRED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """y = (x − mean)/√(variance + eps)·weight + bias, or without mean and bias; kept: each row's mean and 1/√…."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (at < columns)
    value = tl.load(x + row * x_step + at, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        mean = tl.sum(value, 1, keep_dims=True) / columns
        value = tl.where(inside, value - mean, 0.0)
        tl.store(means + row, mean, mask=row < rows)
    root = tl.div_rn(tl.full((ROWS, 1), 1.0, tl.float32), tl.sqrt_rn(tl.sum(value * value, 1, keep_dims=True) / columns + eps))
    tl.store(roots + row, root, mask=row < rows)
    result = value * root * tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    if CENTRED:
        result += tl.load(bias + at, mask=at < columns, other=0.0).to(tl.float32)
    tl.store(y + row * y_step + at, result.to(y.dtype.element_ty), mask=inside)


@kernel
def normalise_backward(x, weight, upstream, dx, of_weight, of_bias, means, roots, rows, columns,  # type: ignore[no-untyped-def]
                       x_step, up_step, dx_step, CENTRED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """dx = r·(h − x̂·mean(h·x̂) − mean(h)), h = weight·g; of_weight and of_bias (programs, C): sums of g·x̂ and g over own rows."""
    at = tl.arange(0, COLUMNS)[None, :]
    scale = tl.load(weight + at, mask=at < columns, other=0.0).to(tl.float32)
    scales, shifts = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (at < columns)
        g = tl.load(upstream + row * up_step + at, mask=inside, other=0.0).to(tl.float32)
        normal = tl.load(x + row * x_step + at, mask=inside, other=0.0).to(tl.float32)
        root = tl.load(roots + row, mask=row < rows, other=0.0)
        if CENTRED:
            normal = tl.where(inside, normal - tl.load(means + row, mask=row < rows, other=0.0), 0.0)
            shifts += g
        normal = normal * root
        scales += g * normal
        h = g * scale
        slope = h - normal * (tl.sum(h * normal, 1, keep_dims=True) / columns)
        if CENTRED:
            slope -= tl.sum(h, 1, keep_dims=True) / columns
        tl.store(dx + row * dx_step + at, (slope * root).to(dx.dtype.element_ty), mask=inside)
    own = tl.program_id(0).to(tl.int64) * columns
    tl.store(of_weight + own + at, tl.sum(scales, 0, keep_dims=True), mask=at < columns)
    if CENTRED:
        tl.store(of_bias + own + at, tl.sum(shifts, 0, keep_dims=True), mask=at < columns)


def sizes(rows: Tensor) -> dict[str, int]:
    """The tile: whole rows, and several where they are short."""
    columns = power_of_two(rows.shape[1])
    if columns > LONGEST:
        raise NotImplementedError(f"x.shape[-1]={rows.shape[1]} must be at most {LONGEST}")
    height = min(max(1, 1024 // columns), power_of_two(len(rows)))
    return {"ROWS": height, "COLUMNS": columns, "num_warps": 4 if columns <= 2048 else 8 if columns <= 8192 else 16}


@launches(normalise)
def forward(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Result, and of each row the mean (where there is a bias) and the reciprocal root."""
    rows = rows_of(x)
    tile, y = sizes(rows), torch.empty_like(rows, memory_format=torch.contiguous_format)
    means, roots = (torch.empty(len(rows), dtype=torch.float32, device=x.device) for _ in range(2))
    scale, shift = (staged(one).contiguous() for one in (weight, weight if bias is None else bias))
    normalise[(tiles(len(rows), tile["ROWS"]),)](rows, scale, shift, y, means, roots, *rows.shape, rows.stride(0), y.stride(0), eps,
                                                 CENTRED=bias is not None, **tile)
    return y.to(x.dtype).view(x.shape), means, roots


@launches(normalise_backward)
def backward(upstream: Tensor, x: Tensor, weight: Tensor, means: Tensor, roots: Tensor,
             *, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias; the last is nothing without a bias."""
    rows, g = rows_of(x), rows_of(upstream)
    tile, dx = sizes(rows), torch.empty_like(rows, memory_format=torch.contiguous_format)
    programs = min(max(1, tiles(len(rows), tile["ROWS"])), 4 * processors(x) if on_cuda(x) else 2)
    parts = torch.empty(2 if centred else 1, programs, rows.shape[1], dtype=torch.float32, device=x.device)
    normalise_backward[(programs,)](rows, staged(weight).contiguous(), g, dx, parts[0], parts[-1], means, roots, *rows.shape,
                                    rows.stride(0), g.stride(0), dx.stride(0), CENTRED=centred, **tile)
    sums = parts.sum(1).to(weight.dtype)
    return dx.to(x.dtype).view(x.shape), sums[0], sums[-1]


class Normalised(torch.autograd.Function):
    """Forward and backward, joined for autograd; without a bias nothing is centred."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        y, means, roots = forward(x, weight, bias, eps)
        ctx.save_for_backward(x, weight, means, roots)
        ctx.centred = bias is not None
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        dx, of_weight, of_bias = backward(upstream, *ctx.saved_tensors, centred=ctx.centred)
        return dx, of_weight, of_bias if ctx.centred else None, None


@assay.implements("rms_norm", name="triton-rms-norm", arithmetic=SINGLE, version=VERSION, deep=INTERPRETED)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The weight multiplies in float32, before the one rounding."""
    supported(x, weight)
    return Normalised.apply(x, weight, None, eps)


@assay.implements("layer_norm", name="triton-layer-norm", arithmetic=SINGLE, version=VERSION, deep=INTERPRETED)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The variance is that of the differences from the mean, in a second pass over the registers."""
    supported(x, weight, bias)
    return Normalised.apply(x, weight, bias, eps)
