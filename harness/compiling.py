"""Compiling a function, with proof: every call runs a graph of the compiler that was asked for, or raises."""
from __future__ import annotations

import inspect
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch

from assay.errors import NotExercisedError

Function = Callable[..., Any]
# A graph whose sizes are symbols takes ten times as long to make as one whose sizes are numbers (reference attention,
# aot_eager: 3 s and 0.3 s), and serves all sizes: so the first few shapes of a set of options have graphs of their own.
SHAPES = 8
LIMIT = 8  # graphs of one shape, or of one set of options (with gradients and without, layouts): torch's own default


class Compiled:
    """A function, compiled for every set of options that it is called with.

    graphs: compiled so far. ran: graphs that ran so far, the proof that no call fell back to the function as it is.
    whole: one graph must hold all of the function; else what the compiler cannot trace may run as it is, between graphs.
    shapes: how many shapes of one set of options have graphs of their own; later ones share graphs with sizes as symbols.
    limit: graphs of one shape or set; one more raises NotExercisedError, where torch would run the function as it is.
    """

    def __init__(self, function: Function, backend: str, *, whole: bool = True, shapes: int = SHAPES, limit: int = LIMIT) -> None:
        self.function, self.backend, self.whole, self.shapes, self.limit = function, backend, whole, shapes, limit
        self.graphs = self.ran = 0
        self._made: dict[Any, Function] = {}
        self._seen: Counter[Any] = Counter()  # shapes with graphs of their own, by set of options

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The function's result, out of at least one graph."""
        missing = missing_compiler(self.backend)
        if missing:
            raise NotImplementedError(missing)
        import torch._dynamo.exc  # on the first call: seconds that listing the implementations should not take
        import torch.utils._python_dispatch as modes

        watched = getattr(modes, "is_in_any_mode_without_ignore_compile_internals", modes.is_in_torch_dispatch_mode)
        if watched():  # where torch compiles nothing, and never again what it has skipped once
            raise NotExercisedError(f"{self.backend}: no graph is compiled while a mode watches every operation")
        before, compiled = self.ran, self._compiled(arguments, options)
        try:
            # torch's limit over all sets together is no measure here: each has its own.
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, accumulated_recompile_limit=1 << 20,
                                            recompile_limit=self.limit):
                result = compiled(*arguments, **options)
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:
            raise NotExercisedError(f"{self.backend}: torch's recompile limit was hit, {self.limit} graphs for one set of options; "
                                    "beyond it torch runs the function uncompiled") from error
        if self.ran == before:
            raise NotExercisedError(f"{self.backend}: no compiled graph ran")
        return result

    def _compiled(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Function:
        """What is compiled for this call: each key has graphs of its own, so that none counts against another's limit."""
        named: dict[Any, Any] = {**dict(enumerate(arguments)), **options}
        of_set = tuple((name, _sort(one)) for name, one in named.items())
        exact = of_set, tuple(_shapes(one) for one in named.values())
        if exact not in self._made and self._seen[of_set] < self.shapes:
            self._seen[of_set] += 1
            self._made[exact] = self._compile(dynamic=False)
        elif exact not in self._made and of_set not in self._made:
            self._made[of_set] = self._compile(dynamic=True)
        return self._made[exact if exact in self._made else of_set]  # not by truth: a compiled module would be asked for its length

    def _compile(self, *, dynamic: bool) -> Function:
        apart: dict[str, Any] = {"recompile_limit": self.limit, "isolate_recompiles": True}
        told = apart.keys() <= inspect.signature(torch.compile).parameters.keys()  # an older torch knows neither
        made: Function = torch.compile(self.function if told else _own_code(self.function), backend=self._build, dynamic=dynamic,
                                       fullgraph=self.whole, **(apart if told else {}))
        return made

    def _build(self, graph: Any, inputs: Any) -> Function:
        """The backend: torch's own, with a count of what it made and of what runs."""
        from torch._dynamo.backends.registry import lookup_backend

        built = lookup_backend(self.backend)(graph, inputs)
        self.graphs += 1

        def counted(*arguments: Any) -> Any:
            self.ran += 1
            return built(*arguments)
        return counted


def _own_code(function: Function) -> Function:
    """The function with a code object of its own, by which torch counts graphs."""
    if not isinstance(function, FunctionType):
        return function
    made = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__,
                        function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _sort(value: Any) -> Any:
    """What a graph with symbols is made for: of a tensor the type, and which axes have sizes 0 or 1; else the value. Of parameters
    (a mapping, or a list of them) each."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(min(size, 2) for size in value.shape)
    if isinstance(value, Mapping):
        return tuple((name, _sort(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(_sort, value))
    return repr(value)


def _shapes(value: Any) -> Any:
    """The shapes of a tensor, or of every tensor among parameters."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return tuple(map(_shapes, inner))


def missing_compiler(backend: str) -> str:
    """Why this backend cannot work here; empty where it can."""
    if backend != "inductor":
        return ""
    named = os.environ.get("CXX", "g++")
    return "" if shutil.which(named) else f"inductor needs a C++ compiler, and there is no {named} here"
