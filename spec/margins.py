"""Decisions by margin: which outcomes of a discrete choice a right implementation may come to.

A choice (experts, kept tokens) is made by comparing numbers that carry bars. One number surely beats another when their bars do
not overlap. A choice can be reached when, by one of the numbers that implementations decide by (scores, or probabilities), no
entry that was left out surely beats one that was taken: exactly the outcomes of some rounding within the bars.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from assay import ledger
from assay.numbers.bound import Bounded
from assay.numbers.forms import Form
from assay.subject import Subject


def evaluated(subject: Subject, forms: Sequence[Form], **arguments: Any) -> tuple[Any, ...]:
    """Helper formulas under the implementation's declared arithmetic: what its own intermediate results may be."""
    found = subject.evaluations.get(forms, arguments, subject.dtype, subject.declaration.arithmetic)
    if found.left_range:
        ledger.current().out_of_range = "a number that decides may leave the range of the declared type"
    return found.outputs


def lowest(numbers: Bounded) -> torch.Tensor:
    """The least that each number may be."""
    return torch.where(numbers.value.isfinite(), numbers.value - numbers.bar, numbers.value)


def highest(numbers: Bounded) -> torch.Tensor:
    """The most that each number may be."""
    return torch.where(numbers.value.isfinite(), numbers.value + numbers.bar, numbers.value)


def overtaken(numbers: Bounded, chosen: torch.Tensor) -> torch.Tensor:
    """Rows in which an entry that was left out surely beats one that was chosen."""
    best_left = torch.where(chosen, -math.inf, lowest(numbers)).amax(-1)
    worst_chosen = torch.where(chosen, highest(numbers), math.inf).amin(-1)
    return best_left > worst_chosen


def reachable(deciders: Sequence[Bounded], chosen: torch.Tensor) -> torch.Tensor:
    """Rows whose choice some rounding within the bars leads to, by one of the deciding numbers."""
    return torch.stack([~overtaken(numbers, chosen) for numbers in deciders]).any(0)


def certain(deciders: Sequence[Bounded], top_k: int) -> torch.Tensor:
    """Rows in which every rounding within the bars leads to the same top_k, whatever the choice is made by."""
    return torch.stack([_parted(numbers, top_k) for numbers in deciders]).all(0)


def _parted(numbers: Bounded, top_k: int) -> torch.Tensor:
    """Rows in which the top_k largest surely beat all others."""
    value = numbers.value
    if top_k >= value.shape[-1]:
        return torch.ones(value.shape[:-1], dtype=torch.bool)
    order = torch.sort(value, dim=-1, descending=True, stable=True).indices
    low, high = lowest(numbers).gather(-1, order), highest(numbers).gather(-1, order)
    return low[..., :top_k].amin(-1) > high[..., top_k:].amax(-1)


def membership(indices: torch.Tensor, size: int) -> torch.Tensor:
    """Indices (…,K) as a mask (…,size) of what they name."""
    made = torch.zeros(*indices.shape[:-1], size, dtype=torch.bool)
    return made.scatter(-1, indices.long(), torch.ones_like(indices, dtype=torch.bool))
