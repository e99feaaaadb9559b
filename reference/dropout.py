"""Dropout: features set to zero at random in training."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form


def dropout(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """Zero each element with probability p in training and scale the others so that the mean is kept.

    Formula: y = x · keep / (1 − p), keep ~ Bernoulli(1 − p) independently; evaluation, or p = 0: y = x.

    x: any shape
    returns: like x

    Conventions: which elements a seed drops is this implementation's own; only their statistics are fixed.
    Raises: ValueError where p lies outside 0 … 1.
    Source: Srivastava et al., "Dropout", JMLR 15, 2014, section 4 (scaled in training: its section 10).

    >>> dropout(torch.ones(3), p=0.5, training=False, seed=0).tolist()
    [1.0, 1.0, 1.0]
    >>> sorted(set(dropout(torch.ones(64), p=0.75, training=True, seed=0).tolist()))
    [0.0, 4.0]
    """
    keep = kept(x, p=p, training=training, seed=seed)
    if keep is None:
        return x
    return torch.where(keep, x / ((1 - p) or 1.0), torch.zeros_like(x))  # p = 1 keeps nothing: any divisor will do


def kept(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor | None:
    """Which elements stay: None for all of them untouched."""
    if not 0 <= p <= 1:
        raise ValueError(f"p={p} must lie in 0 … 1, got {p}; pass a probability")
    if not training or p == 0:
        return None
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(0, 1 << 53, x.shape, generator=generator)  # whole numbers: nothing here rounds
    return (draws >= int(p * (1 << 53))).to(x.device)


def _by_mask(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """x · (keep / (1 − p)): the scale rounded before the product."""
    keep = kept(x, p=p, training=training, seed=seed)
    if keep is None:
        return x
    scale = torch.full((), 0.0 if p == 1 else 1 / (1 - p), dtype=x.dtype, device=x.device)
    return x * (keep.to(x.dtype) * scale)


FORMS: tuple[Form, ...] = (Form("selected, then divided", dropout), Form("times a scaled mask", _by_mask))


def scaled(x: Tensor, *, p: float) -> Tensor:
    """What becomes of an element that is kept."""
    return x / ((1 - p) or 1.0)


def _scaled_by_product(x: Tensor, *, p: float) -> Tensor:
    scale = torch.full((), 1 / ((1 - p) or 1.0), dtype=x.dtype, device=x.device)
    return x * scale


KEPT_FORMS: tuple[Form, ...] = (Form("divided", scaled), Form("times a rounded scale", _scaled_by_product))
