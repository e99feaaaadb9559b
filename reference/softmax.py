"""Softmax: the reference formula and the legitimate ways to evaluate it."""

from __future__ import annotations

import math

import torch

from assay.numbers.bound import freely_chosen, precision, row_maximum
from assay.numbers.forms import Form

EMPTY_ROW = ("nan_row", "zeros", "mean")


def softmax(x: torch.Tensor, *, dim: int = -1, empty_row: str = "nan_row") -> torch.Tensor:
    """Exponentials of the entries along one dimension, divided by their sum.

    y_i = exp(x_i - m) / sum_j exp(x_j - m), for any m; m = max_j x_j keeps the exponentials in range.

    x: (..., n, ...), entries may be minus infinity
    returns: as x
    empty_row: a row of minus infinities gives NaN (`nan_row`), zeros (`zeros`) or 1/n each (`mean`).

    Source: Bridle, "Probabilistic interpretation of feedforward classification network outputs", 1990.

    >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    if x.shape[dim] == 0:
        return x * 1.0
    filled, empty = _filled(x, dim)
    exponentials = (filled - row_maximum(filled, dim)).exp()
    return _closed(exponentials / exponentials.sum(dim, keepdim=True), empty, empty_row)


def _filled(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows without any finite entry are zeroed before the softmax: afterwards would be too late for their gradients."""
    empty = (x == float("-inf")).all(dim, keepdim=True)
    return x.masked_fill(empty, 0.0), empty


def _closed(y: torch.Tensor, empty: torch.Tensor, empty_row: str) -> torch.Tensor:
    if empty_row == "mean":
        return y
    return y.masked_fill(empty, 0.0 if empty_row == "zeros" else float("nan"))


def softmax_by_logarithm(x: torch.Tensor, *, dim: int = -1, empty_row: str = "nan_row") -> torch.Tensor:
    """exp(log-softmax): the logarithm may be stored in between."""
    if x.shape[dim] == 0:
        return x * 1.0
    filled, empty = _filled(x, dim)
    shifted = filled - freely_chosen(filled.amax(dim, keepdim=True))
    with precision("statistics"):
        log_sum = shifted.exp().sum(dim, keepdim=True).log()
    return _closed((shifted - log_sum).exp(), empty, empty_row)


def softmax_of_parts(x: torch.Tensor, *, dim: int = -1, empty_row: str = "nan_row") -> torch.Tensor:
    """Parts summed online, merged by their log-sum-exps (as if two of equal weight), which carry the maximum with
    them."""
    if x.shape[dim] == 0:
        return x * 1.0
    filled, empty = _filled(x, dim)
    top = freely_chosen(filled.amax(dim, keepdim=True))
    with precision("statistics"):
        part = ((filled - top).exp().sum(dim, keepdim=True) * 0.5).log() + top
        whole = part + math.log(2.0)
        share = (part - whole).exp()
    return _closed((filled - part).exp() * share, empty, empty_row)


# An online sum over tiles of one entry takes, at each step: the rescaling factor (an exponential accurate to 4 units,
# rounded once), the product, and the addition.
ONLINE_ADDITIONS = 7

FORMS: tuple[Form, ...] = (
    Form("shifted by the row maximum", softmax),
    Form("exponential of the logarithm", softmax_by_logarithm),
    Form("parts summed online and merged", softmax_of_parts, additions=ONLINE_ADDITIONS, usual=True),
)
