"""Make the tensors of a counterexample readable: elements to 0, to 1, to small whole numbers, while it still fails.

The order is strict (each step lowers `weight`), so it ends; and what is kept must fail by a margin, so that a simpler tensor
never turns a clear failure into one at the edge of its bar.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from assay.cases import Configuration, words

if TYPE_CHECKING:
    from assay.run.judge import Tried

LARGEST = 48  # elements of a tensor that is simplified one by one
MARGIN = 2.0  # times the bound by which a simplified example must still fail


def simplify(failed: Tried, arguments: Mapping[str, Any], run: Callable[[Configuration], Tried], tries: int) -> Tried:
    """The same failure with the simplest tensors that were found within `tries` runs."""
    if failed.ended is not None or not clear(failed):
        return failed
    current = failed
    values = {name: tensor for name, tensor in arguments.items()
              if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and 0 < tensor.numel() <= LARGEST}
    improved = True
    while improved and tries > 0:
        improved = False
        for name in values:
            for candidate in simpler(values[name]):
                if tries <= 0:
                    break
                tries -= 1
                stored = {**current.configuration.values, name: words(candidate.tolist())}
                tried = run(current.configuration.but(values=stored))
                if tried.outcome == "wrong" and tried.ended is None and clear(tried):
                    values[name], current, improved = candidate, tried, True
                    break
    return current


def clear(tried: Tried) -> bool:
    """Whether it fails by the margin."""
    decision = tried.decision
    return decision is not None and (decision.error_over_bound >= MARGIN or math.isinf(decision.error_over_bound))


def weight(tensor: torch.Tensor) -> tuple[int, int, int, float]:
    """How hard a tensor is to read: elements not 0, not 0 or 1, not whole, and their size."""
    finite = torch.where(tensor.isfinite(), tensor.double(), 0.0)
    whole = finite == finite.round()
    plain = (finite == 0) | (finite == 1)
    return int((finite != 0).sum()), int((~plain).sum()), int((~whole).sum()), float(finite.abs().sum())


def simpler(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Simpler tensors of the same shape, the boldest first."""
    infinite = ~tensor.isfinite()
    whole = [torch.zeros_like(tensor), torch.ones_like(tensor), tensor.round().clamp(-3, 3)]
    for rows in range(tensor.shape[0] if tensor.dim() > 1 else 0):
        cleared = tensor.clone()
        cleared[rows] = 0
        whole.append(cleared)
    for candidate in [*whole, *_one_by_one(tensor)]:
        kept = torch.where(infinite, tensor, candidate)
        if weight(kept) < weight(tensor):
            yield kept


def _one_by_one(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """One element at a time to 0, then to 1, then to a whole number."""
    flat = tensor.reshape(-1)
    for target in (torch.zeros_like, torch.ones_like, torch.round):
        for place in range(flat.numel()):
            changed = flat.clone()
            changed[place] = target(flat[place])
            yield changed.reshape(tensor.shape)
