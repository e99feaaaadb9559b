"""From what an implementation returned to what can be sent: plain CPU tensors, JSON values, observations."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from assay.hosting import RESULT_BEFORE, OutputFacts
from assay.run.arguments import Kept
from assay.run.layouts import Placed, same_bits

_HELD = 1 << 20  # elements of a result that is held until the next call
_DEPTH = 8  # nesting of plain values that is sent; nothing in the contract nests deeper than 2


class Ship:
    """A result made ready to leave the host.

    tensors: the outputs themselves, still attached to the graph, for the gradients. The rest: see `Answer`.
    """

    def __init__(self, result: Any, keep: tuple[int, ...], kept: Kept, placed: Mapping[str, Placed]) -> None:
        self.structure, items = _take_apart(result)
        self.tensors = [item for i, item in enumerate(items) if isinstance(item, torch.Tensor) and i not in keep]
        self.outputs = tuple(kept.keep(item) if i in keep else self._ship(item) for i, item in enumerate(items))
        self.facts = tuple(facts_of(item, placed) if isinstance(item, torch.Tensor) and i not in keep else None
                           for i, item in enumerate(items))

    def _ship(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            if not _is_dense(item):
                self.structure = f"other:{str(item.layout).removeprefix('torch.')} tensor"
                return None
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                return item.detach().to("cpu", copy=True).contiguous()
        if is_plain(item):
            return item
        self.structure = f"other:{_type_name(item)}"
        return None


class Earlier:
    """The first result of an implementation's last call, where it lies in memory, beside what it was: the next call must not
    change it, as one that hands out a buffer of its own does."""

    def __init__(self) -> None:
        self._held: tuple[torch.Tensor, torch.Tensor] | None = None

    def follow(self, ship: Ship | None) -> tuple[str, ...]:
        """What the call that is over did to the result before it; its own result takes that one's place."""
        changed = self._held is not None and not same_bits(*self._held)
        self._held = None if ship is None else _held(ship)
        return (RESULT_BEFORE,) if changed else ()


def _held(ship: Ship) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The first result and its copy; None where it may change with an argument in whose memory it lies, or is large."""
    there, told, copy = next(iter(ship.tensors), None), next(iter(ship.facts), None), next(iter(ship.outputs), None)
    if there is None or told is None or not isinstance(copy, torch.Tensor) or not told.is_plain_tensor:
        return None
    if told.shares_memory_with or there.device.type != "cpu" or there.numel() > _HELD or there.is_complex():
        return None
    return there.detach(), copy


def _take_apart(result: Any) -> tuple[str, list[Any]]:
    """Structure and outputs of a result."""
    if isinstance(result, torch.Tensor):
        return "tensor", [result]
    if isinstance(result, tuple):  # named tuples too
        return "tuple", list(result)
    if isinstance(result, Iterator) and not is_plain(result):  # `parameters()`
        return "iterator", list(result)
    if is_plain(result):
        return "value", [result]
    if isinstance(result, list):
        return "other:list", result
    if isinstance(result, dict):
        return "dict", list(result.values())
    return f"other:{_type_name(result)}", []


def _type_name(value: object) -> str:
    return "".join(c for c in type(value).__name__ if c.isprintable())[:100]


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)


def is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Whether the value can be sent as JSON: None, scalars, strings, and lists and dicts of them."""
    if value is None or type(value) in (bool, float, str):
        return True
    if type(value) is int:
        return value.bit_length() < 4096
    if type(value) is list and depth:
        return all(is_plain(item, depth - 1) for item in value)
    if type(value) is dict and depth:
        return all(type(key) is str and is_plain(item, depth - 1) for key, item in value.items())
    return False


def facts_of(tensor: torch.Tensor, placed: Mapping[str, Placed]) -> OutputFacts:
    """What is observed on one tensor before it leaves."""
    return OutputFacts(
        shape=tuple(int(n) for n in tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        is_plain_tensor=type(tensor) in (torch.Tensor, torch.nn.Parameter), requires_grad=bool(tensor.requires_grad),
        shares_memory_with=_sharers(tensor, placed))


def _sharers(tensor: torch.Tensor, placed: Mapping[str, Placed]) -> tuple[str, ...]:
    """Paths of the arguments in whose storage the tensor lies; an empty tensor lies nowhere."""
    if not _is_dense(tensor) or not tensor.numel():
        return ()
    storage = tensor.untyped_storage().data_ptr()
    return tuple(path for path, other in placed.items() if other.buffer.untyped_storage().data_ptr() == storage)
