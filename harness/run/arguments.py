"""From a call's plain arguments to what the implementation is handed: tensors, callables, values that were kept."""
from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS
from assay.errors import HarnessError, NotClaimedError
from assay.hosting import Call, Handle, Recipe
from assay.recipes import build
from assay.run.layouts import Placed, place


@dataclass
class Kept:
    """Values that stay in the host between calls."""

    values: dict[int, Any] = field(default_factory=dict)
    issued: int = 0

    def keep(self, value: Any) -> Handle:
        """Store a value; the handle stands for it from now on."""
        self.issued += 1
        self.values[self.issued] = value
        return Handle(self.issued, size=tree_bytes(value), type=type(value).__name__[:100])

    def get(self, handle: Handle) -> Any:
        """The value, or a deep copy of it if the handle asks for one."""
        if handle.number not in self.values:
            raise HarnessError(f"handle={handle.number} must be one that this host issued and still keeps")
        value = self.values[handle.number]
        return copy.deepcopy(value) if handle.copy else value


def tree_bytes(value: Any) -> int | None:
    """Bytes of a tree of tensors (shared storage counted once); None where the value is anything else."""
    sizes: dict[int, int] = {}
    return sum(sizes.values()) if _collect_sizes(value, sizes) else None


def _collect_sizes(value: Any, sizes: dict[int, int]) -> bool:
    if isinstance(value, torch.Tensor):
        sizes[id(value)] = value.numel() * value.element_size()
        return True
    if value is None or isinstance(value, (bool, int, float, str)):
        return True
    if isinstance(value, Mapping):
        return all([_collect_sizes(item, sizes) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return all([_collect_sizes(item, sizes) for item in value])
    return False


class Arguments:
    """The arguments of one call, laid out on its device: `values` by name, `placed` by path ("params/attn.w_q")."""

    def __init__(self, call: Call, kept: Kept) -> None:
        self._call, self._kept = call, kept
        self.placed: dict[str, Placed] = {}
        self.wrt: dict[str, torch.Tensor] = {}
        self.values = {name: self._build(value, name, name) for name, value in call.arguments.items()}
        self.upstream = tuple(self._build(value, f"upstream/{n}", "") for n, value in enumerate(call.upstream))
        self._held = self._containers()

    def _build(self, value: Any, path: str, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            return self._place(value, path, name)
        if isinstance(value, Handle):
            return self._kept.get(value)
        if isinstance(value, Recipe):
            return build(replace(value, parameters=self._build(dict(value.parameters), path, name)))
        if isinstance(value, dict):
            return {key: self._build(item, f"{path}/{key}", name) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._build(item, f"{path}/{index}", name) for index, item in enumerate(value))
        return value

    def _place(self, value: torch.Tensor, path: str, name: str) -> torch.Tensor:
        call = self._call
        layout = call.layouts.get(path, call.layouts.get(name, "contiguous")) if name else call.upstream_layout
        self.placed[path] = place(value, layout, call.device)
        tensor = self.placed[path].tensor
        if tensor.is_floating_point() and any(path == asked or path.startswith(asked + "/") for asked in call.wrt):
            tensor.requires_grad_()
            self.wrt[path] = tensor
        return tensor

    def inspect(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Paths whose values, and paths whose guard bands, are no longer what they were."""
        seen = {path: placed.inspect() for path, placed in self.placed.items()}
        now = self._containers()
        return (tuple([*(path for path, (values, _) in seen.items() if not values),
                       *(name for name, held in self._held.items() if now[name] != held)]),
                tuple(path for path, (_, guards) in seen.items() if not guards))

    def _containers(self) -> dict[str, Any]:
        """What the lists and mappings among the arguments hold now, by argument."""
        return {name: held(self.values[name]) for name, value in self._call.arguments.items() if isinstance(value, (dict, list))}


def held(value: Any) -> Any:
    """What a container holds, in order: numbers and text as they are written, all else by identity."""
    if isinstance(value, dict):
        return [(key, held(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [held(item) for item in value]
    return repr(value) if value is None or isinstance(value, (bool, int, float, str)) else id(value)


def bind(declaration: Declaration, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, as this declaration's signature takes them."""
    positional = [values[name] for name in declaration.positional if name in values]
    return positional, {name: value for name, value in values.items()
                        if name not in declaration.positional and _passes(declaration, name, value)}


def _passes(declaration: Declaration, name: str, value: Any) -> bool:
    """Whether the keyword is handed over.

    One that the signature lacks is left out where its value is the kind's default, or the one fixed choice that the
    declaration names; otherwise the call asks for what is not claimed.
    """
    options = KINDS[declaration.kind].options
    if name not in options or name in declaration.keywords:
        return True
    if _is(value, options[name]) or _is(value, declaration.conventions.get(name, options[name])):
        return False
    raise NotClaimedError(f"{name}={value!r:.60} must not be asked of {declaration.name!r}: its signature lacks it")


def _is(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value is other
    return value is other or (type(value) is type(other) and bool(value == other))
