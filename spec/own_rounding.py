"""What a model without a formula may be off: the spread that its own rounding gives.

No formula stands behind a model whose weights are its own: it is held against itself. The bar of what it gives is the spread of
that very call when every floating operation inside is moved at random by about one rounding of its type, times the factor
that is calibrated for compositions. A model whose operations torch does not see cannot be asked so, and is not exercised.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from assay.errors import NotExercisedError
from assay.numbers.arithmetic import FORMATS
from assay.numbers.bound import Bounded, rounding
from assay.numbers.sampled import spread_bar

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
