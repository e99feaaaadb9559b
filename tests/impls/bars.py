"""Results of implementations held within the bars that the forms of a kind's formula give."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from assay import registry
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import Evaluation, evaluate


def formula(kind: str, arguments: Mapping[str, Any], dtype: str = "float32", arithmetic: Arithmetic | None = None) -> Bounded:
    """The output of the kind's formula, exact, with the bar of its forms."""
    found: Bounded = evaluate(registry.forms(kind), arguments, dtype, arithmetic or Arithmetic()).outputs[0]
    return found


def within(found: Tensor, exact: Bounded) -> None:
    """Every element within its bar."""
    off = ~((found.detach().cpu().double() - exact.value).abs() <= exact.bar)
    assert not bool(off.any()), f"{int(off.sum())} of {off.numel()} elements are off"


def all_within(found: Sequence[Tensor], exact: Evaluation) -> None:
    """An output and the gradients, in the order in which they were asked for."""
    for one, right in zip(found, (exact.outputs[0], *exact.gradients.values()), strict=True):
        within(one, right)


def gives(found: Tensor, wanted: Tensor, kind: str, arguments: Mapping[str, Any]) -> None:
    """What is wanted, worked out by hand in float64, within the bar of the kind's formula for this call."""
    assert wanted.dtype.itemsize == 8, wanted.dtype
    within(found, Bounded(wanted.expand_as(found), formula(kind, arguments).bar))
