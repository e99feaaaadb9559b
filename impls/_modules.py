"""What bridges share: libraries imported late, modules that take the call's own weights, and proof of what ran."""
from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode


@cache
def late(module: str) -> ModuleType:
    """Import a module on the first call that needs it: seconds that listing the implementations should not take.

    What importing leaves in the environment and in the warning filters is taken back, since a call leaves both alone.
    """
    before = dict(os.environ)
    with warnings.catch_warnings():
        found = import_module(module)
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    return found


def bare(make: Callable[..., nn.Module], *arguments: Any, **options: Any) -> nn.Module:
    """`make(...)` on the meta device: nothing is allocated, and the global random state stays as it is."""
    with torch.device("meta"):
        return make(*arguments, **options)


def run(module: nn.Module, weights: Mapping[str, Tensor | None], *inputs: Tensor, **options: Any) -> Any:
    """Call the module with these tensors as its parameters and buffers, so that gradients reach them."""
    return functional_call(module, {name: w for name, w in weights.items() if w is not None}, inputs, options)


def installed(distribution: str) -> str:
    """The installed version of a library, or nothing where it is missing."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


class Kernels(TorchDispatchMode):
    """Writes down the names of the operations that reach the dispatcher: the proof of what ran."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.names.add(str(operation))
        return operation(*args, **(kwargs or {}))

    def ran(self, name: str) -> bool:
        """Whether an operation with this in its name was among them."""
        return any(name in each for each in self.names)
