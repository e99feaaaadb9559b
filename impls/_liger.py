"""Liger-Kernel's functions as they are on CUDA; on the CPU their kernels go through triton's interpreter, as long as a call lasts.

Liger's kernels are made for the compiler when it is imported. For a tensor on the CPU a function runs with interpreted ones in
their places, and with four things that the interpreter lacks, each what the compiler makes of it; all is put back after the call:
* `tl.sum`, `tl.max`, `tl.zeros` and `tl.sigmoid` are compiled functions themselves, which it cannot call;
* `rsqrt` and `tanh` come out of CUDA's libdevice: `tl.rsqrt`, and numpy's tanh, stand for them;
* a Python float is a float32 to a kernel, and has `.to`;
* helpers (`silu`) are called as the functions that they are.
"""
from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

import numpy
import torch
from torch import Tensor

from assay.impls._modules import late
from assay.impls._triton import interpreting

LAUNCHED: Counter[str] = Counter()  # how often interpreted kernels were launched, by name: the proof that they ran


@functools.cache
def function(file: str, name: str) -> type[torch.autograd.Function]:
    """The autograd function of that name in `liger_kernel/ops/<file>.py`, forward and backward where the tensors lie."""
    module = late(f"liger_kernel.ops.{file}")
    own: Any = getattr(module, name)
    files = (module, late("liger_kernel.ops.utils"))

    def forward(ctx: Any, *arguments: Any) -> Any:
        with _where(files, arguments):
            return own.forward(ctx, *arguments)

    def backward(ctx: Any, *upstream: Any) -> Any:
        with _where(files, upstream):
            return own.backward(ctx, *upstream)

    return type(name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def supported(*tensors: Tensor) -> None:
    """Liger computes in float32 at most; the interpreter cuts off bits where it should round to bfloat16."""
    for x in tensors:
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise NotImplementedError(f"dtype={x.dtype} must be float32, bfloat16 or float16")
        if x.device.type not in ("cpu", "cuda"):
            raise NotImplementedError(f"device={x.device} must be cuda, or cpu for triton's interpreter")
        if x.device.type == "cpu" and x.dtype == torch.bfloat16:
            raise NotImplementedError("dtype=bfloat16 needs a GPU: triton's interpreter cuts off bits where a GPU rounds")


def _where(files: tuple[ModuleType, ...], arguments: tuple[Any, ...]) -> Any:
    """Interpreted, where the first tensor is on the CPU."""
    device = next(one.device for one in arguments if isinstance(one, Tensor))
    return torch.cuda.device(device) if device.type == "cuda" else _interpreted(files)


@contextmanager
def _interpreted(files: tuple[ModuleType, ...]) -> Iterator[None]:
    """The kernels of these modules interpreted."""
    tl, interpreter = late("triton.language"), late("triton.runtime.interpreter")
    with ExitStack() as stack:
        stack.enter_context(interpreting())
        stack.enter_context(mock.patch.object(tl, "sigmoid", lambda x: 1 / (1 + tl.exp(-x))))
        for file in files:
            stack.enter_context(mock.patch.multiple(file, **_kernels(file)))
        stack.enter_context(mock.patch.object(interpreter, "_implicit_cvt", _argument))
        yield


@functools.cache
def _converted() -> Callable[[Any], Any]:
    """The interpreter's own conversion of a kernel's arguments."""
    own: Callable[[Any], Any] = late("triton.runtime.interpreter")._implicit_cvt
    return own


def _argument(value: Any) -> Any:
    """The interpreter leaves floats to Python, which have no `.to`; the compiler makes float32 of them."""
    if not isinstance(value, float):
        return _converted()(value)
    tl, interpreter = late("triton.language"), late("triton.runtime.interpreter")
    return tl.tensor(interpreter.TensorHandle(numpy.array([value], dtype=numpy.float32), tl.float32), tl.float32)


@functools.cache
def _kernels(file: ModuleType) -> Mapping[str, Any]:
    """The module's kernels, made for the interpreter."""
    _converted()  # before it is replaced
    return {name: _Noted(one) for name, one in _copies(file).items()}


@functools.cache
def _copies(file: ModuleType) -> Mapping[str, FunctionType]:
    """The module's kernels as plain functions with globals of their own: the interpreter adds to those. One that it imports is that
    of the module where it is written, which alone has the names that it uses."""
    compiled = late("triton.runtime.jit").JITFunction
    own = dict(vars(file))
    functions = {name: one.fn for name, one in vars(file).items() if isinstance(one, compiled)}
    copies = {name: _copied(one, own) if one.__module__ == file.__name__ else _copies(late(one.__module__))[one.__name__]
              for name, one in functions.items()}
    own |= copies | {name: stand_in() for name, stand_in in _LIBDEVICE.items() if name in own}
    return copies


def _copied(one: FunctionType, own: dict[str, Any]) -> FunctionType:
    made = FunctionType(one.__code__, own, one.__name__, one.__defaults__, one.__closure__)
    made.__annotations__, made.__module__, made.__kwdefaults__ = dict(one.__annotations__), one.__module__, one.__kwdefaults__
    return made


class _Noted:
    """An interpreted kernel; a launch is noted."""

    def __init__(self, one: FunctionType) -> None:
        self.name, self.kernel = one.__name__, late("triton.runtime.interpreter").InterpretedFunction(one)

    def __getitem__(self, grid: Any) -> Any:
        LAUNCHED[self.name] += 1
        return self.kernel[grid]


def _rsqrt() -> Any:
    tl = late("triton.language")
    return lambda x: tl.rsqrt(x)  # looked up in the call: the interpreter puts its own there for as long as it runs


def _tanh() -> Any:
    tl, interpreter = late("triton.language"), late("triton.runtime.interpreter")
    return lambda x: tl.tensor(interpreter.TensorHandle(numpy.tanh(x.handle.data), x.dtype.scalar), x.type)


_LIBDEVICE: Mapping[str, Callable[[], Any]] = {"rsqrt": _rsqrt, "tanh": _tanh}
