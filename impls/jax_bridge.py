"""JAX behind torch's call: a function of JAX arrays becomes a callable on tensors, its gradient `jax.vjp`'s.

    @assay.implements("softmax", name="mine", devices=["cpu"])
    @bridged
    def softmax(x, *, dim=-1):                   # arrays in, by the names of the kind's call; an array or a tuple of them out
        return jax.nn.softmax(x, axis=dim)

What is claimed is read from the function's signature, as for any implementation.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.impls._foreign import bound, parted, result
from assay.impls._modules import late

NARROWED = {torch.int64: torch.int32, torch.float64: torch.float32}  # what JAX makes of them unless it was told otherwise
Pull = Callable[[Any], tuple[Any, ...]]


def bridged(function: Callable[..., Any] | None = None, *, jit: bool = False) -> Callable[..., Any]:
    """A callable on tensors with the signature of `function`; `@bridged` and `@bridged(jit=True)` decorate.

    jit: compile the function for every shape it meets, its arguments that are not arrays static.

    Arrays come through DLPack, bfloat16 among them, and results leave that way, in memory of their own. Masks are bool, ids and
    positions int32 (JAX has no int64 unless it was told), None is None. float64 raises NotImplementedError unless JAX_ENABLE_X64 is
    set, rather than being narrowed: JAX's configuration is the process's own and stays as it is. Tensors of an accelerator are
    computed on the host and go back. JAX is imported on the first call.
    """
    if function is None:
        return functools.partial(bridged, jit=jit)
    signature, compiled = inspect.signature(function), functools.cache(functools.partial(_compiled, function))

    @functools.wraps(function)
    def call(*positional: Any, **named: Any) -> Any:
        tensors, others = parted(signature, positional, named)
        chosen = compiled(tuple(others)) if jit else function
        run = _Run(lambda given: chosen(*given.args, **given.kwargs), signature, others, tuple(tensors))
        return result(run, tensors.values())

    return call


def _compiled(function: Callable[..., Any], static: tuple[str, ...]) -> Callable[..., Any]:
    made: Callable[..., Any] = late("jax").jit(function, static_argnames=static)
    return made


def array_of(tensor: Tensor) -> Any:
    """The tensor as a JAX array of the same type, int64 as int32; refused where JAX would change numbers."""
    jax, held = late("jax"), tensor.detach().cpu()
    if held.dtype in NARROWED and not jax.config.jax_enable_x64:
        if held.is_floating_point():
            raise NotImplementedError("float64 needs JAX_ENABLE_X64=1 in the environment; without it JAX narrows to float32")
        narrow = held.to(NARROWED[held.dtype])
        if not torch.equal(narrow.to(held.dtype), held):
            raise NotImplementedError("int64 beyond int32 needs JAX_ENABLE_X64=1 in the environment")
        held = narrow
    return jax.dlpack.from_dlpack(held.contiguous())  # contiguous: DLPack's reader takes no steps and no expansion


def tensor_of(array: Any, device: torch.device) -> Tensor:
    """The array as a tensor in memory of its own: what is written to it must not reach what JAX keeps for the gradient."""
    return torch.from_dlpack(late("jax").block_until_ready(array)).to(device, copy=True)


@dataclass
class _Run:
    """One call: what goes in, and the pullback that the backward needs afterwards."""

    function: Callable[[inspect.BoundArguments], Any]
    signature: inspect.Signature
    others: dict[str, Any]  # arguments that are no tensors
    names: tuple[str, ...]  # arguments that are, in order
    several: bool = False
    needed: tuple[bool, ...] = ()
    outputs: tuple[Any, ...] = ()
    pull: Pull | None = None

    def forwards(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arrays = {name: array_of(t) for name, t in zip(self.names, tensors, strict=True)}
        moving = {name: arrays.pop(name) for name, n in zip(self.names, self.needed, strict=True) if n}

        def of(moved: dict[str, Any]) -> Any:
            return self.function(bound(self.signature, self.others | arrays | moved))

        if moving:
            found, self.pull = late("jax").vjp(of, moving)
        else:
            found = of(moving)
        self.several = isinstance(found, tuple)
        self.outputs = found if self.several else (found,)
        device = tensors[0].device if tensors else torch.device("cpu")
        return tuple(tensor_of(out, device) for out in self.outputs)

    def backwards(self, tensors: tuple[Tensor, ...], upstream: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        assert self.pull is not None
        above = tuple(_cotangent(out, g) for out, g in zip(self.outputs, upstream, strict=True))
        (found,) = self.pull(above if self.several else above[0])
        return tuple(tensor_of(found[name], t.device) if name in found else None
                     for name, t in zip(self.names, tensors, strict=True))


def _cotangent(output: Any, upstream: Tensor) -> Any:
    """What JAX takes for the upstream gradient; an integer output has one without values."""
    jax = late("jax")
    if jax.numpy.issubdtype(output.dtype, jax.numpy.floating):
        return array_of(upstream)
    return late("numpy").zeros(output.shape, jax.dtypes.float0)
