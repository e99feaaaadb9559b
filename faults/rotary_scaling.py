"""Planted faults of rotary positions beyond the trained length: linear, NTK, YaRN, LongRoPE and Llama 3 scaling."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.faults.rotary import Scaling, angle_of, powers, turn
from assay.registry import benign, fault


class Ways:
    """The right way to scale, step by step; a fault overrides one step."""

    def ntk_base(self, base: float, factor: float, dim: int) -> float:
        return base * factor ** (dim / (dim - 2)) if dim > 2 else base

    def linear(self, theta: Tensor, factor: float) -> Tensor:
        return theta / factor

    def length(self, x: Tensor, positions: Tensor) -> int:
        return int(positions.max()) + 1 if positions.numel() else 0

    def longrope(self, theta: Tensor, scaling: Scaling, length: int) -> Tensor:
        name = "long_factor" if length > scaling["original_length"] else "short_factor"
        return theta / torch.tensor(scaling[name], dtype=theta.dtype)

    def turns_to_pair(self, turns: float, dim: int, base: float, length: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    def yarn(self, theta: Tensor, scaling: Scaling, dim: int, base: float) -> Tensor:
        length = scaling["original_length"]
        low = max(math.floor(self.turns_to_pair(scaling.get("beta_fast", 32), dim, base, length)), 0)
        high = min(math.ceil(self.turns_to_pair(scaling.get("beta_slow", 1), dim, base, length)), dim - 1)
        share = ((torch.arange(dim // 2).to(theta) - low) / (high - low)).clamp(0, 1) if high > low else theta * 0 + 1
        return theta / scaling["factor"] * share + theta * (1 - share)

    def llama3(self, theta: Tensor, scaling: Scaling) -> Tensor:
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((scaling["original_length"] * theta / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return theta * kept + theta / scaling["factor"] * (1 - kept)

    def factor(self, scaling: Scaling) -> float:
        given = scaling.get("attention_factor")
        return self.default_factor(scaling) if given is None else float(given)

    def default_factor(self, scaling: Scaling) -> float:
        s = scaling.get("factor", 1.0)
        if scaling["type"] == "yarn":
            return 0.1 * math.log(s) + 1
        if scaling["type"] == "longrope":
            return math.sqrt(1 + math.log(s) / math.log(scaling["original_length"]))
        return 1.0

    def theta(self, x: Tensor, positions: Tensor, base: float, dim: int, scaling: Scaling) -> Tensor:
        if scaling["type"] == "ntk":
            return powers(x, dim, self.ntk_base(base, scaling["factor"], dim))
        theta = powers(x, dim, base)
        if scaling["type"] == "linear":
            return self.linear(theta, scaling["factor"])
        if scaling["type"] == "longrope":
            return self.longrope(theta, scaling, self.length(x, positions))
        return self.yarn(theta, scaling, dim, base) if scaling["type"] == "yarn" else self.llama3(theta, scaling)


def _made(ways: Ways) -> Callable[..., Tensor]:
    def rotary(
        x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
        rotary_dim: int | None = None, scaling: Scaling | None = None,
    ) -> Tensor:
        dim = rotary_dim or x.shape[-1]
        theta = powers(x, dim, base) if scaling is None else ways.theta(x, positions, base, dim, scaling)
        angle = angle_of(x, positions, theta)
        factor = 1.0 if scaling is None else ways.factor(scaling)
        return turn(x, angle.cos(), angle.sin(), pairing, dim, factor)

    return rotary


def _planted(name: str, summary: str, origin: str = "", **steps: Any) -> None:
    """Plant a fault that differs from the right way in these steps."""
    way = _made(type(name, (Ways,), steps)())
    way.__name__ = way.__qualname__ = name
    globals()[name] = fault("rotary", origin=origin, summary=summary)(way)


_SEEN = {"longest": 0}


def _longest_ever(ways: Ways, x: Tensor, positions: Tensor) -> int:
    _SEEN["longest"] = max(_SEEN["longest"], Ways().length(x, positions))
    return _SEEN["longest"]


def _ramp_at(pairs: Callable[[float], int]) -> Callable[..., Tensor]:
    """YaRN with a step instead of a ramp."""

    def yarn(ways: Ways, theta: Tensor, scaling: Scaling, dim: int, base: float) -> Tensor:
        edge = pairs(ways.turns_to_pair(scaling.get("beta_fast", 32), dim, base, scaling["original_length"]))
        return torch.where(torch.arange(dim // 2) <= edge, theta, theta / scaling["factor"])

    return yarn


def _yarn_with_betas_swapped(ways: Ways, theta: Tensor, scaling: Scaling, dim: int, base: float) -> Tensor:
    kept = Ways().yarn(theta, scaling, dim, base)
    return theta + theta / scaling["factor"] - kept  # the share of each pair and its complement change places


_planted("ntk_base_beyond_all_length", "NTK's base is taken at length times factor.", "BUG-113",
         ntk_base=lambda w, base, a, dim: base * (a * a - a + 1) ** (dim / (dim - 2)) if dim > 2 else base)
_planted("ntk_exponent_one", "NTK multiplies the base by s alone.", ntk_base=lambda w, base, a, dim: base * a)
_planted("length_from_the_head_axis", "The length is read from the head axis: the long list is never used.", "BUG-114",
         length=lambda w, x, positions: x.shape[1])
_planted("length_of_the_call", "The length is that of the call, not the position reached.",
         length=lambda w, x, positions: x.shape[2])
_planted("longest_ever_seen", "After one long call the long list stays in use.", "BUG-122", length=_longest_ever)
_planted("llama3_unscaled", "Band-wise frequencies are computed and the plain ones returned.", "BUG-115",
         llama3=lambda w, theta, scaling: theta)
_planted("llama3_without_the_blend", "Between the bands frequencies jump instead of blending.",
         llama3=lambda w, theta, scaling: torch.where(
             scaling["original_length"] * theta / (2 * math.pi) < scaling["low_freq_factor"],
             theta / scaling["factor"], theta))
_planted("long_factors_lost", "Beyond the original context the factors are not applied.", "BUG-116",
         longrope=lambda w, theta, s, length: theta if length > s["original_length"]
         else Ways().longrope(theta, s, length))
_planted("factors_multiplied", "LongRoPE's frequencies are multiplied by the factors.",
         longrope=lambda w, theta, s, length: theta * theta / Ways().longrope(theta, s, length))
_planted("short_list_always", "LongRoPE never leaves the short list.",
         longrope=lambda w, theta, s, length: Ways().longrope(theta, s, 0))
_planted("attention_factor_ignored", "A given attention factor is replaced by the default.", "BUG-117",
         factor=lambda w, scaling: w.default_factor(scaling))
_planted("attention_factor_missing", "The output is never multiplied.", factor=lambda w, scaling: 1.0)
_planted("attention_factor_squared", "The factor is applied twice.", factor=lambda w, s: Ways().factor(s) ** 2)
_planted("longrope_factor_of_yarn", "LongRoPE takes YaRN's attention factor.",
         default_factor=lambda w, s: Ways().default_factor({**s, "type": "yarn"}) if s["type"] == "longrope"
         else Ways().default_factor(s))
_planted("linear_ignored", "Linear scaling does nothing.", linear=lambda w, theta, factor: theta)
_planted("linear_multiplies", "Linear scaling multiplies frequencies by the factor.",
         linear=lambda w, theta, factor: theta * factor)
_planted("yarn_without_the_ramp", "Pairs jump from kept to θ/s.", yarn=_ramp_at(math.floor))
_planted("yarn_kept_and_interpolated_swapped", "Slow pairs are kept and fast ones divided.",
         yarn=_yarn_with_betas_swapped)
_planted("yarn_scales_all", "YaRN divides every pair: linear scaling under another name.",
         yarn=lambda w, theta, scaling, dim, base: theta / scaling["factor"])
_planted("yarn_turns_without_two_pi", "Turns are counted in radians.",
         turns_to_pair=lambda w, turns, dim, base, length: dim * math.log(length / turns) / (2 * math.log(base)))
_planted("other_types_turn_at_half_speed", "Every type but linear divides positions by 2 besides.", "BUG-106",
         theta=lambda w, x, p, base, dim, s: Ways().theta(x, p, base, dim, s) / (1 if s["type"] == "linear" else 2))
_planted("factor_never_read", "The factor is always 2.",
         theta=lambda w, x, p, base, dim, s: Ways().theta(x, p, base, dim, {**s, "factor": 2.0}))


@benign("rotary")
def factor_in_the_tables(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None,
    scaling: Scaling | None = None,
) -> Tensor:
    """The attention factor multiplies cosines and sines."""
    dim, ways = rotary_dim or x.shape[-1], Ways()
    theta = powers(x, dim, base) if scaling is None else ways.theta(x, positions, base, dim, scaling)
    angle = angle_of(x, positions, theta)
    factor = 1.0 if scaling is None else ways.factor(scaling)
    return turn(x, angle.cos() * factor, angle.sin() * factor, pairing, dim)


@benign("rotary")
def all_scalings_written_again(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None,
    scaling: Scaling | None = None,
) -> Tensor:
    """The right way that the faults of this file start from."""
    return _made(Ways())(x, positions, base=base, pairing=pairing, rotary_dim=rotary_dim, scaling=scaling)
