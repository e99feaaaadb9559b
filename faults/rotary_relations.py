"""Planted faults of rotary positions that relations between calls show: lengths, distances, linearity, order of channels."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.faults.planting import wide
from assay.faults.rotary import angle_of, plain, powers, turn
from assay.registry import benign, fault

Way = Callable[[Tensor, Tensor, float, str, int], Tensor]


def _planted(name: str, summary: str, way: Way, **options: Any) -> None:
    """Plant a fault of the call without scaling, given as a function of (x, positions, base, pairing, R)."""

    def rotary(
        x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
        rotary_dim: int | None = None,
    ) -> Tensor:
        return way(x, positions, base, pairing, rotary_dim or x.shape[-1])

    rotary.__name__ = rotary.__qualname__ = name
    globals()[name] = fault("rotary", summary=summary, **options)(rotary)


def _sine_one_step_behind(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle, before = (angle_of(x, p, powers(x, dim, base)) for p in (positions, positions - 1))
    return turn(x, angle.cos(), before.sin(), pairing, dim)


def _drifting(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    angle = angle_of(x, positions, powers(x, dim, base))
    angle = angle * (1 + angle / 64)
    return turn(x, angle.cos(), angle.sin(), pairing, dim)


def _zero_turns(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    return plain(x, torch.where(positions == 0, 1, positions), base, pairing, dim)


def _partner_one_further(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    """The channels are rolled by one before the turn and back after it: pairs straddle."""
    rolled = torch.cat((x[..., :dim].roll(1, -1), x[..., dim:]), dim=-1)
    out = plain(rolled, positions, base, pairing, dim)
    return torch.cat((out[..., :dim].roll(-1, -1), out[..., dim:]), dim=-1)


def _unit_length(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    size = wide(x).square().mean(-1, keepdim=True).clamp_min(1e-6).sqrt()
    return plain((wide(x) / size).to(x.dtype), positions, base, pairing, dim)


def _tail_zeroed(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    return torch.cat((plain(x, positions, base, pairing, dim)[..., :dim], x[..., dim:] * 0), dim=-1)


def _first_sequence_only(x: Tensor, positions: Tensor, base: float, pairing: str, dim: int) -> Tensor:
    """(B, T) positions turn the first sequence; the others pass."""
    out = plain(x, positions, base, pairing, dim)
    return torch.cat((out[:1], x[1:])) if positions.dim() == 2 else out


_planted("cosine_and_sine_from_two_angles", "The sine is that of the position before.", _sine_one_step_behind)
_planted("frequency_drifts_with_position", "The angle grows faster than the position.", _drifting)
_planted("zero_position_turns", "Position 0 is taken for 1.", _zero_turns)
_planted("negative_positions_mirrored", "The sign of a position is lost.",
         lambda x, p, base, pairing, dim: plain(x, p.abs(), base, pairing, dim), offers={"negative_positions"})
_planted("brought_to_unit_length", "Heads are normalised on the way.", _unit_length)
_planted("negative_entries_dropped", "Negative entries count as 0.",
         lambda x, p, base, pairing, dim: plain(x.relu(), p, base, pairing, dim))
_planted("pairing_ignored", "Neighbouring channels are paired whatever is asked for.",
         lambda x, p, base, pairing, dim: plain(x, p, base, "interleaved", dim))
_planted("partner_one_further", "Every pair begins one channel too early.", _partner_one_further)
_planted("tail_zeroed", "Channels beyond rotary_dim come out as 0.", _tail_zeroed)
_planted("ignores_positions", "Positions are 0, 1, 2 … whatever is given.",
         lambda x, p, base, pairing, dim: plain(x, torch.arange(p.shape[-1]), base, pairing, dim))
_planted("first_sequence_only", "With one row of positions per sequence only the first sequence turns.",
         _first_sequence_only)


@benign("rotary", offers={"negative_positions"})
def negative_positions_too(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None
) -> Tensor:
    """Magnitude of the position first, its sign on the sine."""
    dim = rotary_dim or x.shape[-1]
    angle = angle_of(x, positions.abs(), powers(x, dim, base))
    sign = positions.sign().unsqueeze(-1)
    return turn(x, angle.cos(), angle.sin() * (sign.unsqueeze(1) if positions.dim() == 2 else sign), pairing, dim)
