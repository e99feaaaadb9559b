"""Triton kernels: made on their first launch, compiled for tensors on CUDA, interpreted for those on the CPU.

Nothing here imports triton before a kernel is launched. A CPU tensor goes through triton's interpreter, without any environment
variable and whoever imported triton before: so the logic is exercised where there is no GPU, slowly, and torch's compiler in the
same process is left alone.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy
import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from assay.errors import NotExercisedError
from assay.impls._modules import installed, late

P = ParamSpec("P")
R = TypeVar("R")
VERSION = installed("triton")
INTERPRETED = not torch.backends.cuda.is_built()  # minutes for all kernels: by the profile deep, or where one is named
FAST = {"exp": "fast"}  # tl.exp and tl.exp2 are the hardware's own on a GPU
OUTGROWN = "only 0-dimensional arrays can be converted to Python scalars"  # numpy 2.4 to the interpreter of triton 3.6
COMPILER_OPTIONS = frozenset({"num_warps", "num_stages"})


class Kernel:
    """A function in Triton's language; `kernel[grid](…)` launches it. launches: how often, the proof that it ran.

    In its body `tl` is triton.language, which a file need not import.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        assert isinstance(function, FunctionType)
        self.function, self.launches = function, 0
        self._made: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.function.__name__

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self.launch, grid)

    # torch's compiler would trace the interpreter. `torch.compiler.disable` imports it, seconds that listing should not take.
    @_disable_dynamo
    def launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        """Run the kernel where its first argument lies."""
        device = arguments[0].device
        if device.type == "cuda":
            with torch.cuda.device(device):
                self.made("cuda")[grid](*arguments, **options)
        elif device.type == "cpu":
            told = {name: value for name, value in options.items() if name not in COMPILER_OPTIONS}
            self._interpret(grid, arguments, told)
        else:
            raise NotImplementedError(f"device={device} must be cuda, or cpu for the interpreter")
        self.launches += 1

    def _interpret(self, grid: tuple[int, ...], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        with interpreting():
            self.made("cpu")[grid](*arguments, **options)

    def made(self, device: str) -> Any:
        """The kernel for one sort of device."""
        if device not in self._made:
            make = late("triton").jit if device == "cuda" else late("triton.runtime.interpreter").InterpretedFunction
            self._made[device] = make(_with_language(self.function))
        return self._made[device]


def kernel(function: Callable[..., Any]) -> Kernel:
    """Declare a kernel."""
    return Kernel(function)


def _with_language(function: FunctionType) -> FunctionType:
    """The function with globals of its own, in which `tl` is there: the interpreter adds to them what it needs."""
    own = {**function.__globals__, "tl": late("triton.language")}
    made = FunctionType(function.__code__, own, function.__name__, function.__defaults__, function.__closure__)
    made.__annotations__, made.__module__ = dict(function.__annotations__), function.__module__
    return made


@contextmanager
def interpreting() -> Iterator[None]:
    """What the interpreter cannot call is replaced, and what it cannot do is told."""
    with _reductions(late("triton.language")), numpy.errstate(all="ignore"):  # what a GPU does without a word
        try:
            yield
        except late("triton.runtime.errors").InterpreterError as error:
            if OUTGROWN not in str(error):
                raise
            raise NotImplementedError(f"the interpreter of triton {VERSION} cannot loop with numpy {numpy.__version__}; "
                                      "install triton 3.9 or later") from error


@contextmanager
def _reductions(tl: Any) -> Iterator[None]:
    """Triton's functions that are compiled themselves, as what they stand for: the interpreter can call no compiled function."""
    def total(x: Any, axis: int | None = None, keep_dims: bool = False) -> Any:
        return tl.reduce(x, axis, tl.standard._sum_combine, keep_dims)

    def largest(x: Any, axis: int | None = None, keep_dims: bool = False) -> Any:
        wide = x.to(tl.float32) if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32 else x  # as triton's own does
        return tl.reduce(wide, axis, tl.standard._elementwise_max, keep_dims)

    def zeros(shape: Any, dtype: Any) -> Any:
        return tl.full(shape, 0, dtype)

    before = {name: getattr(tl, name) for name in ("sum", "max", "zeros")}
    tl.sum, tl.max, tl.zeros = total, largest, zeros
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(tl, name, value)


def launches(*kernels: Kernel) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that stands for these kernels: a call in which one was not launched is not passed off as theirs."""
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            before = [one.launches for one in kernels]
            result = function(*arguments, **options)
            idle = [one.name for one, count in zip(kernels, before, strict=True) if one.launches == count]
            if idle:
                raise NotExercisedError(f"triton: {', '.join(idle)} was not launched")
            return result
        return call
    return decorate


# ------------------------------------------------------------------------------------------------ tensors for kernels
def staged(x: Tensor) -> Tensor:
    """The tensor as a kernel reads it: bfloat16 in float32 on the CPU, for the interpreter cuts bits off where it should round."""
    return x.float() if x.device.type == "cpu" and x.dtype == torch.bfloat16 else x


def rows_of(x: Tensor) -> Tensor:
    """(…, C) as (N, C) whose last stride is 1, copied only where it must be."""
    rows = staged(x).reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def supported(*tensors: Tensor) -> None:
    """The kernels compute in float32: wider input is not for them."""
    for x in tensors:
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise NotImplementedError(f"dtype={x.dtype} must be float32, bfloat16 or float16")


def power_of_two(size: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, size - 1).bit_length()


def tiles(size: int, block: int) -> int:
    """How many blocks cover the size."""
    return -(-size // block)


def on_cuda(x: Tensor) -> bool:
    """Whether kernels on it are compiled."""
    return x.device.type == "cuda"


def processors(x: Tensor) -> int:
    """Multiprocessors of the device; 2 stand for them in the interpreter, so that every program loops."""
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count) if on_cuda(x) else 2


def roomy(x: Tensor) -> bool:
    """Whether a program may take 160 KiB of shared memory, as on data-centre GPUs; the others have about 99."""
    return int(torch.cuda.get_device_properties(x.device).shared_memory_per_block_optin) >= 160 * 1024
