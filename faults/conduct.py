"""Planted faults of conduct, for every kind that has a reference: right results, wrong behaviour."""
from __future__ import annotations

import functools
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.contract.kinds import FLAT, KINDS, ONE_TENSOR, Kind
from assay.faults.planting import packed
from assay.registry import fault, reference

Implementation = Callable[..., Any]


def mapped(result: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The result with its first tensor changed, floating or whole numbers."""
    if isinstance(result, Tensor):
        return change(result)
    first, *rest = result
    return (mapped(first, change), *rest)


def off_by(out: Tensor, scale: float) -> Tensor:
    """out · scale; whole numbers are one too high in place of being scaled."""
    if out.is_floating_point():
        return out * scale
    return out if scale == 1.0 else out + 1


def first_tensor(arguments: Mapping[str, Any]) -> tuple[str, Tensor] | None:
    """Name and value of the first floating tensor among the arguments."""
    return next(((n, a) for n, a in arguments.items() if isinstance(a, Tensor) and a.is_floating_point()), None)


def wrong_type(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The result in float64; in float16 where no argument has a type to follow."""
    return mapped(right(**arguments), lambda out: out.double() if first_tensor(arguments) else out.half())


def input_overwritten(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The first argument is halved in place after the call; whole numbers grow by one."""
    result, found = right(**arguments), first_tensor(arguments)
    if found is None:
        for whole in (a for a in arguments.values() if isinstance(a, Tensor)):
            whole.add_(1)
    if found is not None and found[1].numel():
        found[1].detach().reshape(-1)[:1].mul_(0.5) if found[1].is_contiguous() else found[1].detach().mul_(0.5)
    return result


def entry_taken_out(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The caller's own mapping of parameters, or list of layers, has lost its last entry after the call."""
    result = right(**arguments)
    for held in arguments.values():
        if isinstance(held, dict) and held:
            held.popitem()
        elif isinstance(held, list) and held:
            held.pop()
    return result


def last_element_unwritten(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The last element of the result is whatever the memory held."""
    def copied(out: Tensor) -> Tensor:
        fresh = torch.empty(out.shape, dtype=out.dtype, device=out.device)
        flat = torch.arange(out.numel(), device=out.device).reshape(out.shape) < out.numel() - 1
        return torch.where(flat, out, fresh)
    return mapped(right(**arguments), copied)


def default_dtype_changed(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The default dtype is left at float64."""
    result = right(**arguments)
    torch.set_default_dtype(torch.float64)
    return result


def strides_ignored(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The first argument is read as if it were packed."""
    found = first_tensor(arguments) or next(((n, a) for n, a in arguments.items() if isinstance(a, Tensor)), None)
    if found is None:
        return right(**arguments)
    name, value = found
    strides = torch.empty(value.shape, dtype=value.dtype, device="meta").stride()
    room = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
    if value.numel() > room:
        return right(**arguments)
    return right(**{**arguments, name: value.as_strided(value.shape, strides)})


def rows_taken_as_packed(right: Implementation, arguments: dict[str, Any]) -> Any:
    """Where the last stride is 1, rows are taken to lie end to end, also those of a wider tensor."""
    return right(**{name: end_to_end(value) if isinstance(value, Tensor) else value for name, value in arguments.items()})


def end_to_end(value: Tensor) -> Tensor:
    """Rows of equal distance, of a last stride of 1, read as if nothing lay between them."""
    rows = value.flatten(0, -2) if value.dim() >= 2 and value.numel() else value
    if rows.dim() < 2 or rows.data_ptr() != value.data_ptr() or rows.stride(1) != 1 or rows.stride(0) <= rows.shape[1]:
        return value
    return rows.as_strided(rows.shape, (rows.shape[1], 1)).reshape(value.shape)


def strides_of_the_first(right: Implementation, arguments: dict[str, Any]) -> Any:
    """Whether the first tensor is contiguous is asked once, for all: the others are then read as if they were packed."""
    found = list(tensors(arguments))
    if not found or not found[0].is_contiguous():
        return right(**arguments)
    return right(**{name: repacked(value) for name, value in arguments.items()})


def strides_of_the_keys(right: Implementation, arguments: dict[str, Any]) -> Any:
    """Values are read with the strides of the keys where the shapes are the same."""
    keys, values = (next(name for name in (letter, f"{letter}_cache") if name in arguments) for letter in ("k", "v"))
    k, v = arguments[keys], arguments[values]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(k.shape, k.stride(), strict=True))
    held = v.untyped_storage().nbytes() // v.element_size() - v.storage_offset()
    if k.shape == v.shape and k.numel() and reach <= held:
        v = v.as_strided(k.shape, k.stride())
    return right(**{**arguments, values: v})


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors among the arguments, those in mappings and lists too."""
    if isinstance(value, Tensor):
        yield value
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ():
        yield from tensors(part)


def repacked(value: Any) -> Any:
    """Every tensor as `packed` reads it."""
    if isinstance(value, Tensor):
        return packed(value)
    if isinstance(value, Mapping):
        return {name: repacked(part) for name, part in value.items()}
    return type(value)(map(repacked, value)) if type(value) in (list, tuple) else value


def wrong_without_gradients(right: Implementation, arguments: dict[str, Any]) -> Any:
    """The path for inference is off by an eighth."""
    scale = 1.0 if torch.is_grad_enabled() else 1.125
    return mapped(right(**arguments), lambda out: off_by(out, scale))


def every_second_call(right: Implementation, arguments: dict[str, Any], state: dict[Any, Any]) -> Any:
    """Every second call is off by an eighth."""
    state["calls"] = state.get("calls", 0) + 1
    scale = 1.125 if state["calls"] % 2 == 0 else 1.0
    return mapped(right(**arguments), lambda out: off_by(out, scale))


def remembered_by_shape(right: Implementation, arguments: dict[str, Any], state: dict[Any, Any]) -> Any:
    """The first result for these shapes comes back for every input of these shapes."""
    shapes = tuple((tuple(a.shape), a.dtype) if isinstance(a, Tensor) else repr(type(a)) for a in arguments.values())
    result = right(**arguments)
    return mapped(result, lambda out: out + (state.setdefault((shapes, out.shape), out.detach()) - out.detach()))


def result_overwritten_later(right: Implementation, arguments: dict[str, Any], state: dict[Any, Any]) -> Any:
    """Every result of one shape is handed out in one and the same buffer."""
    result = right(**arguments)
    first = result[0] if isinstance(result, tuple) else result
    before = state.get(first.shape)
    state[first.shape] = first
    if before is not None:
        before.data.copy_(first.data)
    return result


def smaller_batch_after_larger(right: Implementation, arguments: dict[str, Any], state: dict[Any, Any]) -> Any:
    """A smaller batch after a larger one is off by an eighth, as if it read the workspace that the larger one left."""
    batch = next((a for a in arguments.values() if isinstance(a, Tensor)), None)
    if batch is None or batch.dim() == 0:
        return right(**arguments)
    largest = state[tuple(batch.shape[1:])] = max(batch.shape[0], state.get(tuple(batch.shape[1:]), 0))
    return mapped(right(**arguments), lambda out: off_by(out, 1.125 if batch.shape[0] < largest else 1.0))


def remembered_by_content(right: Implementation, arguments: dict[str, Any], state: dict[Any, Any]) -> Any:
    """The first result comes back for every input that holds the same numbers, in whatever order."""
    key = tuple((tuple(a.shape), a.dtype, tuple(a.detach().double().flatten().sort().values.tolist())) if isinstance(a, Tensor)
                else repr(a) for a in arguments.values())
    result = right(**arguments)
    return mapped(result, lambda out: (
        out + (state.setdefault((key, out.shape), out.detach()) - out.detach()) if out.is_floating_point() else
        state.setdefault((key, out.shape), out.detach())))


def wrong_when_compiled(right: Implementation, arguments: dict[str, Any]) -> Any:
    """Under a compiler it is off by an eighth."""
    scale = 1.125 if torch.compiler.is_compiling() else 1.0
    return mapped(right(**arguments), lambda out: off_by(out, scale))


class LostInACopy:
    """What it was set up with is kept by the identity of the object: a copy is off by an eighth."""

    def __init__(self, right: Implementation) -> None:
        functools.update_wrapper(self, right)
        self.right, self.known = right, {id(self)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        scale = 1.0 if id(self) in self.known else 1.125
        return mapped(self.right(*args, **kwargs), lambda out: off_by(out, scale))


class BrokenByTo(torch.nn.Module):
    """`.to()` sets its scale up anew, an eighth too large."""

    def __init__(self, right: Implementation) -> None:
        super().__init__()
        functools.update_wrapper(self, right)
        self.right, self.scale = right, 1.0

    def to(self, *args: Any, **kwargs: Any) -> BrokenByTo:
        self.scale = 1.125
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return mapped(self.right(*args, **kwargs), lambda out: off_by(out, self.scale))


OBJECTS: Mapping[str, Callable[[Implementation], Any]] = {"conduct_lost_in_a_copy": LostInACopy, "conduct_broken_by_to": BrokenByTo}
STATELESS = (wrong_type, input_overwritten, entry_taken_out, last_element_unwritten, default_dtype_changed, strides_ignored,
             rows_taken_as_packed, strides_of_the_first, strides_of_the_keys, wrong_without_gradients, wrong_when_compiled)
OF_SEVERAL = (strides_of_the_first,)
STATEFUL = (every_second_call, remembered_by_shape, result_overwritten_later, smaller_batch_after_larger, remembered_by_content)
OF_A_BATCH = (smaller_batch_after_larger, remembered_by_content)
BATCHES = ("softmax", "attention", "blockwise_attention", "paged_attention", "multi_head_attention", "rotary", "layer_norm",
           "rms_norm", "feed_forward", "gated_feed_forward", "embedding", "unembedding", "patchify", "qk_norm_attention",
           "latent_attention", "add_rms_norm")
NEED_A_TENSOR = (input_overwritten, strides_ignored, remembered_by_shape, result_overwritten_later)
WITHOUT_TENSORS = ("alibi",)  # three numbers decide everything, and the shape of the result tells them


def expressible(kind: Kind, change: Callable[..., Any]) -> bool:
    """Whether the kind has the arguments that the fault is about."""
    if change is entry_taken_out:
        return not {"params", "layers"}.isdisjoint(kind.arguments)
    if change is rows_taken_as_packed:
        return kind.name not in FLAT
    if change is strides_of_the_keys:
        return not {"v", "v_cache"}.isdisjoint(kind.arguments)
    if change in OF_A_BATCH:
        return kind.name in BATCHES
    if change in OF_SEVERAL:
        return kind.name not in ONE_TENSOR
    return change not in NEED_A_TENSOR or kind.name not in WITHOUT_TENSORS


def plant(kind: str, right: Implementation, change: Callable[..., Any], *, stateful: bool) -> None:
    """Register one conduct fault of one kind, with the reference's own signature."""
    signature = inspect.signature(right)
    state: dict[Any, Any] = {}

    @functools.wraps(right)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        return change(right, arguments, state) if stateful else change(right, arguments)

    wrong.__name__ = f"conduct_{change.__name__}"
    fault(kind, summary=inspect.getdoc(change) or "")(wrong)


def _plant_all() -> None:
    for kind in KINDS.values():
        if kind.factory:
            continue
        if importlib.util.find_spec(f"assay.reference.{kind.name}") is None:
            continue
        right = getattr(reference(kind.name), kind.name)
        for change in (*STATELESS, *STATEFUL):
            if not expressible(kind, change):
                continue
            plant(kind.name, right, change, stateful=change in STATEFUL)
        for name, sort in OBJECTS.items():
            made = sort(right)
            made.__name__ = name
            fault(kind.name, summary=inspect.getdoc(sort) or "")(made)


_plant_all()
