"""Planted faults of dropout, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.faults.planting import bent
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}
Way = Callable[[Tensor, float, int], Tensor]


def _kept(x: Tensor, p: float, seed: int) -> Tensor:
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) >= p


def _scaled(x: Tensor, keep: Tensor, p: float) -> Tensor:
    return torch.where(keep, x / ((1 - p) or 1.0), torch.zeros_like(x))


def _right(x: Tensor, p: float, seed: int) -> Tensor:
    return _scaled(x, _kept(x, p, seed), p)


def _identity(x: Tensor, p: float, seed: int) -> Tensor:
    return x


def _planted(name: str, summary: str, way: Way, origin: str = "", *, evaluation: Way = _identity) -> None:
    """Plant a fault, given as what happens in training (and in evaluation)."""

    def dropout(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
        return (way if training else evaluation)(x, p, seed)

    dropout.__name__ = dropout.__qualname__ = name
    globals()[name] = fault("dropout", origin=origin, summary=summary)(dropout)


def _whole_rows(x: Tensor, p: float, seed: int) -> Tensor:
    return _scaled(x, _kept(x[..., :1], p, seed).expand_as(x), p)


def _every_nth(x: Tensor, p: float, seed: int) -> Tensor:
    """The dropped places are evenly spread, not drawn: (i·p) passes an integer."""
    at = torch.arange(x.numel()) + seed % 7
    keep = ((at + 1) * p).floor() == (at * p).floor()
    return _scaled(x, keep.reshape(x.shape), p)


def _through(x: Tensor, forward: Tensor, backward: Tensor, p: float) -> Tensor:
    """Forward under one mask, backward under another."""
    slope = _scaled(torch.ones_like(x), backward, p)
    return _scaled(x.detach(), forward, p) + slope * (x - x.detach())


_COUNTED = {"calls": 0}


def _counter(x: Tensor, p: float, seed: int) -> Tensor:
    _COUNTED["calls"] += 1
    return _right(x, p, seed + _COUNTED["calls"])


_planted("on_in_evaluation", "Evaluation drops as well.", _right, "BUG-099", evaluation=_right)
_planted("gradient_undropped", "The backward lets the gradient through everywhere.",
         lambda x, p, seed: _through(x, _kept(x, p, seed), torch.ones(x.shape, dtype=torch.bool), p), "BUG-101")
_planted("gradient_unscaled", "The backward forgets 1/(1 − p).",
         lambda x, p, seed: bent(_right(x, p, seed), lambda g: g * (1 - p)))
_planted("other_mask_in_the_backward", "The backward draws its own mask.",
         lambda x, p, seed: _through(x, _kept(x, p, seed), _kept(x, p, seed + 1), p))
_planted("not_scaled", "The kept elements are not scaled.",
         lambda x, p, seed: torch.where(_kept(x, p, seed), x, torch.zeros_like(x)))
_planted("scaled_in_evaluation", "Evaluation multiplies by 1 − p although training has scaled.", _right,
         evaluation=lambda x, p, seed: x * (1 - p))
_planted("scaled_by_p", "The kept elements are divided by p.",
         lambda x, p, seed: torch.where(_kept(x, p, seed), x / (p or 1.0), torch.zeros_like(x)))
_planted("keeps_with_rate_p", "p is taken for the rate of keeping.",
         lambda x, p, seed: _scaled(x, ~_kept(x, p, seed), p) if p else x)
_planted("half_the_rate", "Drops with rate p/2, scaled to match: the mean is kept.",
         lambda x, p, seed: _right(x, p / 2, seed))
_planted("whole_rows", "A whole row is kept or dropped.", _whole_rows)
_planted("evenly_spread", "Every n-th element is dropped.", _every_nth)
_planted("never_drops", "Training does nothing.", _identity)
_planted("same_mask_for_every_seed", "The seed is ignored.", lambda x, p, seed: _right(x, p, 0))
_planted("seed_and_a_counter", "The same seed gives another mask at each call.", _counter)
_planted("last_column_kept", "Columns beyond the last multiple of 4 are never dropped.",
         lambda x, p, seed: torch.cat((_right(x, p, seed)[..., : x.shape[-1] // 4 * 4],
                                       x[..., x.shape[-1] // 4 * 4 :]), dim=-1) if x.dim() else _right(x, p, seed))
def _smallest(x: Tensor, p: float, seed: int) -> Tensor:
    """The smallest share p of all elements is dropped."""
    order = x.detach().abs().flatten().argsort()
    keep = torch.ones(x.numel(), dtype=torch.bool)
    keep[order[: round(p * x.numel())]] = False
    return _scaled(x, keep.reshape(x.shape), p)


def _mixed(x: Tensor, p: float, seed: int) -> Tensor:
    """Element i draws its number from seed + i: the next seed's mask is this one's, moved by one."""
    number = torch.arange(x.numel()) + seed
    for _ in range(2):
        number = (number ^ (number >> 16)) * 0x45D9F3B & 0xFFFFFFFF
    return _scaled(x, ((number ^ (number >> 16)).double() / 2**32 >= p).reshape(x.shape), p)


def _tail_kept(x: Tensor, p: float, seed: int) -> Tensor:
    tail = torch.arange(x.numel()).reshape(x.shape) >= x.numel() // 4 * 4
    return _scaled(x, _kept(x, p, seed) | (tail & (0 < p < 1)), p)


def _eight_bits(x: Tensor, p: float, seed: int) -> Tensor:
    drawn = torch.randint(0, 256, x.shape, generator=torch.Generator().manual_seed(seed))
    return _scaled(x, drawn >= int(256 * p), p)


_planted("rate_of_eight_bits", "Whole bytes are compared with 256·p, rounded down: a rate below 1/256 drops nothing.", _eight_bits)
_planted("eight_bits_of_the_seed", "Seeds that are equal but for 256 give one mask.", lambda x, p, seed: _right(x, p, seed % 256))
_planted("seed_moves_the_mask", "The seed is added to the place: neighbouring seeds share their numbers.", _mixed)
_planted("tail_of_four_kept", "Elements beyond the last four at a time are never dropped.", _tail_kept)
_planted("drops_the_smallest", "What is dropped hangs on the values.", _smallest)
_planted("drops_without_a_rate", "p = 0 is taken for a half.", lambda x, p, seed: _right(x, p or 0.5, seed))
_planted("p_one_gives_nan", "p = 1 divides 0 by 0.", lambda x, p, seed: x * _kept(x, p, seed) / (1 - p))


@benign("dropout")
def times_a_mask(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """x times a mask of 0 and 1/(1 − p)."""
    if not training or p == 0:
        return x
    return x * (_kept(x, p, seed).to(x.dtype) / ((1 - p) or 1.0))


@benign("dropout")
def with_other_draws(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """Bernoulli draws of another generator's sequence, a copy out of training."""
    if not training:
        return x.clone()
    keep = torch.bernoulli(torch.full(x.shape, 1 - p), generator=torch.Generator().manual_seed(seed ^ 0x5EED)).bool()
    return _scaled(x, keep, p)
