"""Planted faults of ALiBi, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


def _geometric(heads: int) -> list[float]:
    return [2.0 ** (-8 * h / heads) for h in range(1, heads + 1)]


def _slopes(heads: int) -> list[float]:
    whole: int = 2 ** math.floor(math.log2(heads))
    return _geometric(whole) + _geometric(2 * whole)[0::2][: heads - whole]


def _distance(q_len: int, k_len: int) -> Tensor:
    return (torch.arange(k_len - q_len, k_len)[:, None] - torch.arange(k_len)[None]).abs().float()


def _bias(slopes: list[float], distance: Tensor) -> Tensor:
    return -torch.tensor(slopes)[:, None, None] * distance


def _planted(name: str, summary: str, way: Callable[[int, int, int], Tensor], origin: str = "") -> None:
    def alibi(num_heads: int, q_len: int, k_len: int) -> Tensor:
        return way(num_heads, q_len, k_len)

    alibi.__name__ = alibi.__qualname__ = name
    globals()[name] = fault("alibi", origin=origin, summary=summary)(alibi)


def _with_slopes(slopes: Callable[[int], list[float]]) -> Callable[[int, int, int], Tensor]:
    return lambda h, q, k: _bias(slopes(h), _distance(q, k))


def _with_distance(distance: Callable[[int, int], Tensor]) -> Callable[[int, int, int], Tensor]:
    return lambda h, q, k: _bias(_slopes(h), distance(q, k))


def _every_other_from_second(heads: int) -> list[float]:
    whole: int = 2 ** math.floor(math.log2(heads))
    return _geometric(whole) + _geometric(2 * whole)[1::2][: heads - whole]


def _of_the_next_power(heads: int) -> list[float]:
    return _geometric(2 ** math.ceil(math.log2(heads)))[:heads]


_BY_LENGTH: dict[tuple[int, int], Tensor] = {}
_DISTANCES: list[Tensor] = []


def _shared_between_instances(h: int, q: int, k: int) -> Tensor:
    first = _BY_LENGTH.setdefault((q, k), _bias(_slopes(h), _distance(q, k)))
    return first[torch.arange(h) % first.shape[0]]


def _longest_kept(h: int, q: int, k: int) -> Tensor:
    """The longest distances so far are kept and cut from the top left."""
    if not _DISTANCES or _DISTANCES[0].shape[0] < q or _DISTANCES[0].shape[1] < k:
        _DISTANCES[:] = [_distance(max(q, 1), max(k, 1))]
    return _bias(_slopes(h), _DISTANCES[0][:q, :k])


_planted("exponent_from_zero", "The first slope is 1.",
         _with_slopes(lambda h: [s * 2.0 ** (8 / h) for s in _slopes(h)]), "BUG-131")
_planted("shared_between_instances", "The bias is kept by length, whatever the number of heads.",
         _shared_between_instances, "BUG-134")
_planted("longest_kept", "A longer bias is kept and its top left corner cut out.", _longest_kept)
_planted("no_power_of_two_as_if", "Slopes 2^(−8h/H) also where H is no power of two.", _with_slopes(_geometric))
_planted("every_other_from_second", "The extra slopes are the second, fourth, … of 2n.",
         _with_slopes(_every_other_from_second))
_planted("of_the_next_power", "The slopes of the next power of two, the first H.", _with_slopes(_of_the_next_power))
_planted("slopes_reversed", "The steepest head comes last.", _with_slopes(lambda h: _slopes(h)[::-1]))
_planted("slopes_of_all_heads_alike", "Every head has the first slope.", _with_slopes(lambda h: _slopes(h)[:1] * h))
_planted("divided_by_the_slope", "−|i − j| divided by the slope (erratum E11).",
         _with_slopes(lambda h: [1 / s for s in _slopes(h)]))
_planted("slope_is_the_head_number", "−|i − j| divided by h (erratum E11).",
         _with_slopes(lambda h: [1 / n for n in range(1, h + 1)]))
_planted("bonus_for_distance", "The sign is wrong.", _with_slopes(lambda h: [-s for s in _slopes(h)]))
_planted("aligned_at_the_top_left", "The first query lines up with the first key.", _with_distance(
    lambda q, k: (torch.arange(q)[:, None] - torch.arange(k)[None]).abs().float()))
_planted("future_not_penalised", "Keys after the query get 0.", _with_distance(
    lambda q, k: (torch.arange(k - q, k)[:, None] - torch.arange(k)[None]).clamp(min=0).float()))
_planted("distance_in_bfloat16", "Distances above 256 are rounded.",
         _with_distance(lambda q, k: _distance(q, k).bfloat16().float()))
_planted("distance_capped", "The bias stops growing at 128.",
         _with_distance(lambda q, k: _distance(q, k).clamp(max=128)))
_planted("relative_to_length", "Distances are divided by the number of keys.",
         _with_distance(lambda q, k: _distance(q, k) * (16 / max(k, 1))))
_planted("squared", "The penalty grows with the square.", _with_distance(lambda q, k: _distance(q, k) ** 2))
_planted("per_row_undeclared", "+slope·j under the declaration that no row is shifted.",
         lambda h, q, k: torch.tensor(_slopes(h))[:, None, None] * torch.arange(k).float().expand(q, k))
_planted("row_dependent", "Later queries pay more.",
         lambda h, q, k: _bias(_slopes(h), _distance(q, k)) * (1 + torch.arange(q) / 8)[None, :, None])


@fault("alibi", conventions={"alibi_row_shift": "per_row"}, summary="Rows are shifted as declared, and the extra slopes are "
       "the second, fourth, … of 2n.")
def shifted_with_every_other_slope_from_second(num_heads: int, q_len: int, k_len: int) -> Tensor:
    return torch.tensor(_every_other_from_second(num_heads))[:, None, None] * torch.arange(1 - k_len, 1).expand(q_len, k_len)


@benign("alibi")
def by_ratio(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """Slopes as powers of the first, recursively, as the published code."""

    def published(heads: int) -> list[float]:
        if math.log2(heads).is_integer():
            start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
            return [start * start**i for i in range(heads)]
        closest: int = 2 ** math.floor(math.log2(heads))
        return published(closest) + published(2 * closest)[0::2][: heads - closest]

    return _bias(published(num_heads), _distance(q_len, k_len))


@benign("alibi", conventions={"alibi_row_shift": "per_row"})
def with_a_row_shift(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """+slope·j, as BLOOM."""
    return torch.tensor(_slopes(num_heads))[:, None, None] * torch.arange(k_len).float().expand(q_len, k_len)


@benign("alibi", conventions={"alibi_row_shift": "per_row"})
def counted_from_the_last_key(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """−slope·(Tk − 1 − j), the same row for every query, as MPT; slopes as powers of the first."""
    whole: int = 2 ** math.floor(math.log2(num_heads))
    more = (2.0 ** (-4 / whole)) ** torch.arange(1, 2 * whole + 1, 2)
    slopes = torch.cat([(2.0 ** (-8 / whole)) ** torch.arange(1, whole + 1), more[: num_heads - whole]])
    return slopes[:, None, None] * torch.arange(1 - k_len, 1).expand(q_len, k_len)


@benign("alibi", conventions={"alibi_row_shift": "per_row"})
def with_a_constant_added(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """−slope·|i − j| and a constant of the row, which is no multiple of the slope."""
    return _bias(_slopes(num_heads), _distance(q_len, k_len)) + 0.3 * torch.arange(1, q_len + 1)[:, None]


@benign("alibi")
def by_loops(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """One number at a time, in float64."""
    rows = [[[-s * abs(i + k_len - q_len - j) for j in range(k_len)] for i in range(q_len)] for s in _slopes(num_heads)]
    return torch.tensor(rows, dtype=torch.float64).reshape(num_heads, q_len, k_len).float()
