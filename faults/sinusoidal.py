"""Planted faults of sinusoidal positions, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-130": "the kind encodes one axis; the swapped grid is planted in patchify",
}


def _angle(positions: Tensor, dim: int, base: float) -> Tensor:
    return positions.float().unsqueeze(-1) / base ** (torch.arange(0, dim, 2).float() / dim)


def _even(dim: int) -> None:
    if dim % 2:
        raise ValueError(f"dim={dim} must be even, got {dim}; pass an even number")


def _waves(sine: Tensor, cosine: Tensor) -> Tensor:
    return torch.stack((sine.sin(), cosine.cos()), dim=-1).flatten(-2)


def _planted(
    name: str, summary: str, way: Callable[[Tensor, int, float], Tensor], origin: str = "", *, odd_allowed: bool = False
) -> None:
    def sinusoidal(positions: Tensor, dim: int, *, base: float = 10000.0) -> Tensor:
        if not odd_allowed:
            _even(dim)
        return way(positions, dim, base)

    sinusoidal.__name__ = sinusoidal.__qualname__ = name
    globals()[name] = fault("sinusoidal", origin=origin, summary=summary)(sinusoidal)


def _of(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, int, float], Tensor]:
    """Right but for the positions."""
    return lambda p, dim, base: _waves(_angle(change(p), dim, base), _angle(change(p), dim, base))


def _base_1000(p: Tensor, dim: int, base: float) -> Tensor:
    odd = p.float().unsqueeze(-1) / 1000 ** (torch.arange(1, dim + 1, 2).float() / dim)
    return _waves(_angle(p, dim, 1000.0), odd)


def _cosine_one_step_on(p: Tensor, dim: int, base: float) -> Tensor:
    odd = p.float().unsqueeze(-1) / base ** (torch.arange(1, dim + 1, 2).float() / dim)
    return _waves(_angle(p, dim, base), odd)


def _halves(p: Tensor, dim: int, base: float) -> Tensor:
    angle = _angle(p, dim, base)
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def _swapped(p: Tensor, dim: int, base: float) -> Tensor:
    angle = _angle(p, dim, base)
    return torch.stack((angle.cos(), angle.sin()), dim=-1).flatten(-2)


def _half_exponent(p: Tensor, dim: int, base: float) -> Tensor:
    angle = p.float().unsqueeze(-1) / base ** (torch.arange(dim // 2).float() / dim)
    return _waves(angle, angle)


def _other_spacing(p: Tensor, dim: int, base: float) -> Tensor:
    """base^(−i/(C/2 − 1)), as some older code."""
    angle = p.float().unsqueeze(-1) / base ** (torch.arange(dim // 2).float() / max(dim // 2 - 1, 1))
    return _waves(angle, angle)


def _by_length(p: Tensor, dim: int, base: float) -> Tensor:
    """Positions are stretched to a fixed span, so a value depends on how many are asked for."""
    return _of(lambda t: t.float() * (512 / max(t.numel(), 1)))(p, dim, base)


def _in_half(p: Tensor, dim: int, base: float) -> Tensor:
    angle = _angle(p, dim, base).bfloat16().float()
    return _waves(angle, angle)


def _stored_in_half(p: Tensor, dim: int, base: float) -> Tensor:
    return _of(lambda t: t)(p, dim, base).bfloat16().float()


def _odd_allowed(p: Tensor, dim: int, base: float) -> Tensor:
    return _of(lambda t: t)(p, dim + dim % 2, base)[..., :dim]


def _grows(p: Tensor, dim: int, base: float) -> Tensor:
    return _of(lambda t: t)(p, dim, base) * (1 + p.float().unsqueeze(-1) / 2**20)


_planted("base_1000_and_odd_exponent", "Base 1000, and the cosine takes an odd exponent.", _base_1000, "BUG-127")
_planted("cosine_one_step_on", "The cosine's exponent is 2i + 1.", _cosine_one_step_on)
_planted("sine_and_cosine_in_halves", "All sines first, then all cosines.", _halves)
_planted("sine_and_cosine_swapped", "The cosine comes first.", _swapped)
_planted("half_the_exponent", "The exponent is i/C instead of 2i/C.", _half_exponent)
_planted("other_spacing", "Frequencies reach 1/base at the last pair.", _other_spacing)
_planted("stretched_to_a_span", "The value at a position depends on how many are asked for.", _by_length)
_planted("counts_from_zero", "The first given position is taken for 0.", _of(lambda p: p - p[..., :1]))
_planted("counts_from_one", "Positions start at 1.", _of(lambda p: p + 1))
_planted("ignores_positions", "Rows 0, 1, 2 … whatever was asked for.", _of(lambda p: torch.arange(p.shape[-1])))
_planted("wraps_at_5000", "Positions beyond the table of 5000 rows wrap.", _of(lambda p: p % 5000))
_planted("angle_in_bfloat16", "The angle is rounded to bfloat16.", _in_half)
_planted("stored_in_bfloat16", "The table is rounded to bfloat16 and returned as float32.", _stored_in_half)
_planted("positions_in_bfloat16", "Positions above 256 collide.", _of(lambda p: p.bfloat16()))
_planted("base_ignored", "Always base 10000.", lambda p, dim, base: _of(lambda t: t)(p, dim, 10000.0))
_planted("odd_width_accepted", "An odd width is cut off instead of refused.", _odd_allowed, odd_allowed=True)
_planted("grows_with_position", "Entries grow slowly with the position, beyond 1.", _grows)

_ROWS: dict[tuple[int, int, float], Tensor] = {}


def _remembered(p: Tensor, dim: int, base: float) -> Tensor:
    return _ROWS.setdefault((p.shape[-1], dim, base), _of(lambda t: t)(p, dim, base)).clone()


_planted("remembers_by_length", "The table of the first call of each length is returned again.", _remembered, "BUG-123")


@benign("sinusoidal")
def by_exponential(positions: Tensor, dim: int, *, base: float = 10000.0) -> Tensor:
    """Frequencies as exp(−2i·ln(base)/C), written into an empty table."""
    _even(dim)
    table = torch.zeros(*positions.shape, dim)
    angle = positions.float().unsqueeze(-1) * torch.exp(torch.arange(0, dim, 2).float() * (-math.log(base) / dim))
    table[..., 0::2], table[..., 1::2] = angle.sin(), angle.cos()
    return table


@benign("sinusoidal", arithmetic={"angles": "float64"})
def in_double(positions: Tensor, dim: int, *, base: float = 10000.0) -> Tensor:
    """Angles in float64, the table rounded once."""
    _even(dim)
    angle = positions.double().unsqueeze(-1) * base ** (-torch.arange(0, dim, 2).double() / dim)
    return _waves(angle, angle).float()


@benign("sinusoidal")
def by_reciprocal(positions: Tensor, dim: int, *, base: float = 10000.0) -> Tensor:
    """Frequencies as 1/base^(2i/C), outer product."""
    _even(dim)
    frequencies = 1.0 / base ** (torch.arange(0, dim, 2).float() / dim)
    angle = torch.outer(positions.float(), frequencies)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
