"""Router z-loss: a router's logits are to stay small."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.numbers.bound import row_maximum
from assay.numbers.forms import Form
from assay.reference.router import log_sum


def router_z_loss(logits: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """The mean over tokens of the square of their logits' log-sum-exp.

    Formula: L = (Σ_t (log Σ_e exp z_te)²) / N over the tokens that mask counts.

    logits: (N, E)
    mask: None, or (N,) bool, True = counted; at least one is
    returns: a scalar

    Raises: ValueError where mask does not have one entry a token.
    Source: Zoph et al., "ST-MoE", section 3.3, equation 5, arXiv 2202.08906.

    >>> round(router_z_loss(torch.zeros(3, 4)).item(), 4)  # (log 4)²
    1.9218
    """
    top = row_maximum(logits, -1)
    return _mean_square((torch.log(torch.exp(logits - top).sum(-1, keepdim=True)) + top).squeeze(-1), mask)


def _mean_square(whole: Tensor, mask: Tensor | None) -> Tensor:
    squares = whole * whole
    if mask is None:
        return squares.sum() / whole.shape[0]
    if tuple(mask.shape) != tuple(whole.shape):
        raise ValueError(f"mask.shape={tuple(mask.shape)} must be (N,) = {tuple(whole.shape)}, got {tuple(mask.shape)}; pass one "
                         "entry a token")
    return squares.masked_fill(~mask.bool(), 0.0).sum() / int(mask.sum())


def _form(name: str, log_sum: Callable[[Tensor], Tensor]) -> Form:
    def forward(logits: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return _mean_square(log_sum(logits), mask)

    return Form(name, forward)


def _cut_shift(logits: Tensor) -> Tensor:
    return log_sum(logits).squeeze(-1)


def _library(logits: Tensor) -> Tensor:
    return torch.logsumexp(logits, -1)  # its gradient is taken from the rounded sum, exp(z − whole)


FORMS: tuple[Form, ...] = (
    Form("as written", router_z_loss), _form("shift cut from the gradient", _cut_shift), _form("one logsumexp", _library),
)
