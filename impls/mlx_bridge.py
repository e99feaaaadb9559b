"""MLX behind torch's call: a function of MLX arrays becomes a callable on tensors, its gradient `mx.vjp`'s.

    @assay.implements("softmax", name="mine", devices=["cpu"])
    @bridged
    def softmax(x, *, dim=-1):                   # arrays in, by the names of the kind's call; an array or a tuple of them out
        return mx.softmax(x, axis=dim)

What is claimed is read from the function's signature, as for any implementation.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.impls._foreign import bound, parted, result
from assay.impls._modules import late


def bridged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A callable on tensors with the signature of `function`.

    Arrays and results are copies, each of its own type, bfloat16 among them; masks are bool, ids and positions int64, None is None.
    float64, which MLX narrows unless it is told otherwise, raises NotImplementedError. Tensors of an accelerator are computed where
    MLX computes and go back. The gradient runs the function again: MLX has no pullback to keep. MLX is imported on the first call.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        tensors, others = parted(signature, positional, named)
        return result(_Run(function, signature, others, tuple(tensors)), tensors.values())

    return call


def array_of(tensor: Tensor) -> Any:
    """The tensor as an MLX array of the same type, in memory of its own."""
    if tensor.dtype == torch.float64:
        raise NotImplementedError("dtype=float64 must be float32 or narrower: MLX narrows to float32")
    return late("mlx.core").array(tensor.detach().cpu().contiguous())


def tensor_of(array: Any, device: torch.device) -> Tensor:
    """The array, computed, as a tensor in memory of its own."""
    late("mlx.core").eval(array)
    return torch.from_dlpack(array).to(device, copy=True)


@dataclass
class _Run:
    """One call: what goes in, and the arrays that the backward needs afterwards."""

    function: Callable[..., Any]
    signature: inspect.Signature
    others: Mapping[str, Any]  # arguments that are no tensors
    names: tuple[str, ...]  # arguments that are, in order
    several: bool = False
    needed: tuple[bool, ...] = ()
    arrays: tuple[Any, ...] = ()

    def forwards(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        self.arrays = tuple(array_of(one) for one in tensors)
        found = self._of(dict(zip(self.names, self.arrays, strict=True)))
        self.several = isinstance(found, tuple)
        device = tensors[0].device if tensors else torch.device("cpu")
        return tuple(tensor_of(out, device) for out in (found if self.several else (found,)))

    def backwards(self, tensors: tuple[Tensor, ...], upstream: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        given = dict(zip(self.names, self.arrays, strict=True))
        moving = [name for name, needed in zip(self.names, self.needed, strict=True) if needed]

        def of(*moved: Any) -> list[Any]:
            found = self._of({**given, **dict(zip(moving, moved, strict=True))})
            outputs = found if self.several else (found,)
            return [out for out, g in zip(outputs, upstream, strict=True) if g.is_floating_point()]  # integers have no gradient

        above = [array_of(g) for g in upstream if g.is_floating_point()]
        slopes = dict(zip(moving, late("mlx.core").vjp(of, [given[name] for name in moving], above)[1], strict=True))
        return tuple(tensor_of(slopes[name], t.device) if name in slopes else None
                     for name, t in zip(self.names, tensors, strict=True))

    def _of(self, arrays: Mapping[str, Any]) -> Any:
        given = bound(self.signature, {**self.others, **arrays})
        return self.function(*given.args, **given.kwargs)
