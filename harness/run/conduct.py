"""Conduct: what a call did to the state that it shares with everybody else. Noticed, said in a sentence, undone.

What torch does to itself when it compiles or first touches an accelerator is no breach of the implementation's.
"""
from __future__ import annotations

import ctypes
import gc
import importlib
import math
import os
import random
import signal
import threading
import time
import types
from collections.abc import Callable, Mapping
from concurrent.futures.thread import _threads_queues
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

Sentence = str


@dataclass(frozen=True)
class Trait:
    """One piece of global state: how to read it, how to put it back, and the sentence for a breach."""

    read: Callable[[], Any]
    restore: Callable[[Any], object]
    breach: str  # may hold {before} and {after}
    equal: Callable[[Any, Any], bool] = lambda before, after: bool(before == after)


_NUMPY_STATE = numpy.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)
_NAMESPACES: Mapping[str, Any] = {
    "torch": torch, "torch.Tensor": torch.Tensor, "torch.nn.functional": torch.nn.functional,
    "torch.linalg": torch.linalg, "torch.nn.Module": torch.nn.Module, "time": time, "math": math, "random": random,
}

_TORCH_VARIABLES = (b"TORCH", b"PYTORCH", b"TRITON", b"CUDA_MODULE_LOADING")
_HOME = os.path.dirname(torch.__file__)
_COMPILER = tuple(os.path.join(_HOME, part) for part in ("_dynamo", "_inductor", "_compile", "_functorch"))
_BOOKKEEPING = frozenset({"Storage", "__warningregistry__", "__doc__", "__dict__", "__builtins__", "__annotations__"})


def _numpy_bits() -> bytes:
    """The legacy generator's 624 words and position, read in place: `get_state` costs as much as all else here."""
    return ctypes.string_at(_NUMPY_STATE.ctypes.state_address, 2500)


def _set_numpy_bits(bits: bytes) -> None:
    ctypes.memmove(_NUMPY_STATE.ctypes.state_address, bits, 2500)


def _own_variables(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables that are not torch's or its compilers' own."""
    return {key: value for key, value in environment.items() if not key.lstrip(b"_").startswith(_TORCH_VARIABLES)}


def _same_environment(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> bool:
    return before == after or _own_variables(before) == _own_variables(after)


def _set_environment(before: dict[bytes, bytes]) -> None:
    current = os.environ._data  # type: ignore[attr-defined]
    wanted = _own_variables(before)
    for key in _own_variables(current).keys() - wanted.keys():
        os.unsetenv(key)
        del current[key]
    for key, value in wanted.items():
        os.putenv(key, value)
        current[key] = value


def _cuda_random() -> tuple[bytes, ...] | None:
    """States of the accelerators' generators; None before the first use, which is what sets them up."""
    if not torch.cuda.is_initialized():
        return None
    return tuple(generator.get_state().numpy().tobytes() for generator in torch.cuda.default_generators)


def _set_cuda_random(states: tuple[bytes, ...]) -> None:
    for generator, state in zip(torch.cuda.default_generators, states, strict=True):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _flags() -> tuple[Any, ...]:
    """Torch's switches; `_set_flags` takes the same tuple."""
    return (
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision(),
        torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"), torch.is_anomaly_enabled(), torch.backends.mkldnn.enabled,
    )


def _set_flags(flags: tuple[Any, ...]) -> None:
    torch.use_deterministic_algorithms(flags[0], warn_only=flags[1])
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = flags[2:4]
    torch.set_float32_matmul_precision(flags[4])
    torch.set_autocast_enabled("cpu", flags[5])
    torch.set_autocast_dtype("cpu", flags[6])
    torch.set_autocast_enabled("cuda", flags[7])
    torch.set_autocast_dtype("cuda", flags[8])
    torch.set_anomaly_enabled(flags[9])
    torch.backends.mkldnn.enabled = flags[10]


def _handlers() -> tuple[Any, ...]:
    return tuple(signal.getsignal(number) for number in _SIGNALS)


def _set_handlers(handlers: tuple[Any, ...]) -> None:
    # Signals belong to the main thread; elsewhere they could not have been changed either.
    if threading.current_thread() is threading.main_thread():
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None:
                signal.signal(number, handler)


def _set_modes(before: tuple[int, int]) -> None:
    while torch._C._len_torch_dispatch_stack() > before[0]:
        torch._C._pop_torch_dispatch_stack()
    while torch._C._len_torch_function_stack() > before[1]:
        torch._C._pop_torch_function_stack()


TRAITS: Mapping[str, Trait] = {
    "torch_random": Trait(lambda: torch.get_rng_state().numpy().tobytes(),
                          lambda s: torch.set_rng_state(torch.frombuffer(bytearray(s), dtype=torch.uint8)),
                          "it changed the state of torch's global random generator"),
    "cuda_random": Trait(_cuda_random, _set_cuda_random,
                         "it changed the state of the accelerator's global random generator",
                         lambda before, after: before is None or bool(before == after)),
    "random": Trait(random.getstate, random.setstate, "it changed the state of Python's random module"),
    "numpy_random": Trait(_numpy_bits, _set_numpy_bits, "it changed the state of NumPy's global random generator"),
    "default_dtype": Trait(torch.get_default_dtype, torch.set_default_dtype,
                           "it changed torch's default dtype from {before} to {after}"),
    "default_device": Trait(lambda: str(torch.get_default_device()), torch.set_default_device,
                            "it changed torch's default device from {before} to {after}"),
    "grad_mode": Trait(torch.is_grad_enabled, torch.set_grad_enabled,
                       "it left gradients switched from {before} to {after}"),
    "inference": Trait(torch.is_inference_mode_enabled, lambda before: None,
                       "it left inference mode switched to {after}"),
    "threads": Trait(torch.get_num_threads, torch.set_num_threads,
                     "it changed torch's number of threads from {before} to {after}"),
    "flags": Trait(_flags, _set_flags, "it changed torch's global settings from {before} to {after}"),
    "modes": Trait(lambda: (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()), _set_modes,
                   "it left a torch dispatch or function mode behind"),
    "environment": Trait(lambda: dict(os.environ._data), _set_environment,  # type: ignore[attr-defined]
                         "it changed the environment variables", _same_environment),
    "directory": Trait(os.getcwd, os.chdir, "it changed the working directory to {after}"),
    "signals": Trait(_handlers, _set_handlers, "it changed signal handlers"),
    "collector": Trait(gc.isenabled, lambda before: gc.enable() if before else gc.disable(),
                       "it switched the garbage collector from {before} to {after}"),
}


def _contents() -> list[list[Any]]:
    """Every value of the watched namespaces, in order: comparing lists compares identities first, so it is cheap."""
    return [list(vars(space).values()) for space in _NAMESPACES.values()]


def _unchanged(before: list[list[Any]], after: list[list[Any]]) -> bool:
    """Whether both hold the same objects; an object that only claims to be equal is as good as the same."""
    try:
        return before == after
    # A foreign object's `__eq__` ran, so something was replaced: the slow comparison finds out what.
    except Exception:  # noqa: BLE001
        return False


class _ModulesBuilt:
    """How many parameters modules of this process have registered: torch's own modules draw their first weights from the global
    generator, so a call that builds one has not misused it. (Its state is put back all the same.)"""

    def __init__(self) -> None:
        self.parameters = 0
        register_module_parameter_registration_hook(self._count)

    def _count(self, module: torch.nn.Module, name: str, parameter: object) -> None:
        self.parameters += 1


_BUILT = _ModulesBuilt()


def settle() -> None:
    """Import what torch imports at the first dispatch mode and backward: that changes torch and the environment."""
    importlib.import_module("torch._dynamo")
    importlib.import_module("torch.fx.experimental.symbolic_shapes")


class Conduct:
    """The state before a call; `breaches` compares, undoes, and remembers the state that now holds.

    In a host nobody else touches that state, so one object serves all calls; elsewhere call `renew` before each.
    """

    def __init__(self) -> None:
        self._contents: list[list[Any]] = []
        self._spaces: dict[str, dict[str, Any]] = {}
        settle()
        self.renew()

    def renew(self) -> None:
        """Take what holds now for what should hold."""
        self._traits = {name: trait.read() for name, trait in TRAITS.items()}
        self._threads = set(threading.enumerate())
        self._built = _BUILT.parameters
        contents = _contents()
        if not self._spaces or not _unchanged(self._contents, contents):
            self._spaces = {name: dict(vars(space)) for name, space in _NAMESPACES.items()}
        self._contents = contents

    def breaches(self) -> tuple[Sentence, ...]:
        """One sentence for each piece of global state that is not as it was; undone where that is possible."""
        found = [self._replaced(name) for name in ([] if _unchanged(self._contents, _contents()) else _NAMESPACES)]
        told = [sentence for sentences in found for sentence in sentences]
        if told or found:
            self._contents = _contents()
        built, self._built = _BUILT.parameters > self._built, _BUILT.parameters
        for name, trait in TRAITS.items():
            before, after = self._traits[name], _read(trait)
            if not trait.equal(before, after):
                if not (built and name in ("torch_random", "cuda_random")):
                    told.append(trait.breach.format(before=_short(before), after=_short(after)))
                trait.restore(before)
            else:
                self._traits[name] = after
        return (*told, *self._left_threads())

    def _replaced(self, space: str) -> list[Sentence]:
        """Names of the namespace that were replaced or removed, put back. Added ones are no breach (lazy imports
        do that), unless they hide an inherited one."""
        owner, before = _NAMESPACES[space], self._spaces[space]
        now, told = dict(vars(owner)), []
        for name, value in before.items():
            if now.get(name, self) is value or isinstance(value, types.ModuleType) or name in _BOOKKEEPING:
                continue
            if not _is_compilers(now.get(name)):
                setattr(owner, name, value)
                told.append(f"it replaced {space}.{name}")
        for name in now.keys() - before.keys():
            if isinstance(owner, type) and any(name in vars(base) for base in owner.__mro__[1:]):
                delattr(owner, name)
                told.append(f"it replaced {space}.{name}")
        self._spaces[space] = dict(vars(owner))
        return told

    def _left_threads(self) -> list[Sentence]:
        """Threads that would keep an interpreter from ending; those of executors are told to stop when it ends."""
        now = set(threading.enumerate())
        left = [thread for thread in now - self._threads
                if not thread.daemon and thread.is_alive() and thread not in _threads_queues]
        self._threads = now
        return [f"it left a running thread behind that is no daemon ({_short(thread.name)})" for thread in left]


def _is_compilers(value: object) -> bool:
    """Whether torch's compiler put it there: `torch.compile` wraps functions of torch on its first use."""
    code = getattr(value, "__code__", None)
    return code is not None and code.co_filename.startswith(_COMPILER)


def _read(trait: Trait) -> Any:
    """Read the trait; a working directory that was removed under us reads as None, and so as changed."""
    try:
        return trait.read()
    except FileNotFoundError:
        return None


def _short(value: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(value)[:200])
