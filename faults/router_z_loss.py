"""Planted faults of the router z-loss, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from assay.faults.planting import bent, planter
from assay.registry import benign, fault

Way = Callable[[Tensor, Tensor], Tensor]  # logits (N,E), 1 for tokens that count (N,)


def mean(squares: Tensor, keep: Tensor) -> Tensor:
    """The mean over the counted tokens."""
    return (squares * keep).sum() / keep.sum()


def square(z: Tensor) -> Tensor:
    """The square of each token's log-sum-exp."""
    return torch.logsumexp(z, -1) ** 2


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def router_z_loss(logits: Tensor, *, mask: Tensor | None = None) -> Tensor:
        keep = torch.ones(len(logits), dtype=torch.bool) if mask is None else mask
        return way(logits, keep.to(logits.dtype))

    return router_z_loss


planted = planter("router_z_loss", signed)


@planted(fault, "the log-sum-exp is not squared")
def not_squared(z: Tensor, keep: Tensor) -> Tensor:
    return mean(torch.logsumexp(z, -1), keep)


@planted(fault, "the sum over tokens")
def sum_over_tokens(z: Tensor, keep: Tensor) -> Tensor:
    return (square(z) * keep).sum()


@planted(fault, "the square of the mean log-sum-exp")
def mean_first(z: Tensor, keep: Tensor) -> Tensor:
    return mean(torch.logsumexp(z, -1), keep) ** 2


@planted(fault, "the largest logit in place of the log-sum-exp")
def maximum_for_log_sum(z: Tensor, keep: Tensor) -> Tensor:
    return mean(z.amax(-1) ** 2, keep)


@planted(fault, "the mean of the exponentials in place of their sum")
def mean_over_experts(z: Tensor, keep: Tensor) -> Tensor:
    return mean((torch.logsumexp(z, -1) - math.log(z.shape[-1])) ** 2, keep)


@planted(fault, "logarithm to base 2")
def base_two(z: Tensor, keep: Tensor) -> Tensor:
    return mean((torch.logsumexp(z, -1) / math.log(2)) ** 2, keep)


@planted(fault, "the sum of the squared logits")
def sum_of_squared_logits(z: Tensor, keep: Tensor) -> Tensor:
    return mean((z**2).sum(-1), keep)


@planted(fault, "logits are centred first")
def centred(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(z - z.mean(-1, keepdim=True)), keep)


@planted(fault, "one is added to the sum: log(1 + Σ exp z)")
def log_one_plus(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(torch.nn.functional.pad(z, (0, 1))), keep)


@planted(fault, "the mask is ignored")
def mask_ignored(z: Tensor, keep: Tensor) -> Tensor:
    return square(z).mean()


@planted(fault, "the mask counts the tokens that it hides")
def mask_inverted(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(z), keep if bool(keep.all()) else 1 - keep)


@planted(fault, "the sum over the counted tokens is divided by all")
def divided_by_all_tokens(z: Tensor, keep: Tensor) -> Tensor:
    return (square(z) * keep).mean()


@planted(fault, "no maximum is subtracted")
def no_shift(z: Tensor, keep: Tensor) -> Tensor:
    return mean(torch.log(torch.exp(z).sum(-1)) ** 2, keep)


@planted(fault, "the last token is left out where there are several")
def last_token_left_out(z: Tensor, keep: Tensor) -> Tensor:
    first = (torch.arange(len(z)) < max(1, len(z) - 1)).to(keep.dtype)
    return mean(square(z), keep * first if bool((keep * first).any()) else keep)


@planted(fault, "the last expert is left out where there are several")
def last_expert_left_out(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(z[:, : max(1, z.shape[-1] - 1)]), keep)


@planted(fault, "negated")
def negated(z: Tensor, keep: Tensor) -> Tensor:
    return -mean(square(z), keep)


@planted(fault, "zero")
def zeros(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(z), keep) * 0


@planted(fault, "the gradient of a square without its 2")
def gradient_halved(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(bent(z, lambda g: g / 2)), keep)


@planted(fault, "no gradient")
def gradient_detached(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(z.detach()), keep) + 0 * z.clamp(-1, 1).sum()


@planted(fault, "the gradient goes to the largest logit alone")
def gradient_to_the_largest_alone(z: Tensor, keep: Tensor) -> Tensor:
    whole, top = torch.logsumexp(z, -1).detach(), z.amax(-1)
    return mean((whole + top - top.detach()) ** 2, keep)


@planted(fault, "the gradient is not divided by the tokens")
def gradient_not_averaged(z: Tensor, keep: Tensor) -> Tensor:
    return mean(square(bent(z, lambda g: g * max(2, int(keep.sum())))), keep)


@planted(fault, "tokens that are not counted get a gradient")
def gradient_reaches_padding(z: Tensor, keep: Tensor) -> Tensor:
    whole = square(z).mean()
    return mean(square(z), keep) if bool(keep.all()) else mean(square(z), keep).detach() + whole - whole.detach()


@planted(fault, "the gradient is that of the absolute value: its size does not grow with the log-sum-exp")
def gradient_of_absolute(z: Tensor, keep: Tensor) -> Tensor:
    right, other = mean(square(z), keep), mean(torch.logsumexp(z, -1).abs(), keep)
    return right.detach() + other - other.detach()


@planted(benign, "the shift by hand, squares as products, tokens one by one")
def token_by_token(z: Tensor, keep: Tensor) -> Tensor:
    squares = []
    for row, counts in zip(z, keep, strict=True):
        top = row.amax().detach()
        whole = torch.log(torch.exp(row - top).sum()) + top
        squares.append(whole * whole * counts)
    return torch.stack(squares).sum() / keep.sum()


@planted(benign, "in float32, over the counted tokens alone", arithmetic={"internal": "float32"})
def counted_alone(z: Tensor, keep: Tensor) -> Tensor:
    wide = z.to(torch.promote_types(z.dtype, torch.float32))[keep.bool()]
    return torch.logsumexp(wide, -1).square().mean().to(z.dtype)
