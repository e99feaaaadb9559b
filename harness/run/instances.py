"""The implementations that one process holds: their declarations, objects made by factories, copies, kept values."""
from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from assay.compiling import Compiled
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.errors import HarnessError
from assay.hosting import Answer, Call
from assay.run.arguments import Arguments, Kept, bind
from assay.run.conduct import Conduct
from assay.run.outputs import Earlier
from assay.run.perform import perform


class Instances:
    """Answers calls with the declared implementations.

    alone: nobody else touches this process' global state, so that state after one call is state before the next.
    """

    def __init__(self, declarations: Sequence[Declaration], *, alone: bool) -> None:
        self._declared = {(d.kind, d.name): d for d in declarations}
        self._objects: dict[tuple[Any, ...], Any] = {}
        self._kept = Kept()
        self._earlier: dict[tuple[str, str], Earlier] = {}
        self._conduct = Conduct()
        self._alone = alone

    def describe(self) -> list[Mapping[str, Any]]:
        """The declarations as JSON."""
        return [declaration.to_json() for declaration in self._declared.values()]

    def call(self, call: Call) -> Answer:
        """Run one call; see `perform`."""
        for number in call.release:
            self._kept.values.pop(number, None)
        declaration = self._declared.get((call.kind, call.implementation))
        if declaration is None or declaration.function is None:
            raise HarnessError(f"implementation={call.implementation!r} must be one of kind {call.kind!r} in this host")
        if not self._alone:
            self._conduct.renew()
        earlier = None if KINDS[call.kind].factory else self._earlier.setdefault((call.kind, call.implementation), Earlier())
        return perform(call, self._invocation(call, declaration), kept=self._kept, conduct=self._conduct, earlier=earlier,
                       own_files=_own_files(declaration.function), interruptible=not self._alone, cost=_cost(declaration))

    def _invocation(self, call: Call, declaration: Declaration) -> Callable[[Arguments], Callable[[], Any]]:
        """What to do once the arguments stand; foreign code runs in the innermost functions only."""
        def of_function(arguments: Arguments) -> Callable[[], Any]:
            positional, keywords = bind(declaration, arguments.values)
            return lambda: self._instance(call, declaration)(*positional, **keywords)

        def of_object(arguments: Arguments) -> Callable[[], Any]:
            return lambda: ask(arguments)

        def ask(arguments: Arguments) -> Any:
            target = self._instance(call, declaration)
            _ask_for_parameters(call, target, arguments)
            member = getattr(target, call.method)
            if not callable(member):
                return member
            named = {name: value for name, value in arguments.values.items() if not name.isdecimal()}
            return member(*(arguments.values[name] for name in arguments.values if name.isdecimal()), **named)

        return of_object if KINDS[call.kind].factory else of_function

    def _instance(self, call: Call, declaration: Declaration) -> Any:
        """The original, another made by the factory (n > 0), or a deep copy (n < 0, or where there is no factory)."""
        function, factory = declaration.function, KINDS[call.kind].factory
        assert function is not None
        if not factory and call.instance == 0 and not call.moved and not call.compiled:
            return function
        key = (call.kind, call.implementation, call.device, call.seed, call.instance, call.moved, call.compiled)
        if key not in self._objects:
            if call.compiled:
                made = Compiled(self._instance(replace(call, compiled=False), declaration), "aot_eager", whole=False)
            elif call.moved:
                made = _copied(self._instance(replace(call, moved=False), declaration))
                made = made.to(call.device) if isinstance(made, torch.nn.Module) else made
            elif call.instance < 0:
                made = _copied(self._instance(replace(call, instance=-call.instance - 1), declaration))
            elif factory:
                # A factory may seed the global generators, which is how models are made; calls of the model may not.
                with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
                    made = function(seed=call.seed) if "seed" in declaration.keywords else function()
                made = made.to(call.device) if isinstance(made, torch.nn.Module) else made
            else:
                made = _copied(function)
            self._objects[key] = made
        return self._objects[key]


def _copied(target: Any) -> Any:
    """A deep copy. What torch cannot copy, such as an object that keeps activations, is wrong nowhere: copies are not
    supported there."""
    try:
        return copy.deepcopy(target)
    except (RuntimeError, TypeError) as error:
        raise NotImplementedError(f"it cannot be deep-copied: {error}") from error


def _cost(declaration: Declaration) -> Callable[[Arguments], Any] | None:
    """The declared `cost=`, called as the implementation is."""
    cost = declaration.cost
    if cost is None:
        return None

    def told(arguments: Arguments) -> Any:
        positional, keywords = bind(declaration, arguments.values)
        return cost(*positional, **keywords)

    return told


def _ask_for_parameters(call: Call, target: Any, arguments: Arguments) -> None:
    """Gradients of an object are asked for as `wrt=("parameters",)` and come back as "parameters/0", …"""
    if "parameters" in call.wrt:
        found = [p for p in target.parameters() if p.requires_grad]
        arguments.wrt.update({f"parameters/{index}": parameter for index, parameter in enumerate(found)})


def _own_files(function: Callable[..., Any]) -> tuple[str, ...]:
    """Source files of the callable: the function's own, or the class of an object."""
    inner = inspect.unwrap(function)
    method = getattr(type(inner), "forward", type(inner).__call__)
    code = getattr(inner, "__code__", None) or getattr(method, "__code__", None)
    return (code.co_filename,) if code is not None else ()
