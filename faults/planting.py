"""Means to plant a fault in a few lines: wrong gradients, reads that ignore strides, low precision inside."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from assay.registry import fault

Backward = Callable[[Tensor], tuple[Tensor | None, ...]]
Way = TypeVar("Way", bound=Callable[..., Any])


class _Planted(torch.autograd.Function):
    """A value with a backward of one's own for each input."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, backward: Backward, *inputs: Tensor | None) -> Tensor:
        ctx.planted = backward
        return value.clone()

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> Any:
        return (None, None, *ctx.planted(upstream))


def planted(value: Tensor, inputs: tuple[Tensor | None, ...], backward: Backward) -> Tensor:
    """The value, with these gradients to the inputs instead of the right ones."""
    return cast(Tensor, _Planted.apply(value.detach(), backward, *inputs))  # type: ignore[no-untyped-call]


def bent(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """x itself; whatever gradient comes back through it is changed."""
    return planted(x, (x,), lambda upstream: (change(upstream),))


def packed(x: Tensor) -> Tensor:
    """What a kernel reads that takes x for contiguous (wrapping round at the end of the storage)."""
    held = x.untyped_storage().nbytes() // x.element_size()
    if not held or x.is_contiguous():
        return x
    places = (torch.arange(x.numel(), device=x.device) + x.storage_offset()) % held
    return x.as_strided((held,), (1,), 0)[places].reshape(x.shape)


def wide(x: Tensor) -> Tensor:
    """x in float32, or in float64 where it is already."""
    return x if x.dtype == torch.float64 else x.float()


def running_sum(x: Tensor) -> Tensor:
    """Σ over the last axis (kept), one addition after another, each rounded to x's type."""
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total


def planter(kind: str, signed: Callable[[Way], Callable[..., Any]]) -> Callable[..., Callable[[Way], Way]]:
    """The decorator `planted(mark, summary, **options)` of a kind: `mark` (fault or benign) registers a way under its own name.

    signed: gives a way, whatever it takes, the signature of the kind.
    """
    def planted(mark: Callable[..., Any], summary: str, **options: Any) -> Callable[[Way], Way]:
        def register(way: Way) -> Way:
            call = signed(way)
            call.__name__ = call.__qualname__ = way.__name__
            call.__module__, call.__doc__ = way.__module__, summary
            mark(kind, summary=summary, **options)(call)
            return way

        return register

    return planted


# What is wrong with a result, whatever the kind: fault -> (summary, change of the right result).
OUTPUTS: Mapping[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "negated": ("negated", torch.neg), "zeros": ("zeros", lambda out: out * 0),
    "upstream_taken_for_ones": ("the upstream gradient is taken for ones", lambda out: bent(out, torch.ones_like)),
}


def plant_outputs(planted: Callable[..., Any], right: Callable[..., Tensor], names: tuple[str, ...] = tuple(OUTPUTS)) -> None:
    """Plant the faults of `OUTPUTS` in a kind. planted: its `planter`; right: its right way."""
    for name in names:
        summary, change = OUTPUTS[name]

        def wrong(*given: Any, change: Callable[[Tensor], Tensor] = change) -> Tensor:
            return change(right(*given))

        wrong.__name__, wrong.__module__ = name, right.__module__
        planted(fault, summary)(wrong)
