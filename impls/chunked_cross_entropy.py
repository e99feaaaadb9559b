"""Cross-entropy in chunks of the vocabulary: an online log-sum-exp, and gradients from the logits again.

What is kept is one number a row. Half precision is turned into float32 a chunk at a time, and no probabilities are ever stored but
in the gradient that is asked for.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._tiles import INFINITY, single

SMALLEST, LARGEST = 4, 4096  # ids of a chunk
IGNORED = -100


def chunk_of(size: int) -> int:
    """An eighth of the vocabulary, so that small ones have several chunks too, within limits."""
    return min(LARGEST, max(SMALLEST, size // 8))


def log_sum_exp(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) log Σ exp of each row, and the plain sum, both by chunks."""
    rows = single(logits[:0]).new_zeros
    top, total, plain = rows(len(logits)).fill_(-INFINITY), rows(len(logits)), rows(len(logits))
    for chunk in logits.split(chunk_of(logits.shape[-1]), -1):
        wide = single(chunk)
        new = torch.maximum(top, wide.amax(-1))
        shift = torch.where(new == -INFINITY, 0.0, new)
        total = torch.exp(top - shift) * total + torch.exp(wide - shift.unsqueeze(-1)).sum(-1)
        top, plain = new, plain + wide.sum(-1)
    return top + total.log(), plain


class Rows(torch.autograd.Function):
    """(N,) extra·(lse − z_y) + each·Σ_j (lse − z_j); zeros at rows that do not count."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, counted: Tensor, each: float, extra: float) -> Tensor:
        lse, plain = log_sum_exp(logits)
        rows = extra * (lse - single(logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)))
        if each:
            rows = rows + each * (logits.shape[-1] * lse - plain)
        ctx.save_for_backward(logits, targets, counted, lse)
        ctx.masses = each, extra
        return torch.where(counted, rows, 0.0)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, targets, counted, lse = ctx.saved_tensors
        each, extra = ctx.masses
        size, slope = logits.shape[-1], torch.where(counted, upstream, 0.0).unsqueeze(-1)
        chunk = chunk_of(size)
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        for start in range(0, size, chunk):
            ids = torch.arange(start, min(start + chunk, size), device=logits.device)
            p = torch.exp(single(logits[:, start:start + chunk]) - lse.unsqueeze(-1))
            found = slope * ((extra + each * size) * p - each - extra * (targets.unsqueeze(-1) == ids))
            gradient[:, start:start + chunk] = torch.where(counted.unsqueeze(-1), found, 0.0)
        return gradient, None, None, None, None


def loss(logits: Tensor, targets: Tensor, ignore_index: int, epsilon: float, reduction: str) -> Tensor:
    """Rows, their sum, or their mean over the rows that count."""
    size, counted = logits.shape[-1], targets != ignore_index
    known = targets[counted]
    if known.numel() and not 0 <= int(known.min()) <= int(known.max()) < size:
        raise ValueError(f"targets={int(known.min())} … {int(known.max())} must lie in 0 … {size - 1} or be ignore_index, "
                         f"got {known.tolist()}; correct the targets")
    if not 0 <= epsilon < 1 or (epsilon > 0 and size == 1):
        raise ValueError(f"label_smoothing={epsilon} must lie in 0 ≤ ε < 1 (0 where V = 1), got {epsilon} with V={size}; lower it")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r} must be mean, sum or none, got {reduction!r}; choose one")
    each = epsilon / (size - 1) if epsilon else 0.0
    rows = Rows.apply(logits, torch.where(counted, targets, 0).long(), counted, each, 1 - epsilon - each)
    found = rows if reduction == "none" else rows.sum() if reduction == "sum" else rows.sum() / counted.sum()
    return found.to(logits.dtype)


@assay.implements("cross_entropy", name="chunked-cross-entropy", arithmetic={"internal": "float32"}, version=torch.__version__)
def chunked_cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORED, label_smoothing: float = 0.0, reduction: str = "mean",
) -> Tensor:
    """The rows as they come."""
    return loss(logits, targets, ignore_index, label_smoothing, reduction)


@assay.implements("lm_loss", name="chunked-lm-loss", arithmetic={"internal": "float32"}, version=torch.__version__)
def chunked_lm_loss(
    logits: Tensor, ids: Tensor, *, mask: Tensor | None = None, prompt_lengths: Tensor | None = None,
    label_smoothing: float = 0.0, reduction: str = "mean",
) -> Tensor:
    """Each position against the next token; only real tokens, and those of the response, count."""
    length = max(0, ids.shape[1] - 1)
    counted = torch.ones_like(ids[:, :length], dtype=torch.bool)
    if mask is not None:
        counted = counted & mask[:, 1:] & mask[:, :-1]
    if prompt_lengths is not None:
        counted = counted & (torch.arange(1, length + 1, device=ids.device) >= prompt_lengths[:, None])
    targets = torch.where(counted, ids[:, 1:], IGNORED)
    rows = loss(logits[:, :length].flatten(0, 1), targets.flatten(), IGNORED, label_smoothing, reduction)
    return rows.reshape(targets.shape) if reduction == "none" else rows
