"""Cross-entropy in Triton: online over the vocabulary, and fused with the projection to it, whose logits are never made.

The fused loss takes hidden states and the weight of the output projection. Forward: a program has a tile of rows and a part of the
vocabulary, and keeps a maximum and a sum. Backward: a chunk of the vocabulary at a time, the logits' gradient of that chunk is made
anew and multiplied into both gradients: memory is N·CHUNK, whatever the vocabulary.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import (
    FAST,
    INTERPRETED,
    VERSION,
    kernel,
    launches,
    on_cuda,
    power_of_two,
    rows_of,
    staged,
    supported,
    tiles,
)

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)
IGNORED = -100
CHUNK = 4096  # ids whose logits' gradients are there at once


@kernel
def sum_up(logits, lse, rows, size, step, ROWS: tl.constexpr, IDS: tl.constexpr):  # type: ignore[no-untyped-def]
    """lse = log Σ exp by rows, online."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, IDS)[None, :]
    part = logits + row * step
    top, total = tl.full((ROWS, 1), float("-inf"), tl.float32), tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, size, IDS):
        z = tl.load(part + start + at, mask=(row < rows) & (start + at < size), other=float("-inf")).to(tl.float32)
        new = tl.maximum(top, tl.max(z, 1, keep_dims=True))
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift), 1, keep_dims=True)
        top = new
    tl.store(lse + row, top + tl.log(total), mask=row < rows)


@kernel
def slope_of_logits(logits, targets, slopes, lse, gradient, rows, size, step,  # type: ignore[no-untyped-def]
                    ROWS: tl.constexpr, IDS: tl.constexpr):
    """gradient = slope · (softmax − one at the target); rows that do not count have a slope of 0."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.program_id(1) * IDS + tl.arange(0, IDS)[None, :]
    inside = (row < rows) & (at < size)
    z = tl.load(logits + row * step + at, mask=inside, other=float("-inf")).to(tl.float32)
    slope = tl.load(slopes + row, mask=row < rows, other=0.0)
    target = tl.load(targets + row, mask=row < rows, other=-1)
    p = tl.exp(z - tl.load(lse + row, mask=row < rows, other=0.0))
    found = tl.where(slope == 0.0, 0.0, slope * (p - tl.where(at == target, 1.0, 0.0)))
    tl.store(gradient + row * size + at, found.to(gradient.dtype.element_ty), mask=inside)


@kernel
def project_and_sum(hidden, weight, targets, tops, totals, hits, rows, size, width, h_step, w_step, part,  # type: ignore[no-untyped-def]
                    ROWS: tl.constexpr, IDS: tl.constexpr, WIDTH: tl.constexpr):
    """Of a tile of rows and a part of the vocabulary: largest logit, Σ exp beyond it, and the target's logit where it is there.

    tops, totals, hits: (N, parts). hits is 0 where the target lies in another part.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there, wide = row < rows, row.to(tl.int64)
    target = tl.load(targets + row, mask=there, other=-1)
    top, total = tl.full((ROWS,), float("-inf"), tl.float32), tl.zeros((ROWS,), tl.float32)
    hit = tl.zeros((ROWS,), tl.float32)
    first = tl.program_id(1) * part
    for start in range(first, tl.minimum(size, first + part), IDS):
        ids = start + tl.arange(0, IDS)
        z = tl.zeros((ROWS, IDS), tl.float32)
        for channels in range(0, width, WIDTH):
            channel = channels + tl.arange(0, WIDTH)
            h = tl.load(hidden + wide[:, None] * h_step + channel[None, :], mask=there[:, None] & (channel < width)[None, :],
                        other=0.0)
            w = tl.load(weight + ids.to(tl.int64)[:, None] * w_step + channel[None, :],
                        mask=(ids < size)[:, None] & (channel < width)[None, :], other=0.0)
            z = tl.dot(h, tl.trans(w), z, input_precision="ieee")
        z = tl.where((ids < size)[None, :], z, float("-inf"))
        hit += tl.sum(tl.where(ids[None, :] == target[:, None], z, 0.0), 1)
        new = tl.maximum(top, tl.max(z, 1))
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(z - shift[:, None]), 1)
        top = new
    place = wide * tl.num_programs(1) + tl.program_id(1)
    tl.store(tops + place, top, mask=there)
    tl.store(totals + place, total, mask=there)
    tl.store(hits + place, hit, mask=there)


@kernel
def slope_of_chunk(hidden, weight, targets, slopes, lse, gradient, rows, first, count, width, h_step, w_step,  # type: ignore[no-untyped-def]
                   ROWS: tl.constexpr, IDS: tl.constexpr, WIDTH: tl.constexpr):
    """gradient (N, count): that of the logits of the ids first … first + count − 1, which are made anew."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.program_id(1) * IDS + tl.arange(0, IDS)
    there, wide, ids = row < rows, row.to(tl.int64), (first + at).to(tl.int64)
    z = tl.zeros((ROWS, IDS), tl.float32)
    for channels in range(0, width, WIDTH):
        channel = channels + tl.arange(0, WIDTH)
        h = tl.load(hidden + wide[:, None] * h_step + channel[None, :], mask=there[:, None] & (channel < width)[None, :], other=0.0)
        w = tl.load(weight + ids[:, None] * w_step + channel[None, :], mask=(at < count)[:, None] & (channel < width)[None, :],
                    other=0.0)
        z = tl.dot(h, tl.trans(w), z, input_precision="ieee")
    target = tl.load(targets + row, mask=there, other=-1)
    slope = tl.load(slopes + row, mask=there, other=0.0)[:, None]
    p = tl.exp(z - tl.load(lse + row, mask=there, other=0.0)[:, None])
    found = tl.where(slope == 0.0, 0.0, slope * (p - tl.where(ids[None, :] == target[:, None], 1.0, 0.0)))
    tl.store(gradient + wide[:, None] * count + at[None, :], found.to(gradient.dtype.element_ty),
             mask=there[:, None] & (at < count)[None, :])


# ------------------------------------------------------------------------------------------------ of logits
def sizes(rows: Tensor) -> dict[str, int]:
    """The tile of kernels that read logits."""
    ids = min(power_of_two(rows.shape[1]), 4096 if on_cuda(rows) else 256)
    return {"ROWS": min(power_of_two(len(rows)), max(1, 2048 // ids)), "IDS": ids, "num_warps": 8 if ids > 2048 else 4}


@launches(sum_up)
def log_sum_exp(rows: Tensor) -> Tensor:
    """(N,) in float32."""
    lse, tile = torch.empty(len(rows), dtype=torch.float32, device=rows.device), sizes(rows)
    sum_up[(tiles(len(rows), tile["ROWS"]),)](rows, lse, *rows.shape, rows.stride(0), **tile)
    return lse


@launches(slope_of_logits)
def gradient_of(rows: Tensor, targets: Tensor, slopes: Tensor, lse: Tensor) -> Tensor:
    """Like the logits."""
    gradient, tile = torch.empty_like(rows, memory_format=torch.contiguous_format), sizes(rows)
    grid = tiles(len(rows), tile["ROWS"]), tiles(rows.shape[1], tile["IDS"])
    slope_of_logits[grid](rows, targets, slopes, lse, gradient, *rows.shape, rows.stride(0), **tile)
    return gradient


class OfLogits(torch.autograd.Function):
    """(N,) lse − z at the target, 0 in rows that do not count."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, counted: Tensor) -> Tensor:
        lse = log_sum_exp(rows_of(logits))
        ctx.save_for_backward(logits, targets, counted, lse)
        return torch.where(counted, lse - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1).float(), 0.0)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        logits, targets, counted, lse = ctx.saved_tensors
        return gradient_of(rows_of(logits), targets, torch.where(counted, upstream, 0.0), lse).to(logits.dtype), None, None


# ------------------------------------------------------------------------------------------------ of hidden states
def tile_of(hidden: Tensor) -> dict[str, int]:
    """The tile of kernels that multiply: small in float32, which has no tensor cores."""
    if not on_cuda(hidden):
        return {"ROWS": 16, "IDS": 32, "WIDTH": 32}
    if hidden.dtype == torch.float32:
        return {"ROWS": 32, "IDS": 64, "WIDTH": 32, "num_warps": 4, "num_stages": 2}
    return {"ROWS": 128, "IDS": 128, "WIDTH": 64, "num_warps": 8, "num_stages": 3}


@launches(project_and_sum)
def projected(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) log-sum-exp of the logits hidden·weightᵀ, and the target's logit."""
    tile, size = tile_of(hidden), len(weight)
    parts = max(1, min(8, size // (2 * tile["IDS"])))  # enough programs where there are few rows
    part = tiles(size, parts * tile["IDS"]) * tile["IDS"]
    tops, totals, hits = (torch.empty(len(hidden), parts, dtype=torch.float32, device=hidden.device) for _ in range(3))
    project_and_sum[(tiles(len(hidden), tile["ROWS"]), parts)](
        hidden, weight, targets, tops, totals, hits, len(hidden), size, hidden.shape[1], hidden.stride(0), weight.stride(0), part,
        **tile)
    top = tops.amax(1)
    return top + (totals * (tops - top.unsqueeze(1)).exp()).sum(1).log(), hits.sum(1)


@launches(slope_of_chunk)
def chunk_of(hidden: Tensor, weight: Tensor, targets: Tensor, slopes: Tensor, lse: Tensor, first: int, chunk: int) -> Tensor:
    """(N, count) the gradient of the logits of some ids."""
    tile, count = tile_of(hidden), min(chunk, len(weight) - first)
    gradient = torch.empty(len(hidden), count, dtype=hidden.dtype, device=hidden.device)
    grid = tiles(len(hidden), tile["ROWS"]), tiles(count, tile["IDS"])
    slope_of_chunk[grid](hidden, weight, targets, slopes, lse, gradient, len(hidden), first, count, hidden.shape[1],
                         hidden.stride(0), weight.stride(0), **tile)
    return gradient


class OfHidden(torch.autograd.Function):
    """The same of the logits hidden·weightᵀ, a chunk of which at most is ever there."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, counted: Tensor, chunk: int) -> Tensor:
        lse, hit = projected(rows_of(hidden), rows_of(weight), targets)
        ctx.save_for_backward(hidden, weight, targets, counted, lse)
        ctx.chunk = chunk
        return torch.where(counted, lse - hit, 0.0)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        hidden, weight, targets, counted, lse = ctx.saved_tensors
        rows, w, slopes = rows_of(hidden), rows_of(weight), torch.where(counted, upstream, 0.0)
        of_hidden, of_weight = torch.zeros(rows.shape, dtype=torch.float32, device=rows.device), torch.empty_like(w)
        for first in range(0, len(w), ctx.chunk):
            slope = chunk_of(rows, w, targets, slopes, lse, first, ctx.chunk)
            of_hidden += (slope @ w[first:first + ctx.chunk]).float()
            of_weight[first:first + ctx.chunk] = slope.T @ rows
        return of_hidden.to(hidden.dtype), of_weight.to(weight.dtype), None, None, None


def linear_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor, *, ignore_index: int = IGNORED, reduction: str = "mean",
                         chunk: int = CHUNK) -> Tensor:
    """Cross-entropy of hidden·weightᵀ; hidden (N, C), weight (V, C), targets (N,)."""
    supported(hidden, weight)
    counted = checked(targets, len(weight), ignore_index, reduction)
    return reduced(OfHidden.apply(hidden, weight, torch.where(counted, targets, 0), counted, chunk), counted, reduction)


def checked(targets: Tensor, size: int, ignore_index: int, reduction: str) -> Tensor:
    """Which rows count; ids out of range and unknown reductions are refused."""
    counted = targets != ignore_index
    known = targets[counted]
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < size:
        raise ValueError(f"targets={int(known.min())} … {int(known.max())} must lie in 0 … {size - 1} or be ignore_index, "
                         f"got {known.tolist()}; correct the targets")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r} must be mean, sum or none, got {reduction!r}; choose one")
    return counted


def reduced(rows: Tensor, counted: Tensor, reduction: str) -> Tensor:
    """In float32."""
    return rows if reduction == "none" else rows.sum() if reduction == "sum" else rows.sum() / counted.sum()


@assay.implements("cross_entropy", name="triton-cross-entropy", arithmetic=FAST, version=VERSION, deep=INTERPRETED)
def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORED, reduction: str = "mean") -> Tensor:
    """The loss in float32, as it is summed."""
    supported(logits)
    counted = checked(targets, logits.shape[1], ignore_index, reduction)
    return reduced(OfLogits.apply(logits, torch.where(counted, targets, 0), counted), counted, reduction)


@assay.implements("cross_entropy", name="triton-linear-cross-entropy", limits={"V": range(1, 70)}, arithmetic=FAST,
                  version=VERSION, deep=INTERPRETED)
def through_the_projection(logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORED, reduction: str = "mean") -> Tensor:
    """The fused loss: the logits as hidden states, and the identity as the weight, whose products are exact."""
    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return linear_cross_entropy(staged(logits), staged(identity), targets, ignore_index=ignore_index, reduction=reduction, chunk=32)
