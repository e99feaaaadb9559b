"""Legitimate ways to compute a softmax: none of them may ever fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

from assay.registry import benign

Way = Callable[..., torch.Tensor]
LOG2E = 1.0 / math.log(2.0)


def fused(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """torch's own."""
    return F.softmax(x, dim)


def written_out(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Every step in the input's type."""
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def through_logarithm(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """exp of log-softmax, the logarithm stored in the input's type."""
    return F.log_softmax(x, dim).exp()


def in_single(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """float32 inside."""
    return F.softmax(x, dim, dtype=torch.promote_types(torch.float32, x.dtype)).to(x.dtype)


def in_double(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """float64 inside."""
    return F.softmax(x.double(), dim).to(x.dtype)


def by_powers_of_two(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """exp2 of arguments multiplied by log2(e)."""
    e = ((x - x.amax(dim, keepdim=True)) * LOG2E).exp2()
    return e / e.sum(dim, keepdim=True)


def by_reciprocal(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Multiplied by the reciprocal of the sum."""
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e * e.sum(dim, keepdim=True).reciprocal()


def reversed_order(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Summed from the far end."""
    return F.softmax(x.flip(dim), dim).flip(dim)


def one_after_another(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """An online softmax, one entry at a time."""
    wide = torch.promote_types(torch.float32, x.dtype)
    z = x.to(wide).movedim(dim, -1)
    top, total = torch.full_like(z[..., :1], -math.inf), torch.zeros_like(z[..., :1])
    for entry in z.split(1, -1):
        higher = torch.maximum(top, entry).detach()
        safe = higher.masked_fill(higher == -math.inf, 0.0)
        total = total * (top - safe).exp() + (entry - safe).exp()
        top = higher
    return ((z - top).exp() / total).movedim(-1, dim).to(x.dtype)


def halves_merged(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """Two halves with a log-sum-exp each, merged."""
    wide = torch.promote_types(torch.float32, x.dtype)
    z = x.to(wide)
    sums = []
    for half in z.split([x.shape[dim] // 2, x.shape[dim] - x.shape[dim] // 2], dim):
        blind = (half == -math.inf).all(dim, keepdim=True)  # its log-sum-exp is minus infinity, with a gradient of NaN
        sums.append(half.masked_fill(blind, 0.0).logsumexp(dim, keepdim=True).masked_fill(blind, -math.inf))
    return (z - torch.logaddexp(*sums)).exp().to(x.dtype)


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim):  # type: ignore[no-untyped-def]
        y = F.softmax(x, dim)
        ctx.save_for_backward(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        (y,) = ctx.saved_tensors
        return (upstream - (upstream * y).sum(ctx.dim, keepdim=True)) * y, None


def own_backward(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """The gradient from the stored output, every step in the input's type."""
    return _ByHand.apply(x, dim)  # type: ignore[no-any-return, no-untyped-call]


BENIGN: dict[str, Way] = {
    way.__name__: way
    for way in (
        fused,
        written_out,
        through_logarithm,
        in_single,
        in_double,
        by_powers_of_two,
        by_reciprocal,
        reversed_order,
        one_after_another,
        halves_merged,
        own_backward,
    )
}

for _way in BENIGN.values():
    benign("softmax")(_way)
