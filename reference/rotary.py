"""Rotary positions: each pair of channels is turned by an angle that grows with the position."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen, precision
from assay.numbers.forms import Form

Scaling = Mapping[str, Any]
Powers = Callable[[float, Tensor], Tensor]  # (base, exponents) -> base^−exponents

# What each type of scaling needs, and what it may have besides.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",), "ntk": ("factor",), "yarn": ("factor", "original_length"),
    "longrope": ("short_factor", "long_factor", "original_length"),
    "llama3": ("factor", "original_length", "low_freq_factor", "high_freq_factor"),
}
MAY_HAVE = frozenset(("type", "factor", "original_length", "beta_fast", "beta_slow", "attention_factor"))

DECLARATION = {"offers": {"negative_positions"}}


def rotary(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None,
    scaling: Scaling | None = None,
) -> Tensor:
    """Turn every pair of channels of each token by position times the pair's frequency.

    Formula: (a, b) → m·(a·cos φ − b·sin φ, a·sin φ + b·cos φ), φ = position · θ_i, θ_i = base^(−2i/R), i = 0 … R/2 − 1;
    m is the attention factor (1 without scaling).

    x: (B, H, T, D)
    positions: (T,) or (B, T) integers, negative ones too
    returns: (B, H, T, D)

    Conventions: pairing "interleaved": channels (2i, 2i + 1), "half": (i, i + R/2). With rotary_dim R the first R
    channels turn and carry m; the others pass as they are. The angle is formed in float32 (float64 for float64 input).
    scaling: linear θ/s; ntk base·s^(R/(R−2)); yarn: pairs that turn more than beta_fast (32) times in original_length
    are kept, fewer than beta_slow (1) are θ/s, between them a ramp linear in the pair's index, its ends rounded outward
    as in the published code; longrope: θ_i/λ_i, the long list once a position reaches original_length; llama3: θ/s
    below low_freq_factor turns, θ above high_freq_factor, linear in the turns between.
    attention_factor absent: yarn 0.1·ln s + 1; longrope √(1 + ln s/ln original_length); else 1.
    Raises: ValueError for an unknown pairing, an odd or too large rotary_dim, positions of another shape, bad scaling.
    Source: Su et al., "RoFormer", section 3.2, arXiv 2104.09864; Chen et al., arXiv 2306.15595 (linear); Peng et al.,
    "YaRN", sections 3.1–3.4, arXiv 2309.00071 (ntk, yarn); Ding et al., "LongRoPE", arXiv 2402.13753; Llama 3.1's code.

    >>> x = torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64)
    >>> [round(c, 4) for c in rotary(x, torch.tensor([1])).flatten().tolist()]
    [0.5403, 0.8415]
    """
    return _rotary(x, positions, base, pairing, rotary_dim, scaling, _as_power)


def angles(
    positions: Tensor, dim: int, base: float, scaling: Scaling | None, *, dtype: torch.dtype = torch.float32,
    powers: Powers | None = None,
) -> Tensor:
    """The angle of every position in every pair, (…, T, dim/2), all of it formed in dtype."""
    return positions.to(dtype).unsqueeze(-1) * frequencies(positions, dim, base, scaling, dtype, powers or _as_power)


def frequencies(
    positions: Tensor, dim: int, base: float, scaling: Scaling | None, dtype: torch.dtype, powers: Powers
) -> Tensor:
    """θ_i after scaling, (dim/2,); the positions decide between LongRoPE's two lists."""
    exponents = torch.arange(0, dim, 2, device=positions.device).to(dtype) / dim  # 2i/R
    if scaling is None:
        return powers(base, exponents)
    kind, factor = scaling["type"], scaling.get("factor", 1.0)
    if kind == "ntk":
        # One pair alone has θ = 1 for any base.
        return powers(base * factor ** (dim / (dim - 2)) if dim > 2 else base, exponents)
    theta = powers(base, exponents)
    if kind == "linear":
        return theta / factor
    if kind == "longrope":
        return theta / torch.tensor(_longrope_list(positions, dim, scaling), dtype=dtype, device=theta.device)
    if kind == "yarn":
        return _blend(theta, factor, _yarn_share(dim, base, scaling, theta))
    return _llama3(theta, scaling)


def _blend(theta: Tensor, factor: float, interpolated: Tensor) -> Tensor:
    """θ/s by the interpolated share, θ by the rest."""
    return theta / factor * interpolated + theta * (1 - interpolated)


def _yarn_share(dim: int, base: float, scaling: Scaling, theta: Tensor) -> Tensor:
    """How far each pair is interpolated, 0 … 1: a ramp over the pair's index."""
    length, fast, slow = scaling["original_length"], scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)

    def pair_turning(turns: float) -> float:
        return dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(pair_turning(fast)), 0), min(math.ceil(pair_turning(slow)), dim - 1)
    if high <= low:  # the whole original context holds less than beta_slow turns even of pair 0
        return torch.ones_like(theta)
    pairs = torch.arange(dim // 2, device=theta.device).to(theta.dtype)
    return ((pairs - low) / (high - low)).clamp(0, 1)


def _llama3(theta: Tensor, scaling: Scaling) -> Tensor:
    """θ/s for slow pairs, θ for fast ones, a blend linear in the turns between."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_length"] * theta / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return _blend(theta, scaling["factor"], 1 - kept)


def _longrope_list(positions: Tensor, dim: int, scaling: Scaling) -> list[float]:
    length = int(positions.max()) + 1 if positions.numel() else 0
    name = "long_factor" if length > scaling["original_length"] else "short_factor"
    chosen = [float(factor) for factor in scaling[name]]
    if len(chosen) != dim // 2:
        raise ValueError(
            f"scaling[{name!r}] must hold rotary_dim/2 = {dim // 2} factors, got {len(chosen)}; pass one factor a pair"
        )
    return chosen


def attention_factor(scaling: Scaling | None) -> float:
    """What the output is multiplied by."""
    if scaling is None:
        return 1.0
    given, factor = scaling.get("attention_factor"), scaling.get("factor", 1.0)
    if given is not None:
        return float(given)
    if scaling["type"] == "yarn":
        return 0.1 * math.log(factor) + 1
    if scaling["type"] == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(scaling["original_length"]))
    return 1.0


def _rotary(
    x: Tensor, positions: Tensor, base: float, pairing: str, rotary_dim: int | None, scaling: Scaling | None,
    powers: Powers, *, factor_in_tables: bool = False,
) -> Tensor:
    dim = x.shape[-1] if rotary_dim is None else rotary_dim
    _check(x, positions, pairing, dim, scaling)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    with precision("angles"):
        angle = angles(positions, dim, base, scaling, dtype=wide, powers=powers)
    if positions.dim() == 2:
        angle = angle.unsqueeze(1)  # (B, T, R/2) -> (B, 1, T, R/2)
    factor = attention_factor(scaling)
    with precision("tables"):
        cos, sin = torch.cos(angle), torch.sin(angle)
        if factor_in_tables and factor != 1:
            cos, sin = cos * factor, sin * factor
    turned = _turn(x[..., :dim], cos, sin, pairing)
    if not factor_in_tables and factor != 1:
        turned = turned * factor
    turned = turned.to(x.dtype)
    return turned if dim == x.shape[-1] else torch.cat((turned, x[..., dim:]), dim=-1)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    """Turn the pairs of x (…, R) by angles whose cosines and sines are (…, R/2)."""
    first, second = pairs(x, pairing)
    turned = (first * cos - second * sin, first * sin + second * cos)
    if pairing == "interleaved":
        return torch.stack(turned, dim=-1).flatten(-2)  # (…, R/2, 2) -> (…, R)
    return torch.cat(turned, dim=-1)


def pairs(x: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """First and second channel of every pair of x (…, R)."""
    if pairing == "interleaved":
        return x[..., 0::2], x[..., 1::2]
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def _check(x: Tensor, positions: Tensor, pairing: str, dim: int, scaling: Scaling | None) -> None:
    if pairing not in ("interleaved", "half"):
        raise ValueError(f"pairing={pairing!r} must be 'interleaved' or 'half', got {pairing!r}; choose one of them")
    if dim % 2 or not 2 <= dim <= x.shape[-1]:
        raise ValueError(
            f"rotary_dim={dim} must be even and within 2 … D = {x.shape[-1]}, got {dim}; pass a smaller even number"
        )
    if tuple(positions.shape) not in ((x.shape[-2],), (x.shape[0], x.shape[-2])):
        raise ValueError(
            f"positions.shape={tuple(positions.shape)} must be (T,) or (B, T) for x of shape {tuple(x.shape)}, "
            f"got {tuple(positions.shape)}; pass one position a token"
        )
    if scaling is not None:
        _check_scaling(scaling)


def _check_scaling(scaling: Scaling) -> None:
    kind = str(scaling.get("type"))
    if kind not in NEEDS:
        raise ValueError(f"scaling['type']={kind!r} must be one of {tuple(NEEDS)}, got {kind!r}; choose one of them")
    missing = [name for name in NEEDS[kind] if scaling.get(name) is None]
    if missing:
        raise ValueError(f"scaling={dict(scaling)!r} must have {missing} for type {kind!r}, got none; add them")
    unknown = sorted(set(scaling) - MAY_HAVE - set(NEEDS[kind]))
    if unknown:
        raise ValueError(f"scaling={dict(scaling)!r} must hold what type {kind!r} knows, got {unknown}; drop them")
    if scaling.get("factor", 1.0) < 1:
        raise ValueError(f"scaling['factor']={scaling['factor']} must be at least 1; pass how much longer it gets")


def _as_power(base: float, exponents: Tensor) -> Tensor:
    return torch.pow(base, -exponents)


def _as_reciprocal(base: float, exponents: Tensor) -> Tensor:
    return 1 / torch.pow(base, exponents)


def _as_exponential(base: float, exponents: Tensor) -> Tensor:
    return torch.exp(exponents * -math.log(base))


def _with(powers: Powers, factor_in_tables: bool) -> Callable[..., Tensor]:
    def forward(
        x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
        rotary_dim: int | None = None, scaling: Scaling | None = None,
    ) -> Tensor:
        return _rotary(
            x, positions, base, pairing, rotary_dim, scaling, powers, factor_in_tables=factor_in_tables
        )

    return forward


# Tables of cosines and sines, and complex multiplication, round as these do: (a + ib)·e^{iφ} is the same four products.
FORMS: tuple[Form, ...] = (
    Form("frequencies as powers", rotary),
    Form("frequencies as reciprocals of powers, factor in the tables", _with(_as_reciprocal, True), usual=True),
    Form("frequencies by the exponential", _with(_as_exponential, False)),
)


def _reach(factor_in_tables: bool) -> Callable[..., Tensor]:
    """m·(|a| + |b|) of every pair (a, b): a channel turned by an angle whose cosine and sine are both at their largest."""

    def forward(
        x: Tensor, *, pairing: str = "interleaved", rotary_dim: int | None = None, scaling: Scaling | None = None
    ) -> Tensor:
        first, second = pairs(x[..., :rotary_dim], pairing)
        factor = attention_factor(scaling)
        with precision("tables"):
            quarter = freely_chosen(torch.full((), math.pi / 2, dtype=x.dtype))
            one = torch.sin(quarter)
            if factor_in_tables and factor != 1:
                one = one * factor
        reach = first.abs() * one + second.abs() * one
        return reach if factor_in_tables or factor == 1 else reach * factor

    return forward


# The bar of these is how far a turned channel may lie from x turned by the very angle the implementation formed, whichever
# that is: errors of the angle itself do not enter, for they keep the length of a pair. It is the same at any position.
ANY_ANGLE: tuple[Form, ...] = (
    Form("factor after the turn", _reach(False)), Form("factor in the tables", _reach(True)),
)
