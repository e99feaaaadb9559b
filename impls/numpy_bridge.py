"""NumPy behind torch's call: a forward and a hand-written backward become one callable that autograd goes through.

    def forward(x, *, dim=-1):                   # arrays in, by the names of the kind's call
        e = np.exp(x - x.max(axis=dim, keepdims=True))
        y = e / e.sum(axis=dim, keepdims=True)
        return y, (y, dim)                       # the output (a tuple for several), and what the backward needs

    def backward(saved, upstream):               # one upstream array an output (a tuple for several)
        y, dim = saved
        return {"x": y * (upstream - (upstream * y).sum(axis=dim, keepdims=True))}

    mine = assay.implements("softmax", name="mine")(bridged(forward, backward))

Without a backward, declare `grad=False`. What is claimed is read from the forward's signature, as for any implementation.
"""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from assay.impls._foreign import result

Array = NDArray[Any]
Forward = Callable[..., tuple[Any, Any]]
Backward = Callable[[Any, Any], Mapping[str, Array | None]]
INSIDE = {"float32": torch.float32, "float64": torch.float64}


def bridged(forward: Forward, backward: Backward | None = None, *, inside: str = "float32") -> Callable[..., Any]:
    """A callable on tensors with the signature of `forward`.

    forward: arrays and options by name -> (output or tuple of outputs, anything that the backward needs)
    backward: (what was saved, upstream array or tuple of them) -> gradient by argument name; a name left out has none
    inside: the narrowest floating type that the arrays have. NumPy has no bfloat16, and adds up float16 in float16: both become
        "float32" (or "float64", if that is said) and the results go back to the type of the first floating argument. Declare it
        where it is more than the default claims: `arithmetic={"internal": "float64", "accumulate": "float64"}`.

    Arrays are read-only, and have the strides of their tensors where the type stays; masks are bool, ids are integers, None is
    None. Results and gradients are copies. Tensors of an accelerator are computed on the host and go back.
    """
    if inside not in INSIDE:
        raise ValueError(f"inside={inside!r} must be one of {', '.join(INSIDE)}, got {inside!r}; name the type to compute in")
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def call(*positional: Any, **named: Any) -> Any:
        arguments = signature.bind(*positional, **named).arguments
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        run = _Run(forward, backward, arguments, tuple(tensors), INSIDE[inside])
        return result(run, tensors.values())

    return call


def array_of(tensor: Tensor, inside: torch.dtype) -> Array:
    """The tensor as a read-only array, floating ones at least as wide as `inside`."""
    held = tensor.detach().cpu()
    if held.is_floating_point():
        held = held.to(torch.promote_types(held.dtype, inside))
    array: Array = held.numpy().view()
    array.flags.writeable = False
    return array


def tensor_of(array: Any, dtype: torch.dtype | None, device: torch.device) -> Tensor:
    """The array as a tensor in memory of its own, floating ones in `dtype`."""
    made = torch.from_numpy(np.array(array, order="C", copy=True))
    return made.to(device, dtype if made.is_floating_point() else None)


@dataclass
class _Run:
    """One call: what goes in, and what the backward needs afterwards."""

    forward: Forward
    backward: Backward | None
    arguments: Mapping[str, Any]
    names: tuple[str, ...]  # arguments that are tensors, in order
    inside: torch.dtype
    several: bool = False
    needed: tuple[bool, ...] = ()
    saved: Any = field(default=None, repr=False)

    def forwards(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        arrays = {name: array_of(t, self.inside) for name, t in zip(self.names, tensors, strict=True)}
        with np.errstate(all="ignore"):  # infinities and NaN are judged where they come out
            outputs, self.saved = self.forward(**{**self.arguments, **arrays})
        self.several = isinstance(outputs, tuple)
        dtype = next((t.dtype for t in tensors if t.is_floating_point()), None)
        device = tensors[0].device if tensors else torch.device("cpu")
        return tuple(tensor_of(out, dtype, device) for out in (outputs if self.several else (outputs,)))

    def backwards(self, tensors: tuple[Tensor, ...], upstream: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        if self.backward is None:
            raise NotImplementedError(f"{self.forward.__name__} has no backward; declare grad=False, or hand bridged() one")
        above = tuple(array_of(one, self.inside) for one in upstream)
        with np.errstate(all="ignore"):
            found = self.backward(self.saved, above if self.several else above[0])
        return tuple(self._gradient(name, t, found.get(name)) for name, t in zip(self.names, tensors, strict=True))

    def _gradient(self, name: str, tensor: Tensor, found: Array | None) -> Tensor | None:
        if found is None:
            return None
        if found.shape != tuple(tensor.shape):  # autograd would add up some of these unseen
            raise ValueError(f"the gradient of {name} must have its shape {tuple(tensor.shape)}, got {found.shape}; "
                             "sum over what was broadcast")
        return tensor_of(found, tensor.dtype, tensor.device)
