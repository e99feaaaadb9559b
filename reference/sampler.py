"""Sampler: token ids drawn with the probabilities of the logits."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen
from assay.numbers.forms import Form


def sampler(logits: Tensor, *, seed: int, num_samples: int) -> Tensor:
    """Draw ids independently, each with its softmax probability.

    Formula: P(id = i) = exp(logits_i) / Σ_j exp(logits_j); by inverting the running sum at uniform numbers.

    logits: (V,)
    returns: (num_samples,) int64

    Conventions: which ids a seed draws is this implementation's own; an entry −∞ is never drawn.
    Raises: ValueError where num_samples < 1, logits is not (V,), or no entry is above −∞.
    Source: Devroye, "Non-Uniform Random Variate Generation", section III.2 (inversion), 1986.

    >>> sampler(torch.tensor([float("-inf"), 0.0]), seed=0, num_samples=3).tolist()
    [1, 1, 1]
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} must be at least 1, got {num_samples}; ask for at least one")
    if logits.dim() != 1:
        raise ValueError(f"logits.shape={tuple(logits.shape)} must be (V,), got {logits.dim()} axes; pass one row")
    z = logits.detach().double()
    top = z.amax()
    if not bool(torch.isfinite(top)):
        raise ValueError(f"logits.max()={float(top)} must be finite, got {float(top)}; keep at least one token")
    mass = torch.cumsum(torch.exp(z - top), 0)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(num_samples, generator=generator, dtype=torch.float64).to(mass.device) * mass[-1]
    last = torch.nonzero(z > -float("inf"))[-1, 0]
    return torch.searchsorted(mass, drawn, right=True).clamp(max=int(last))


def probabilities(logits: Tensor) -> Tensor:
    """Softmax (V,): the probabilities that a sampler works with."""
    e = torch.exp(logits - freely_chosen(logits.amax(-1, keepdim=True)))
    return e / e.sum(-1, keepdim=True)


def by_running_sum(logits: Tensor) -> Tensor:
    """Differences of the running sum, which is what inversion draws by."""
    mass = torch.cumsum(probabilities(logits), -1)
    return torch.cat([mass[:1], mass[1:] - mass[:-1]])


PROBABILITIES: tuple[Form, ...] = (Form("softmax", probabilities), Form("steps of the running sum", by_running_sum))
def outline(logits: Tensor, *, seed: int, num_samples: int) -> Tensor:
    """The form of a result: which ids come is chance, and judged as such."""
    return torch.zeros(num_samples, dtype=torch.int64, device=logits.device)


FORMS: tuple[Form, ...] = (Form("number and type of the ids", outline),)
