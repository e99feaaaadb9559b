"""Planted faults of softmax."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.registry import fault

NOT_EXPRESSIBLE = {
    "BUG-003": "a mask argument: see attention",
    "BUG-007": "a product of q and k: see attention",
    "BUG-101": "dropout on the weights, which the call does not have",
}
INFINITY = float("inf")


@fault("softmax", summary="no maximum subtracted: large inputs overflow")
def no_shift(x: Tensor, *, dim: int = -1) -> Tensor:
    e = torch.exp(x)
    return e / e.sum(dim, keepdim=True)


@fault("softmax", origin="BUG-005", summary="a fixed 10 subtracted in place of the row's maximum")
def fixed_shift(x: Tensor, *, dim: int = -1) -> Tensor:
    e = torch.exp(x - 10)
    return e / e.sum(dim, keepdim=True)


@fault("softmax", summary="the maximum starts at 0: rows of very negative entries underflow to 0/0")
def maximum_starts_at_zero(x: Tensor, *, dim: int = -1) -> Tensor:
    e = torch.exp(x - x.amax(dim, keepdim=True).clamp(min=0))
    return e / e.sum(dim, keepdim=True)


@fault("softmax", summary="the maximum of the whole tensor is subtracted: small rows underflow")
def maximum_of_everything(x: Tensor, *, dim: int = -1) -> Tensor:
    if x.numel() == 0:
        return torch.softmax(x, dim)
    e = torch.exp(x - x.max())
    return e / e.sum(dim, keepdim=True)


@fault("softmax", summary="the minimum is subtracted in place of the maximum")
def minimum_subtracted(x: Tensor, *, dim: int = -1) -> Tensor:
    e = torch.exp(x - x.amin(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


@fault("softmax", summary="always along the last axis")
def dim_ignored(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x, -1)


@fault("softmax", origin="BUG-004", summary="along the axis before the asked one")
def neighbouring_axis(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x, (dim - 1) % x.dim())


@fault("softmax", summary="normalised over the whole tensor")
def over_everything(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x.reshape(-1), 0).reshape(x.shape)


@fault("softmax", origin="BUG-002", summary="one row of −∞ alone turns every row NaN")
def empty_row_spreads(x: Tensor, *, dim: int = -1) -> Tensor:
    empty = torch.isneginf(x).all(dim, keepdim=True)
    return torch.softmax(x, dim).masked_fill(empty.any(), float("nan"))


@fault("softmax", origin="BUG-032", summary="−∞ is replaced by −1e4 first")
def infinity_made_finite(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x.masked_fill(torch.isneginf(x), -1e4), dim)


@fault("softmax", summary="entries at −∞ get a probability of 1e-6")
def masked_entries_get_a_trace(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim) + 1e-6 * torch.isneginf(x)


@fault("softmax", summary="divided by the sum plus 1e-3")
def epsilon_in_normaliser(x: Tensor, *, dim: int = -1) -> Tensor:
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / (e.sum(dim, keepdim=True) + 1e-3)


@fault("softmax", summary="exponentials without the sum")
def not_normalised(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.exp(x - x.amax(dim, keepdim=True))


@fault("softmax", summary="powers of two in place of powers of e")
def base_two(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x * 0.6931471805599453, dim)


@fault("softmax", summary="softmin")
def sign_wrong(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(-x, dim)


@fault("softmax", summary="an extra entry of score 0 takes part of the mass")
def extra_zero_entry(x: Tensor, *, dim: int = -1) -> Tensor:
    ghost = torch.zeros_like(x.narrow(dim, 0, 1))
    return torch.softmax(torch.cat([x, ghost], dim), dim).narrow(dim, 0, x.shape[dim])


@fault("softmax", origin="BUG-083", summary="the tail of a tile of 16 takes part with score 0")
def tail_of_16_unmasked(x: Tensor, *, dim: int = -1) -> Tensor:
    n = x.shape[dim]
    ghost = torch.zeros_like(x.narrow(dim, 0, 1)).repeat_interleave(-n % 16, dim)
    return torch.softmax(torch.cat([x, ghost], dim), dim).narrow(dim, 0, n)


@fault("softmax", summary="the last entry of an odd length is left out")
def last_of_odd_length_dropped(x: Tensor, *, dim: int = -1) -> Tensor:
    n = x.shape[dim]
    if n % 2 == 0 or n == 1:
        return torch.softmax(x, dim)
    return torch.cat([torch.softmax(x.narrow(dim, 0, n - 1), dim), torch.zeros_like(x.narrow(dim, 0, 1))], dim)


@fault("softmax", summary="beyond 64 entries the first tile keeps its own maximum")
def second_tile_not_rescaled(x: Tensor, *, dim: int = -1) -> Tensor:
    n = x.shape[dim]
    if n <= 64:
        return torch.softmax(x, dim)
    parts = [x.narrow(dim, 0, 64), x.narrow(dim, 64, n - 64)]
    e = torch.cat([torch.exp(p - p.amax(dim, keepdim=True)) for p in parts], dim)
    return e / e.sum(dim, keepdim=True)


@fault("softmax", summary="strides ignored: read as if packed", origin="BUG-095")
def strides_ignored(x: Tensor, *, dim: int = -1) -> Tensor:
    if x.is_contiguous():
        return torch.softmax(x, dim)
    n = min(x.numel(), x.untyped_storage().nbytes() // x.element_size() - x.storage_offset())
    flat = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
    flat[:n] = x.detach().as_strided((n,), (1,))
    return torch.softmax(x + (flat.reshape(x.shape) - x.detach()), dim)


@fault("softmax", summary="negated")
def negated(x: Tensor, *, dim: int = -1) -> Tensor:
    return -torch.softmax(x, dim)


@fault("softmax", summary="uniform weights")
def uniform(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x * 0, dim) if not torch.isinf(x).any() else torch.ones_like(x) / x.shape[dim]


@fault("softmax", summary="zeros")
def zeros(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.zeros_like(x) + 0 * torch.softmax(x, dim)


@fault("softmax", summary="one-hot of the largest entry")
def hard_maximum(x: Tensor, *, dim: int = -1) -> Tensor:
    p = torch.softmax(x, dim)
    return p * 0 + torch.zeros_like(p).scatter(dim, p.argmax(dim, keepdim=True), 1.0)


@fault("softmax", summary="logarithm of the softmax")
def logarithm_returned(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.log_softmax(x, dim)


@fault("softmax", summary="computed in bfloat16")
def computed_in_bfloat16(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x.to(torch.bfloat16), dim).to(x.dtype)


@fault("softmax", summary="probabilities below 1e-3 are zero")
def small_entries_dropped(x: Tensor, *, dim: int = -1) -> Tensor:
    p = torch.softmax(x, dim)
    return torch.where(p < 1e-3, torch.zeros_like(p), p)


@fault("softmax", summary="the input is overwritten")
def input_overwritten(x: Tensor, *, dim: int = -1) -> Tensor:
    p = torch.softmax(x, dim)
    x.detach().copy_(p.detach())
    return p


_SEEN: dict[tuple[object, ...], Tensor] = {}


@fault("softmax", summary="remembered by shape", origin="BUG-134")
def remembered_by_shape(x: Tensor, *, dim: int = -1) -> Tensor:
    p = torch.softmax(x, dim)
    return p + (_SEEN.setdefault((x.shape, x.dtype, dim), p.detach()) - p.detach())


class _Wrong(torch.autograd.Function):
    """Softmax forward; backward by the given rule of (p, gradient, dim)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, rule: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
        p = torch.softmax(x, dim)
        ctx.save_for_backward(p)
        ctx.dim, ctx.rule = dim, rule
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.rule(ctx.saved_tensors[0], gradients[0], ctx.dim), None, None


def _wrong(x: Tensor, dim: int, rule: Callable[[Tensor, Tensor, int], Tensor]) -> Tensor:
    result: Tensor = _Wrong.apply(x, dim, rule)  # type: ignore[no-untyped-call]
    return result


@fault("softmax", summary="the Jacobian's diagonal p(1−p) alone")
def gradient_diagonal_only(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: p * (1 - p) * g)


@fault("softmax", summary="gradient p·g without the row sum", origin="BUG-092")
def gradient_without_row_sum(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: p * g)


@fault("softmax", summary="gradient A⊙(g − g·rowsum(A)), identically zero (erratum E3)")
def gradient_zero(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: p * (g - g * p.sum(d, keepdim=True)))


@fault("softmax", summary="row sum of the gradient always over the last axis")
def gradient_over_last_axis(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: p * (g - (p * g).sum(-1, keepdim=True)))


@fault("softmax", summary="entries at −∞ receive gradient")
def gradient_reaches_masked(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: p * (g - (p * g).sum(d, keepdim=True)) + 1e-4 * (p == 0))


@fault("softmax", summary="gradient passed straight through")
def gradient_is_upstream(x: Tensor, *, dim: int = -1) -> Tensor:
    return _wrong(x, dim, lambda p, g, d: g)


@fault("softmax", summary="probabilities floored in backward: a saturated row keeps a gradient")
def gradient_never_saturates(x: Tensor, *, dim: int = -1) -> Tensor:
    def rule(p: Tensor, g: Tensor, d: int) -> Tensor:
        q = p.clamp(min=1e-3)
        return q * (g - (q * g).sum(d, keepdim=True))

    return _wrong(x, dim, rule)
