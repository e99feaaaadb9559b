"""Where autograd meets another library: one call whose forward and backward are made there."""
from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Run(Protocol):
    """One call: what goes in, and what the backward needs afterwards."""

    several: bool  # whether the library gave a tuple
    needed: tuple[bool, ...]  # which of the tensors want a gradient; told before the forward

    def forwards(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """All outputs."""
        ...

    def backwards(self, tensors: tuple[Tensor, ...], upstream: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        """A gradient for each of the tensors."""
        ...


def parted(signature: inspect.Signature, positional: tuple[Any, ...],
           named: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The arguments of a call by name: tensors, and all else."""
    arguments = signature.bind(*positional, **named).arguments
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in arguments.items() if name not in tensors}


def bound(signature: inspect.Signature, given: Mapping[str, Any]) -> inspect.BoundArguments:
    """Arguments by name as the function takes them: some take theirs by position alone."""
    order = {name: given[name] for name in signature.parameters if name in given}
    return inspect.BoundArguments(signature, order)  # type: ignore[arg-type]  # an ordered mapping is enough


def result(run: Run, tensors: Iterable[Tensor]) -> Any:
    """What the call gives: a tensor, or a tuple where the library gave one."""
    outputs = _Through.apply(run, *tensors)  # type: ignore[no-untyped-call]
    return outputs if run.several else outputs[0]


class _Through(torch.autograd.Function):
    """The inputs are saved too, so that autograd notices when they are overwritten in between."""

    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        run.needed = ctx.needs_input_grad[1:]
        outputs = run.forwards(tensors)
        ctx.run = run
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*(out for out in outputs if not out.is_floating_point()))
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        found = ctx.run.backwards(ctx.saved_tensors, upstream)
        return (None, *(g if needed else None for g, needed in zip(found, ctx.run.needed, strict=True)))
