"""What the losses of a router have in common: families of logits, masks of padding, and means that the number of tokens leaves."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.subject import Subject

FAMILIES = ("integers", "normal", "peaked", "positive", "small", "cancelling", "one_hot", "constant")
MASKED = {"mask": ("right", "holes", "left"), "N": at_least(3)}


def draw_mask(sort: str, tokens: int, source: torch.Generator) -> torch.Tensor | None:
    """Which tokens count (N,), at least one: the first ones, the last ones, or any."""
    if sort == "none":
        return None
    if sort == "holes":
        keep = torch.rand(tokens, generator=source) < 0.6
        keep[torch.randint(0, tokens, (), generator=source)] = True
        return keep
    count, place = torch.randint(1, tokens + 1, (), generator=source), torch.arange(tokens)
    return place < count if sort == "right" else place >= tokens - count


def assert_same_for_twice_the_tokens(loss: Subject, example: Example) -> None:
    """The same loss for every token twice, and for every token twice of which the second is not counted."""
    twice = {name: torch.cat([example[name]] * 2) for name in example}
    once = loss(**example)
    assert loss(**example.but(**twice)) == once
    if loss.declaration.claims("mask"):
        count = torch.arange(2 * example.dims["N"]) < example.dims["N"]
        assert loss(**example.but(**{**twice, "mask": count & twice.get("mask", count)})) == once
