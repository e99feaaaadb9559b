"""ALiBi: a penalty on attention scores that grows linearly with distance."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from assay.numbers.forms import Form

ROW_SHIFTS = ("none", "per_row")


def alibi(
    num_heads: int, q_len: int, k_len: int, *, alibi_row_shift: str = "none", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Give every pair of query and key a bias proportional to their distance, with one slope a head.

    Formula: y[h, i, j] = −slope_h · |i + Tk − Tq − j|; slopes 2^(−8h/H), h = 1 … H; where H is no power of two: the
    n = 2^⌊log2 H⌋ slopes of n heads, then every other one (the first, third, …) of those of 2n heads.

    returns: (H, Tq, Tk) in dtype

    Conventions: the last query lines up with the last key; alibi_row_shift "none", or "per_row": +slope_h · j, which
    under a causal mask differs from it by a constant a row.
    Raises: ValueError where num_heads is below 1, a length is negative, or the convention is unknown.
    Source: Press, Smith, Lewis, "Train Short, Test Long", section 3, arXiv 2108.12409, and its published code; the
    per-row form: BLOOM, arXiv 2211.05100.

    >>> alibi(2, 1, 3)[:, 0].tolist()
    [[-0.125, -0.0625, -0.0], [-0.0078125, -0.00390625, -0.0]]
    """
    _check(num_heads, q_len, k_len, alibi_row_shift)
    return _biases(slopes(num_heads, dtype), q_len, k_len, alibi_row_shift)


def slopes(num_heads: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The slope of every head, (H,), formed in dtype."""
    whole = 2 ** math.floor(math.log2(num_heads))
    first = _geometric(whole, dtype)
    return torch.cat((first, _geometric(2 * whole, dtype)[::2][: num_heads - whole]))


def _check(num_heads: int, q_len: int, k_len: int, alibi_row_shift: str) -> None:
    for name, value, least in (("num_heads", num_heads, 1), ("q_len", q_len, 0), ("k_len", k_len, 0)):
        if value < least:
            raise ValueError(f"{name}={value} must be at least {least}, got {value}; pass a larger number")
    if alibi_row_shift not in ROW_SHIFTS:
        raise ValueError(f"alibi_row_shift={alibi_row_shift!r} must be one of {ROW_SHIFTS}; choose one of them")


def _geometric(heads: int, dtype: torch.dtype) -> Tensor:
    """2^(−8h/n), h = 1 … n."""
    return torch.pow(2.0, torch.arange(1, heads + 1).to(dtype) * -8 / heads)


def _biases(slope: Tensor, q_len: int, k_len: int, alibi_row_shift: str) -> Tensor:
    keys = torch.arange(k_len)
    if alibi_row_shift == "per_row":
        return slope[:, None, None] * keys.to(slope.dtype).expand(q_len, k_len)
    queries = torch.arange(q_len) + (k_len - q_len)
    distance = (queries[:, None] - keys[None, :]).abs().to(slope.dtype)
    return -slope[:, None, None] * distance


def _by_powers_of_the_first(
    num_heads: int, q_len: int, k_len: int, *, alibi_row_shift: str = "none", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Slopes as powers of the first one: (2^(−8/n))^h, as the published code."""
    _check(num_heads, q_len, k_len, alibi_row_shift)
    whole = 2 ** math.floor(math.log2(num_heads))

    def geometric(heads: int) -> Tensor:
        first = torch.pow(2.0, torch.full((), -8.0 / heads, dtype=dtype))
        return torch.pow(first, torch.arange(1, heads + 1).to(dtype))

    slope = torch.cat((geometric(whole), geometric(2 * whole)[::2][: num_heads - whole]))
    return _biases(slope, q_len, k_len, alibi_row_shift)


def _by_difference_of_positions(
    num_heads: int, q_len: int, k_len: int, *, alibi_row_shift: str = "none", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Slope times position for queries and keys apart, then the distance, as BLOOM's and MPT's builders are used."""
    _check(num_heads, q_len, k_len, alibi_row_shift)
    slope = slopes(num_heads, dtype)[:, None, None]
    keys = slope * torch.arange(k_len).to(dtype)
    if alibi_row_shift == "per_row":
        return keys.expand(num_heads, q_len, k_len)
    queries = slope * (torch.arange(q_len) + (k_len - q_len))[:, None].to(dtype)
    return -(queries - keys).abs()


FORMS: tuple[Form, ...] = (
    Form("slopes as powers of two", alibi), Form("slopes as powers of the first slope", _by_powers_of_the_first, usual=True),
    Form("difference of slope times position", _by_difference_of_positions),
)
