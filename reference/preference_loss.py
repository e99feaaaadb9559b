"""Preference loss: a reward model is to score the chosen answer above the rejected one."""
from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form


def preference_loss(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """Mean over pairs of minus the log-probability that the chosen answer wins.

    Formula: L = mean(−log σ(Δ)), Δ = r_chosen − r_rejected; −log σ(Δ) = m + log(e^(−m) + e^(−Δ−m)), m = max(−Δ, 0).

    r_chosen, r_rejected: same shape, one number a pair
    returns: a scalar

    Conventions: none. No pair at all gives NaN.
    Raises: ValueError where the shapes differ.
    Source: Ouyang et al., "Training language models to follow instructions", section 3.5, arXiv 2203.02155; Bradley,
    Terry 1952.

    >>> round(float(preference_loss(torch.tensor([2.0]), torch.tensor([2.0]))), 4)
    0.6931
    """
    minus = -_difference(r_chosen, r_rejected)
    m = freely_chosen(torch.where(minus > 0, minus, torch.zeros_like(minus)))
    return _mean(m + torch.log(torch.exp(-m) + torch.exp(minus - m)))


def _difference(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    if r_chosen.shape != r_rejected.shape:
        raise ValueError(f"r_rejected.shape={tuple(r_rejected.shape)} must be {tuple(r_chosen.shape)} as of r_chosen, "
                         f"got {tuple(r_rejected.shape)}; pass one number a pair")
    return r_chosen - r_rejected


def _mean(x: Tensor) -> Tensor:
    return x.sum() / x.numel() if x.numel() else x.sum() / torch.zeros((), dtype=x.dtype, device=x.device)


def _softplus(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """max(−Δ, 0) + log1p(e^(−|Δ|)), the gradient halved on either side at Δ = 0."""
    minus = -_difference(r_chosen, r_rejected)
    return _mean(torch.maximum(minus, torch.zeros_like(minus)) + torch.log1p(torch.exp(-minus.abs())))


def _two_way_softmax(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """log(e^c + e^r) − c with the maximum added back."""
    _difference(r_chosen, r_rejected)
    m = freely_chosen(torch.maximum(r_chosen, r_rejected))
    return _mean(m + torch.log(torch.exp(r_chosen - m) + torch.exp(r_rejected - m)) - r_chosen)


def _sigmoid_less_one(
    upstream: Tensor, wrt: tuple[str, ...], r_chosen: Tensor, r_rejected: Tensor
) -> Mapping[str, Tensor]:
    """(σ(Δ) − 1) · g/n, as binary cross-entropy differentiates itself: σ is rounded before the difference."""
    slope = (torch.sigmoid(r_chosen - r_rejected) - 1) * (upstream / r_chosen.numel())
    gradients = {"r_chosen": slope, "r_rejected": -slope}
    return {name: gradients[name] for name in wrt}


FORMS: tuple[Form, ...] = (
    Form("shifted by the larger of −Δ and 0", preference_loss),
    Form("softplus", _softplus),
    Form("softmax over the two", _two_way_softmax),
    Form("binary cross-entropy", _softplus, backward=_sigmoid_less_one, usual=True),
)
