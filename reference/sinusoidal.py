"""Sinusoidal positions: sines and cosines of geometrically falling frequencies."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen, precision
from assay.numbers.forms import Form

DECLARATION = {"offers": {"negative_positions"}}


def sinusoidal(
    positions: Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Encode each position by the sine and cosine of its angle in every pair of channels.

    Formula: y[t, 2i] = sin(p_t · base^(−2i/C)), y[t, 2i + 1] = cos of the same.

    positions: (T,) integers
    dim: C, even
    returns: (T, C) in dtype

    Conventions: sine and cosine alternate; dtype is that of the angle and of the result.
    Raises: ValueError where dim is odd or below 2.
    Source: Vaswani et al., "Attention Is All You Need", section 3.5, arXiv 1706.03762.

    >>> sinusoidal(torch.tensor([0]), 4).tolist()
    [[0.0, 1.0, 0.0, 1.0]]
    """
    return _waves(angles(positions, dim, base, dtype=dtype))


def angles(positions: Tensor, dim: int, base: float, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The angle of each position in each pair of channels, (T, C/2), formed in dtype."""
    with precision("angles"):
        return positions.to(dtype).unsqueeze(-1) * torch.pow(base, -_exponents(positions, dim, dtype))


def _exponents(positions: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """2i/C for every pair i."""
    if dim < 2 or dim % 2:
        raise ValueError(f"dim={dim} must be even and at least 2, got {dim}; pad the width by one channel")
    return torch.arange(0, dim, 2, device=positions.device).to(dtype) / dim


def _waves(angle: Tensor) -> Tensor:
    with precision("tables"):
        waves = torch.stack((torch.sin(angle), torch.cos(angle)), dim=-1)
    return waves.flatten(-2)  # (T, C/2, 2) -> (T, C)


def _by_exponential(
    positions: Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Frequencies as exp(2i · (−ln base / C))."""
    with precision("angles"):
        pairs = _exponents(positions, dim, dtype) * dim
        angle = positions.to(dtype).unsqueeze(-1) * torch.exp(pairs * (-math.log(base) / dim))
    return _waves(angle)


def _by_division(
    positions: Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Angles as p / base^(2i/C)."""
    with precision("angles"):
        angle = positions.to(dtype).unsqueeze(-1) / torch.pow(base, _exponents(positions, dim, dtype))
    return _waves(angle)


def _by_reciprocal(
    positions: Tensor, dim: int, *, base: float = 10000.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Frequencies as 1 / base^(2i/C)."""
    with precision("angles"):
        angle = positions.to(dtype).unsqueeze(-1) * (1 / torch.pow(base, _exponents(positions, dim, dtype)))
    return _waves(angle)


FORMS: tuple[Form, ...] = (
    Form("frequencies as powers", sinusoidal), Form("frequencies by the exponential", _by_exponential, usual=True),
    Form("positions divided by powers", _by_division), Form("frequencies as reciprocals of powers", _by_reciprocal),
)


def _wave() -> Tensor:
    """A wave at its crest."""
    with precision("tables"):
        return torch.sin(freely_chosen(torch.full((), math.pi / 2)))


# The bar of this is how far an entry may lie from the wave of the very angle that was formed, whichever it is.
ANY_ANGLE: tuple[Form, ...] = (Form("crest", _wave),)
