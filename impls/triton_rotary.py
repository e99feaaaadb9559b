"""Rotary position embedding in Triton: both pairings, the gradient by the inverse rotation.

Angles, cosines and sines are float32 tables that torch makes, one row a position; the kernel reads each element of x once.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import INTERPRETED, VERSION, kernel, launches, on_cuda, power_of_two, staged, supported, tiles

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)
WIDEST = 1024  # channels of a head


@kernel
def turn(x, cos, sin, y, tokens, heads, length, width, turned, x_batch, x_head, x_token, x_channel,  # type: ignore[no-untyped-def]
         table_batch, sign, HALVES: tl.constexpr, REST: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
         BEYOND: tl.constexpr):
    """y (B·H·T, D), contiguous: pair (a, b) becomes (a·cos − b·sin, b·cos + a·sin); channels beyond those that turn pass."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    token, batch = row % length, row // length // heads
    source = x + batch * x_batch + (row // length % heads) * x_head + token * x_token
    pair = tl.arange(0, PAIRS)[None, :]
    pairs = turned // 2
    inside = (row < tokens) & (pair < pairs)
    if HALVES:
        first, second = pair, pair + pairs
    else:
        first, second = 2 * pair, 2 * pair + 1
    a = tl.load(source + first * x_channel, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + second * x_channel, mask=inside, other=0.0).to(tl.float32)
    place = batch * table_batch + token * pairs + pair
    c = tl.load(cos + place, mask=inside, other=0.0)
    s = tl.load(sin + place, mask=inside, other=0.0) * sign
    target = y + row * width
    tl.store(target + first, (a * c - b * s).to(y.dtype.element_ty), mask=inside)
    tl.store(target + second, (b * c + a * s).to(y.dtype.element_ty), mask=inside)
    if REST:
        channel = turned + tl.arange(0, BEYOND)[None, :]
        passing = (row < tokens) & (channel < width)
        tl.store(target + channel, tl.load(source + channel * x_channel, mask=passing, other=0.0), mask=passing)


@launches(turn)
def rotated(x: Tensor, cos: Tensor, sin: Tensor, turned: int, sign: float, halves: bool) -> Tensor:
    """Every token turned by its angles, or back where sign is −1; cos, sin (T, R/2) or (B, T, R/2) in float32."""
    batch, heads, length, width = x.shape
    given = staged(x)
    y = torch.empty(x.shape, dtype=given.dtype, device=x.device)
    pairs, beyond = power_of_two(turned // 2), power_of_two(max(1, width - turned))
    height = max(1, (1024 if on_cuda(x) else 4096) // max(pairs, beyond))
    turn[(tiles(batch * heads * length, height),)](
        given, cos, sin, y, batch * heads * length, max(1, heads), max(1, length), width, turned, *given.stride(),
        cos[0].numel() if cos.dim() == 3 and len(cos) else 0, sign, HALVES=halves, REST=turned < width, ROWS=height, PAIRS=pairs,
        BEYOND=beyond, num_warps=4)
    return y.to(x.dtype)


class Rotated(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, turned: int, halves: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.how = turned, halves
        return rotated(x, cos, sin, turned, 1.0, halves)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        (cos, sin), (turned, halves) = ctx.saved_tensors, ctx.how
        return rotated(upstream, cos, sin, turned, -1.0, halves), None, None, None, None


@assay.implements("rotary", name="triton-rotary", offers={"negative_positions"}, version=VERSION, deep=INTERPRETED)
def rotary(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None,
) -> Tensor:
    """No scaling of the frequencies."""
    supported(x)
    width = x.shape[-1]
    turned = width if rotary_dim is None else rotary_dim
    if turned % 2 or not 0 < turned <= width:
        raise ValueError(f"rotary_dim={turned} must be even and in 2 … {width}, got {turned}; turn fewer channels")
    if pairing not in ("interleaved", "half"):
        raise ValueError(f"pairing={pairing!r} must be interleaved or half, got {pairing!r}; choose one")
    if width > WIDEST:
        raise NotImplementedError(f"x.shape[-1]={width} must be at most {WIDEST}")
    exponents = torch.arange(0, turned, 2, device=x.device, dtype=torch.float32) / turned
    angles = positions.float().unsqueeze(-1).contiguous() * base ** -exponents
    return Rotated.apply(x, angles.cos(), angles.sin(), turned, pairing == "half")
