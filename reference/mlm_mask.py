"""Masking for masked language modelling: which tokens are hidden, and what the model must say there."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form

IGNORED = -100


def mlm_mask(
    ids: Tensor, special: Tensor, *, mask_id: int, vocab_size: int, p: float = 0.15, seed: int,
    mlm_choice: str = "bernoulli", mlm_replace: str = "mask_only",
) -> tuple[Tensor, Tensor]:
    """Choose ordinary tokens at random, hide them, and keep their ids as labels.

    Formula: chosen ~ Bernoulli(p) independently on tokens that are not special; ids' = mask_id where chosen; labels =
    ids where
    chosen, −100 elsewhere.

    ids: (…, T) integers
    special: (…, T) bool, True = never chosen (special tokens and padding)
    returns: ids' and labels, both like ids

    Conventions: mlm_choice "bernoulli" or "count" (round(p · eligible) tokens of each row, at least one where there
    is any);
    mlm_replace "mask_only" or "bert" (80 % mask_id, 10 % a random id, 10 % as it was).
    Raises: ValueError where p lies outside 0 … 1, mask_id outside 0 … vocab_size−1, shapes differ, or a convention is
    unknown.
    Source: Devlin et al., "BERT", section 3.1, arXiv 1810.04805.

    >>> ids, special = torch.tensor([[5, 6, 7]]), torch.tensor([[True, False, False]])
    >>> mlm_mask(ids, special, mask_id=1, vocab_size=9, p=1.0, seed=0)
    (tensor([[5, 1, 1]]), tensor([[-100,    6,    7]]))
    """
    _check(ids, special, mask_id, vocab_size, p, mlm_choice, mlm_replace)
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(ids.device)
    eligible = ~special.bool()
    chosen = eligible & (draw < p) if mlm_choice == "bernoulli" else _lowest(draw, eligible, p)
    hidden = torch.full_like(ids, mask_id)
    if mlm_replace == "bert":
        fate = torch.rand(ids.shape, generator=generator, dtype=torch.float64).to(ids.device)
        other = torch.randint(0, vocab_size, ids.shape, generator=generator).to(ids)
        hidden = torch.where(fate < 0.8, hidden, torch.where(fate < 0.9, other, ids))
    return torch.where(chosen, hidden, ids), torch.where(chosen, ids, torch.full_like(ids, IGNORED))


def _lowest(draw: Tensor, eligible: Tensor, p: float) -> Tensor:
    """The tokens of lowest draw, a fixed number of each row."""
    available = eligible.sum(-1, keepdim=True)
    wanted = torch.minimum(torch.round(p * available).clamp(min=1 if p > 0 else 0), available)
    rank = torch.argsort(torch.argsort(torch.where(eligible, draw, draw + 2), -1), -1)
    return eligible & (rank < wanted)


def _check(ids: Tensor, special: Tensor, mask_id: int, vocab_size: int, p: float, choice: str, replace: str) -> None:
    if not 0 <= p <= 1:
        raise ValueError(f"p={p} must lie in 0 … 1, got {p}; pass a probability")
    if not 0 <= mask_id < vocab_size:
        raise ValueError(f"mask_id={mask_id} must lie in 0 … {vocab_size - 1}, got {mask_id}; correct it or vocab_size")
    if ids.shape != special.shape:
        raise ValueError(f"special.shape={tuple(special.shape)} must be {tuple(ids.shape)} as of ids, "
                         f"got {tuple(special.shape)}; pass one flag a token")
    if choice not in ("bernoulli", "count"):
        raise ValueError(f"mlm_choice={choice!r} must be 'bernoulli' or 'count', got {choice!r}; choose one of them")
    if replace not in ("mask_only", "bert"):
        raise ValueError(f"mlm_replace={replace!r} must be 'mask_only' or 'bert', got {replace!r}; choose one of them")


def outline(
    ids: Tensor, special: Tensor, *, mask_id: int, vocab_size: int, p: float = 0.15, seed: int,
    mlm_choice: str = "bernoulli", mlm_replace: str = "mask_only",
) -> tuple[Tensor, Tensor]:
    """The form of a result: which tokens are chosen is chance, and judged as such."""
    return torch.zeros_like(ids), torch.zeros_like(ids)


FORMS: tuple[Form, ...] = (Form("shape and type of ids and labels", outline),)
