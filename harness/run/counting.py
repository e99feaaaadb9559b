"""Operations and memory of one call, counted where torch dispatches them: never a clock.

What a kernel does behind the dispatcher's back is not seen; a declared `cost=` speaks for it.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from assay.run.layouts import Placed

_aten = torch.ops.aten
_GATHERS = frozenset({"aten::index", "aten::index_select", "aten::gather", "aten::embedding", "aten::take"})
NAMES = ("multiply_adds", "summed", "largest_bytes", "peak_bytes")


def _matrix_vector(operands: tuple[Any, ...]) -> int:
    matrix = next(one for one in operands if isinstance(one, torch.Tensor) and one.dim() == 2)
    return matrix.numel()


def _cpu_attention(operands: tuple[Any, ...]) -> int:
    q, k, v = operands[:3]
    return int(math.prod(q.shape[:3]) * k.shape[2] * (q.shape[3] + v.shape[3]))


_OTHERS: Mapping[Any, Callable[[tuple[Any, ...]], int]] = {  # products that torch's own table leaves out
    _aten.mv: _matrix_vector, _aten.addmv: _matrix_vector, _aten.dot: lambda operands: operands[0].numel(),
    _aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
}


_SUMS: Mapping[str, int] = {  # operations that add elements up, and how often each element enters a sum
    "aten::sum": 1, "aten::mean": 1, "aten::linalg_vector_norm": 1, "aten::norm": 1, "aten::_fused_rms_norm": 1,
    "aten::var": 2, "aten::std": 2, "aten::var_mean": 2, "aten::std_mean": 2, "aten::native_layer_norm": 2,
    "aten::native_group_norm": 2,
}


class Counter(TorchDispatchMode):
    """Counts while it is entered.

    multiply_adds: of products. summed: elements that entered a sum, once a sum.
    largest_bytes, peak_bytes: the largest memory made, and the most that was alive at once, arguments not counted.
    read/<argument>: elements that operations (but for views) took from the argument's memory.
    """

    def __init__(self, placed: Mapping[str, Placed]) -> None:
        super().__init__()
        self._arguments = {one.tensor.untyped_storage()._cdata: path for path, one in placed.items()}
        self._alive: dict[int, int] = {}
        self._total = 0
        self.counts = dict.fromkeys(NAMES, 0) | {f"read/{path}": 0 for path in placed}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """A compiler may work under it, and what it makes for itself is not counted: its graph is, as it runs."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._products(func, args, kwargs or {}, out)
        outputs = [one for one in _leaves(out) if isinstance(one, torch.Tensor)]
        if not func.is_view:
            self._read(func, [*_leaves(args), *_leaves(tuple((kwargs or {}).values()))], outputs)
        for made in outputs:
            self._made(made)
        return out

    def _products(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func._overloadpacket
        if func._schema.name in _SUMS and isinstance(args[0], torch.Tensor):
            self.counts["summed"] += _SUMS[func._schema.name] * args[0].numel()
        if packet in _OTHERS:
            self.counts["multiply_adds"] += _OTHERS[packet](args)
        elif packet in flop_registry:
            self.counts["multiply_adds"] += int(flop_registry[packet](*args, **kwargs, out_val=out)) // 2

    def _read(self, func: Any, inputs: list[Any], outputs: list[torch.Tensor]) -> None:
        for one in inputs:
            if not isinstance(one, torch.Tensor):
                continue
            path = self._arguments.get(one.untyped_storage()._cdata)
            if path is None:
                continue
            elements = math.prod(size for size, step in zip(one.shape, one.stride(), strict=True) if step)
            if func._schema.name in _GATHERS and outputs:
                elements = min(elements, outputs[0].numel())
            self.counts[f"read/{path}"] += elements

    def _made(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._arguments or key in self._alive:
            return
        self._alive[key] = storage.nbytes()
        self._total += storage.nbytes()
        weakref.finalize(storage, self._freed, key)
        self.counts["largest_bytes"] = max(self.counts["largest_bytes"], storage.nbytes())
        self.counts["peak_bytes"] = max(self.counts["peak_bytes"], self._total)

    def _freed(self, key: int) -> None:
        self._total -= self._alive.pop(key)


def _leaves(value: Any) -> list[Any]:
    """The items of nested lists and tuples."""
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def declared(cost: Any) -> dict[str, int]:
    """What a `cost=` callable gave: a number of multiply-adds, or a mapping from names of counts to numbers."""
    named = cost if isinstance(cost, Mapping) else {"multiply_adds": cost}
    return {str(name): int(value) for name, value in named.items()}
