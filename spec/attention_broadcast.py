"""What must hold of attention's arguments in shapes that callers may choose: masks and biases that broadcast in any way."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.cases import Example
from assay.spec.attention import output_is_the_formula, spec
from assay.spec.attention_cases import BROADCAST
from assay.subject import Subject

SEVERAL: Mapping[str, Any] = {"B": (2, 3), "H": (2, 4, 3), "Tq": (2, 3, 5), "Tk": (3, 2, 5, 17), "D": (2, 4), "Dv": (2, 4)}
BIASES = tuple(name for name in BROADCAST if name != "by_query")  # the same to every key, it would change nothing


def agrees(attention: Subject, example: Example) -> None:
    """Output and, where they are claimed, gradients are the formula's."""
    assert attention(**example) == attention.exact(**example)
    if attention.declaration.claims("gradients"):
        found, exact = attention.gradients(**example), attention.exact_gradients(**example)
        for name in ("v", "q", "k"):
            assert found[name] == exact[name]


@spec.holds("ATT-15", "MSK-13", kills=("mask_by_head_read_as_first_head", "mask_by_sample_read_as_first_sample",
                                       "three_axes_read_as_one"), rests_on=(output_is_the_formula,), needs=("mask",),
            given={**SEVERAL, "mask": tuple(BROADCAST), "bias": "none"})
def masks_broadcast_along_any_axis(attention: Subject, example: Example) -> None:
    """A mask of any shape that broadcasts to (B,H,Tq,Tk), by head or by sample too, counts as if it were written out."""
    agrees(attention, example)


@spec.holds("ATT-15", kills=("bias_by_head_read_as_first_head", "bias_by_sample_read_as_first_sample"),
            rests_on=(output_is_the_formula,), needs=("bias",), given={**SEVERAL, "bias": BIASES, "mask": "none"})
def biases_broadcast_along_any_axis(attention: Subject, example: Example) -> None:
    """A bias of any shape that broadcasts to (B,H,Tq,Tk), by head or by sample too, counts as if it were written out."""
    agrees(attention, example)
