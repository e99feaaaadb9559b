"""Planted faults of rotary positions, and unusual ways that are right.

Faults of scaling stand in rotary_scaling.py.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.faults.planting import bent, packed, wide
from assay.registry import benign, fault

Scaling = Mapping[str, Any]
FLOAT32_INSIDE = {"internal": "float32"}
NOT_EXPRESSIBLE = {
    "BUG-107": "the kind makes its own tables, whose two halves are equal: there is no 2-D table to read half of",
    "BUG-118": "the contract's scaling has no mscale and mscale_all_dim pair",
    "BUG-119": "the softmax scale of latent attention is no argument of this kind",
}


def wide_type(x: Tensor) -> torch.dtype:
    """The type that angles are formed in for this input."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def powers(x: Tensor, dim: int, base: float) -> Tensor:
    """θ_i = base^(−2i/dim)."""
    return 1.0 / base ** (torch.arange(0, dim, 2, device=x.device).to(wide_type(x)) / dim)


def angle_of(x: Tensor, positions: Tensor, theta: Tensor) -> Tensor:
    """position · θ, (T, R/2) or (B, 1, T, R/2)."""
    angle = positions.to(theta.dtype).unsqueeze(-1) * theta
    return angle.unsqueeze(1) if positions.dim() == 2 else angle


def turn(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, dim: int | None = None, factor: float = 1.0) -> Tensor:
    """Turn the first dim channels, rounding once."""
    dim = x.shape[-1] if dim is None else dim
    part = wide(x[..., :dim])
    half = pairing == "half"
    a, b = (part[..., : dim // 2], part[..., dim // 2 :]) if half else (part[..., 0::2], part[..., 1::2])
    both = ((a * cos - b * sin) * factor, (a * sin + b * cos) * factor)
    turned = torch.cat(both, dim=-1) if half else torch.stack(both, dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., dim:]), dim=-1)


def plain(x: Tensor, positions: Tensor, base: float, pairing: str, rotary_dim: int | None) -> Tensor:
    """The right result without scaling."""
    dim = rotary_dim or x.shape[-1]
    angle = angle_of(x, positions, powers(x, dim, base))
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _planted(
    name: str, summary: str, way: Callable[[Tensor, Tensor, float, str, int], Tensor], origin: str = "", **options: Any
) -> None:
    """Plant a fault of the call without scaling, given as a function of (x, positions, base, pairing, R)."""

    def rotary(
        x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
        rotary_dim: int | None = None,
    ) -> Tensor:
        return way(x, positions, base, pairing, rotary_dim or x.shape[-1])

    rotary.__name__ = rotary.__qualname__ = name
    globals()[name] = fault("rotary", origin=origin, summary=summary, **options)(rotary)


def _other_pairing(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    return plain(x, positions, base, "interleaved" if pairing == "half" else "half", dim)


def _pairs_by_two_angles(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base)).repeat_interleave(2, -1)
    part = wide(x[..., :dim])
    swapped = torch.cat((-part[..., dim // 2 :], part[..., : dim // 2]), dim=-1)
    return torch.cat(((part * angle.cos() + swapped * angle.sin()).to(x.dtype), x[..., dim:]), dim=-1)


def _angles_in(low: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, float, str, int], Tensor]:
    """The angle formed by low(x, positions, θ)."""

    def way(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
        angle = low(x, positions, powers(x, dim, base)).to(wide_type(x))
        return turn(x, angle.cos(), angle.sin(), pairing, dim)

    return way


def _tables_in_half(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base))
    return turn(x, wide(angle.cos().to(x.dtype)), wide(angle.sin().to(x.dtype)), pairing, dim)


def _steps_added_up(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    first = powers(x, dim, base)
    rows = [torch.zeros_like(first)]
    for _ in range(int(positions.abs().max()) if positions.numel() else 0):
        rows.append((rows[-1] + first).to(torch.bfloat16).to(first.dtype))
    angle = torch.stack(rows)[positions.abs()] * positions.sign().unsqueeze(-1)
    angle = angle.unsqueeze(1) if positions.dim() == 2 else angle
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _tail_unwritten(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    return torch.cat((plain(x, positions, base, pairing, dim)[..., :dim], torch.empty_like(x[..., dim:])), dim=-1)


def _partial_by_head_width(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, x.shape[-1], base)[: dim // 2])
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _moved(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor, float, str, int], Tensor]:
    """Right but for the positions, which are changed first."""
    return lambda x, positions, base, pairing, dim: plain(x, change(positions), base, pairing, dim)


def _negated_sine(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base))
    return turn(x, angle.cos(), -angle.sin(), pairing, dim)


def _frequencies_reversed(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base).flip(-1))
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _half_exponent(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base).sqrt())
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _first_pair_overwritten(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    """b' = a'·sin + b·cos with the new a': the classic slip of work in place."""
    angle = angle_of(x, positions, powers(x, dim, base))
    half = pairing == "half"
    part = wide(x[..., :dim])
    a, b = (part[..., : dim // 2], part[..., dim // 2 :]) if half else (part[..., 0::2], part[..., 1::2])
    first = a * angle.cos() - b * angle.sin()
    both = (first, first * angle.sin() + b * angle.cos())
    turned = torch.cat(both, dim=-1) if half else torch.stack(both, dim=-1).flatten(-2)
    return torch.cat((turned.to(x.dtype), x[..., dim:]), dim=-1)


_TABLES: dict[Any, Tensor] = {}


def _cached(
    key: Callable[[Tensor, Tensor, float, int], Any], look: Callable[[Tensor, Tensor, float, int], Any] | None = None
) -> Callable[[Tensor, Tensor, float, str, int], Tensor]:
    """A table of angles that is kept under one key and may be looked up under another."""

    def way(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
        angle = _TABLES.get((look or key)(x, positions, base, dim))
        if angle is None:
            angle = _TABLES.setdefault(
                key(x, positions, base, dim), angle_of(x, positions, powers(x, dim, base)).detach()
            )
        angle = angle[..., : dim // 2].to(wide_type(x))
        return turn(x, angle.cos(), angle.sin(), pairing, dim)

    return way


def _gradient(change: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]) -> Callable[..., Tensor]:
    """Right forward; the gradient of x is change(upstream, turn forward)."""

    def way(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
        def again(t: Tensor) -> Tensor:
            return plain(t, positions, base, pairing, dim)

        # The upstream is what `bent` on the output sees; undo the right backward (a turn by −m) by turning once first.
        return bent(again(x), lambda upstream: again(change(upstream, again)))

    return way


_planted("other_pairing", "Pairs adjacent channels where halves are asked for, and the reverse.",
         _other_pairing, "BUG-103")
_planted("pairs_by_two_angles", "Angles are repeated pairwise, but halves are rotated.",
         _pairs_by_two_angles, "BUG-104")
_planted("positions_doubled", "Every position counts twice without any scaling.", _moved(lambda p: 2 * p), "BUG-106")
_planted("frequencies_in_bfloat16", "Frequencies are rounded to bfloat16 before they meet the position.",
         _angles_in(lambda x, p, theta: angle_of(x, p, theta.bfloat16().to(theta.dtype))), "BUG-108")
_planted("frequencies_in_the_input_type", "Frequencies are rounded to the input's type: right in float32.",
         _angles_in(lambda x, p, theta: angle_of(x, p, theta.to(x.dtype).to(theta.dtype))), "BUG-108")
_planted("positions_in_the_input_type", "Positions inherit the input's type: 257 is 256 in bfloat16.",
         _angles_in(lambda x, p, theta: angle_of(x, p.to(x.dtype), theta)), "BUG-109")
_planted("angles_in_the_input_type", "The product of position and frequency is stored in the input's type.",
         _angles_in(lambda x, p, theta: angle_of(x, p, theta).to(x.dtype)))
_planted("tables_in_the_input_type", "Cosines and sines are stored in the input's type, though float32 is declared.",
         _tables_in_half, "BUG-110", arithmetic=FLOAT32_INSIDE)
_planted("rotates_all_channels", "rotary_dim is dropped: all channels turn.",
         lambda x, p, base, pairing, dim: plain(x, p, base, pairing, None), "BUG-111")
_planted("partial_by_head_width", "The exponent divides by the head's width instead of by rotary_dim.",
         _partial_by_head_width, "BUG-112")
_planted("tail_unwritten", "Channels beyond rotary_dim are never written.", _tail_unwritten, "BUG-058")
_planted("counts_from_zero", "The first given position is taken for 0.", _moved(lambda p: p - p[..., :1]), "BUG-073")
_planted("counts_on_by_one", "Positions are the first one plus 0, 1, 2 …: restarts are not seen.",
         _moved(lambda p: p[..., :1] + torch.arange(p.shape[-1])), "BUG-121")
_planted("first_row_for_all", "Positions of the first sequence are used for all.",
         _moved(lambda p: p[:1].expand_as(p) if p.dim() == 2 else p), "BUG-075")
_planted("positions_from_one", "The first position is 1.", _moved(lambda p: p + 1))
_planted("positions_wrap", "Positions wrap at 2048.", _moved(lambda p: p % 2048))
_planted("table_by_length", "The table is kept by length alone: the same length elsewhere returns the first.",
         _cached(lambda x, p, base, dim: ("length", tuple(p.shape), base, dim)), "BUG-123")
_planted("table_by_half_width", "The width is halved in the key: a false hit for R after 2R.",
         _cached(lambda x, p, base, dim: ("half", tuple(p.flatten().tolist()), p.dim(), base, dim // 2),
                 lambda x, p, base, dim: ("half", tuple(p.flatten().tolist()), p.dim(), base, dim)), "BUG-124")
_planted("table_forgets_the_base", "The table is kept without its base.",
         _cached(lambda x, p, base, dim: ("base", tuple(p.flatten().tolist()), p.dim(), dim)))
_planted("no_backward", "The gradient stops here.", _gradient(lambda g, again: torch.zeros_like(g)), "BUG-125")
_planted("backward_turns_forward", "∂x is turned by +m instead of −m.", _gradient(lambda g, again: again(g)))
_planted("backward_does_not_turn", "∂x is the upstream itself.", _gradient(lambda g, again: g))
_planted("turns_the_other_way", "The sine has the wrong sign.", _negated_sine)
_planted("frequencies_reversed", "The slowest frequency goes to the first pair.", _frequencies_reversed)
_planted("half_the_exponent", "θ_i = base^(−i/R).", _half_exponent)
_planted("base_ignored", "Always base 10000.",
         lambda x, p, base, pairing, dim: plain(x, p, 10000.0, pairing, dim))
_planted("first_channel_overwritten", "The second channel is computed from the already turned first.",
         _first_pair_overwritten)
_planted("steps_added_up", "Angles are built by adding θ in bfloat16, step by step.", _steps_added_up,
         limits={"T": range(0, 257)}, lacks={"long_positions"})
_planted("reads_as_contiguous", "Strides are ignored: transposed heads are read as if packed.",
         lambda x, p, base, pairing, dim: plain(packed(x), p, base, pairing, dim), "BUG-095")
_planted("assumes_last_stride_one", "The last axis is read as if its stride were 1.",
         lambda x, p, base, pairing, dim: plain(x if x.stride(-1) == 1 else packed(x), p, base, pairing, dim),
         "BUG-093")


@benign("rotary")
def by_complex_numbers(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """Pairs as complex numbers times e^{iφ}."""
    dim = rotary_dim or x.shape[-1]
    part = wide(x[..., :dim])
    angle = angle_of(x, positions, powers(x, dim, base))
    whole = torch.polar(torch.ones_like(angle), angle)
    if pairing == "half":
        turned = torch.complex(*part.chunk(2, -1)) * whole
        flat = torch.cat((turned.real, turned.imag), dim=-1)
    else:
        turned = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) * whole
        flat = torch.view_as_real(turned).flatten(-2)
    return torch.cat((flat.to(x.dtype), x[..., dim:]), dim=-1)


@benign("rotary")
def by_exponential(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """Frequencies as exp(−2i·ln(base)/R)."""
    dim = rotary_dim or x.shape[-1]
    pairs = torch.arange(0, dim, 2, device=x.device).to(wide_type(x))
    angle = angle_of(x, positions, torch.exp(pairs * (-math.log(base) / dim)))
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


@benign("rotary")
def by_rotate_half(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """x·cos + rotated(x)·sin with doubled tables."""
    dim = rotary_dim or x.shape[-1]
    angle = angle_of(x, positions, powers(x, dim, base))
    part = wide(x[..., :dim])
    if pairing == "half":
        double, swapped = torch.cat((angle, angle), -1), torch.cat((-part[..., dim // 2 :], part[..., : dim // 2]), -1)
    else:
        double = angle.repeat_interleave(2, -1)
        swapped = torch.stack((-part[..., 1::2], part[..., 0::2]), dim=-1).flatten(-2)
    return torch.cat(((part * double.cos() + swapped * double.sin()).to(x.dtype), x[..., dim:]), dim=-1)


@benign("rotary")
def by_matrices(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """A 2×2 matrix for each pair and position."""
    dim = rotary_dim or x.shape[-1]
    angle = angle_of(x, positions, powers(x, dim, base))
    matrix = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), dim=-1).unflatten(-1, (2, 2))
    part = wide(x[..., :dim])
    half = pairing == "half"
    pairs = torch.stack(part.chunk(2, -1), dim=-1) if half else part.unflatten(-1, (-1, 2))
    turned = (matrix * pairs.unsqueeze(-2)).sum(-1)
    flat = turned.transpose(-1, -2).flatten(-2) if half else turned.flatten(-2)
    return torch.cat((flat.to(x.dtype), x[..., dim:]), dim=-1)


@benign("rotary", arithmetic={"angles": "float64"})
def angles_in_double(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """Angles in float64, tables rounded once."""
    dim = rotary_dim or x.shape[-1]
    angle = angle_of(x, positions, powers(x.double(), dim, base))
    return turn(x, angle.cos().to(wide_type(x)), angle.sin().to(wide_type(x)), pairing, dim)
