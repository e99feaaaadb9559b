"""Planted faults of size: right up to some size of one argument, an eighth off beyond it, as a tile or a table that is too small
leaves it; where the axis is the result's too, in the tail alone."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.faults.conduct import mapped
from assay.registry import fault, reference

WRONG = 1.125

# kind -> fault -> (argument, its axis, the last size that is right, axis of the result whose tail is wrong or None: all of it)
Place = tuple[str, int, int, int | None]
_DENSE: Mapping[str, Place] = {
    "beyond_8_heads": ("q", 1, 8, 1), "beyond_8_samples": ("q", 0, 8, 0), "beyond_128_channels": ("q", 3, 128, None),
    "beyond_256_keys": ("k", 2, 256, None),
}
_FEATURES: Mapping[str, Place] = {"beyond_64_rows": ("x", -2, 64, -2), "beyond_2048_columns": ("x", -1, 2048, -1)}
PLACES: Mapping[str, Mapping[str, Place]] = {
    "attention": _DENSE, "blockwise_attention": _DENSE, "sink_attention": _DENSE,
    "paged_attention": {
        "beyond_256_blocks": ("k_cache", 0, 256, None), "beyond_64_tokens": ("lengths", 0, 64, None),
        "beyond_512_tokens": ("lengths", 0, 512, None), "beyond_8_heads": ("q", 1, 8, 1), "beyond_8_sequences": ("q", 0, 8, 0),
        "beyond_128_channels": ("q", 2, 128, None),
    },
    "packed_attention": {"beyond_8_sequences": ("cu_seqlens_q", 0, 9, None), "beyond_128_keys": ("k", 0, 128, None)},
    "multi_head_attention": {"beyond_8_heads": ("num_heads", 0, 8, None), "beyond_64_tokens": ("x", 1, 64, 1)},
    "rotary": {"beyond_4_heads": ("x", 1, 4, 1), "beyond_32_tokens": ("x", 2, 32, 2), "beyond_128_channels": ("x", 3, 128, 3)},
    "softmax": {"beyond_64_rows": ("x", 0, 64, 0), "beyond_2048_columns": ("x", -1, 2048, -1)},
    "layer_norm": _FEATURES, "rms_norm": _FEATURES, "add_rms_norm": _FEATURES,
    "batch_norm": {"beyond_256_rows": ("x", 0, 256, 0), "beyond_128_features": ("x", 1, 128, 1)},
    "sinusoidal": {"beyond_512_channels": ("dim", 0, 512, -1), "beyond_128_positions": ("positions", 0, 128, 0)},
    "alibi": {"beyond_64_heads": ("num_heads", 0, 64, 0)},
}


def size_of(arguments: Mapping[str, Any], name: str, axis: int) -> int:
    """The size of a tensor along an axis; a whole number is its own size, and of lengths the longest counts."""
    value = arguments[name]
    if not isinstance(value, Tensor):
        return int(value)
    if name == "lengths":
        return int(value.max()) if value.numel() else 0
    return int(value.shape[axis]) if -value.dim() <= axis < value.dim() else 0


def beyond(right: Callable[..., Any], arguments: dict[str, Any], place: Place) -> Any:
    """The right result; wrong where the size lies beyond the last that is right."""
    name, axis, last, tail = place
    result = right(**arguments)
    if size_of(arguments, name, axis) <= last:
        return result

    def bent(out: Tensor) -> Tensor:
        if tail is None:
            return out * WRONG
        kept = torch.arange(out.shape[tail], device=out.device) < last
        return torch.where(kept.reshape([-1, *[1] * (out.dim() - 1 - tail % out.dim())]), out, out * WRONG)

    return mapped(result, bent)


def _plant(kind: str, name: str, change: Callable[[Callable[..., Any], dict[str, Any]], Any], summary: str) -> None:
    right = getattr(reference(kind), kind)
    signature = inspect.signature(right)

    @functools.wraps(right)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        return change(right, dict(signature.bind(*args, **kwargs).arguments))

    wrong.__name__ = name
    fault(kind, summary=summary)(wrong)


def plant_sizes(places: Mapping[str, Mapping[str, Place]]) -> None:
    """One fault for each kind and place."""
    for kind, those in places.items():
        for name, place in those.items():
            _plant(kind, name, functools.partial(beyond, place=place), f"an eighth off {name.replace('_', ' ')}, right before that")


def decoding_ignores_window(right: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """A single query sees all keys: the path for decoding does not know the window."""
    return right(**arguments if arguments["q"].shape[2] != 1 else {**arguments, "window": None})


def last_row_of_full_tiles(right: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The last of as many queries as keys is an eighth off where they fill tiles of 64."""
    queries, keys = arguments["q"].shape[2], arguments["k"].shape[2]
    result: Tensor = right(**arguments)
    if not queries or queries != keys or queries % 64 or not arguments.get("causal"):
        return result
    last = torch.arange(queries, device=result.device) == queries - 1
    return torch.where(last[:, None], result * WRONG, result)


for _kind in ("attention", "sink_attention"):
    for _change in (decoding_ignores_window, last_row_of_full_tiles):
        _plant(_kind, _change.__name__, _change, _change.__doc__ or "")
plant_sizes(PLACES)
