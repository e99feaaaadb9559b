"""What a model without a formula may be off: the spread that its own rounding gives.

No formula stands behind a model whose weights are its own: it is held against itself. The bar of what it gives is the spread of
that very call when every floating operation inside is moved at random by about one rounding of its type, times the factor
that is calibrated for compositions. A model whose operations torch does not see cannot be asked so, and is not exercised.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from assay.errors import NotExercisedError
from assay.ledger import Decision, fact
from assay.numbers.arithmetic import FORMATS, Arithmetic
from assay.numbers.bound import Bounded, rounding
from assay.numbers.sampled import FACTOR, GRADIENT_SHARE, spread_bar
from assay.subject import Subject

ROWS_TOGETHER, ROUNDS = 8, 2  # perturbed runs: rows of a batch, calls


def gauged(call: Callable[..., torch.Tensor], inputs: Sequence[torch.Tensor | None], *, together: bool) -> Bounded:
    """What `call(*inputs)` gives, with the bar that its own rounding gives.

    inputs: their first axes, and that of the result, are the rows of a batch. together: runs may go as rows of one batch.
    """
    plain, times = call(*inputs, grad_mode=False), ROWS_TOGETHER if together else 1
    many = [None if one is None else one.repeat(times, *(1,) * (one.dim() - 1)) for one in inputs]
    apart = torch.cat([call(*many, grad_mode=False, perturb=run + 1).double().reshape(times, *plain.shape) - plain.double()
                       for run in range(ROUNDS * ROWS_TOGETHER // times)])
    if not bool((apart != 0).any()):
        raise NotExercisedError("no floating operation of this model is seen by torch: its rounding cannot be gauged")
    value, fmt = plain.double(), FORMATS[str(plain.dtype).removeprefix("torch.")]
    return Bounded(value, spread_bar(value, apart) + rounding(value.abs(), fmt))


def within(name: str, low: float, high: float, found: Mapping[str, float], *, exact: Mapping[str, float],
           rounded: Mapping[str, float], text: str, expected: str) -> Decision:
    """Whether a number lies within limits, where the formula's own is clear of them; undecided where it is not.

    exact, rounded: what the formula gives in float64 and in the type under test. Clear is further off than the type moved all of
    the numbers together, times the calibrated factor of gradients: no right evaluation in that type comes to another side.
    """
    moved = FACTOR * GRADIENT_SHARE * sum(abs(rounded[one] / exact[one] - 1) if exact[one] else math.inf for one in exact)
    if not low * (1 + moved) <= exact[name] <= high / (1 + moved):
        return fact(True, "", decided=False, check=text)
    return fact(low <= found[name] <= high, text, got=f"{found[name]:.3g} times", expected=expected, check=name)


def of_full_precision(subject: Subject) -> None:
    """Ends the example of who declares an arithmetic coarser than the type: `within` gauges the type's."""
    declared, plain = (made.model(subject.dtype) for made in (subject.declaration.arithmetic, Arithmetic()))
    if declared.internal.u > plain.internal.u or declared.accumulate.u > plain.accumulate.u or declared.product_extra:
        raise NotExercisedError("its declared arithmetic is coarser than its type")
