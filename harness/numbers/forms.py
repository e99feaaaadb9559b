"""Forms: the legitimate ways to evaluate one formula. A bar is the maximum over a kind's forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Form:
    """One way to evaluate a kind's formula, written in plain torch, run by the bound engine on (value, bar) tensors.

    name: as the report shows it ("scores scaled on both sides").
    forward: same call as the kind's reference, conventions as extra keywords.
    backward: explicit gradient `(upstream, wrt, **arguments) -> {name: gradient}` where implementations do not
        differentiate the forward form but recompute (flash attention); None: autograd through `forward`.
    additions: roundings that each addend of a sum may go through (online softmax rescales its sum at every tile): the
        sum rule uses gamma_{additions*n}.
    usual: its bar is usually the widest: an output within it needs no other form. Where no form that applies is so marked, the
        formula as written is tried first. The others are evaluated for an output that lies outside, so a verdict of wrong always
        rests on all of them.
    applies: whether this form exists for these arguments (None: always).
    """

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Mapping[str, Any]] | None = None
    additions: int = 1
    usual: bool = False
    applies: Callable[[Mapping[str, Any]], bool] | None = None
