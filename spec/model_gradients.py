"""Whether every parameter of a model learns: one that a single example leaves at 0 may only have met a unit that is off."""
from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from assay.ledger import fact

DRAWS = 5  # of inputs and, where the model is made from a seed, of weights

Gradients = Mapping[str, torch.Tensor | None]


def all_learn(draw: Callable[[int], Gradients]) -> None:
    """Every parameter gets a gradient that is finite, and not all 0 in every draw; draw 0 is the example itself."""
    found = draw(0)
    assert fact(bool(found), "the model has no parameters", check="parameters")
    left: dict[str, torch.Tensor | None] = dict(found)
    for number in range(1, DRAWS + 1):
        for name, gradient in found.items():
            right = gradient is None or bool(gradient.isfinite().all())
            assert fact(right, f"{name} gets a gradient that is infinite or NaN", check="gradients of parameters")
        left = {name: left[name] for name in left if not _reached(found.get(name))}
        if not left or number == DRAWS:
            break
        found = draw(number)
    for name, gradient in left.items():
        got = "none" if gradient is None else f"0 in {DRAWS} draws, shape {tuple(gradient.shape)}"
        assert fact(False, f"{name} gets no gradient other than 0", got=got, expected="a gradient", check="gradients of parameters")


def _reached(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())
