"""Planted faults of size in the kinds beyond the contract: right up to some size of one argument, an eighth off beyond it; where
the axis is the output's too, in the tail alone."""
from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from assay.faults.sizes import Place, plant_sizes
from assay.registry import fault, reference

PLACES: Mapping[str, Mapping[str, Place]] = {
    "packed_attention": {
        "beyond_128_queries": ("q", 0, 128, 0), "beyond_64_queries": ("q", 0, 64, 0), "beyond_8_heads": ("q", 1, 8, 1),
        "beyond_128_channels": ("q", 2, 128, None),
    },
    "qk_norm_attention": {
        "beyond_8_heads": ("q", 1, 8, 1), "beyond_8_samples": ("q", 0, 8, 0), "beyond_128_channels": ("q", 3, 128, None),
        "beyond_256_keys": ("k", 2, 256, None), "beyond_32_tokens": ("q", 2, 32, 2),
    },
    "latent_attention": {
        "beyond_32_tokens": ("x", 1, 32, 1), "beyond_8_heads": ("num_heads", 0, 8, None),
        "beyond_128_of_latent": ("w_kv_norm", 0, 128, None),
    },
    "capacity_moe": {"beyond_64_tokens": ("x", -2, 64, -2), "beyond_16_experts": ("w_router", 0, 16, None)},
}


plant_sizes(PLACES)


@fault("capacity_moe", summary="an expert's queue holds 30 tokens, whatever its capacity")
def room_for_thirty(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
    priority: str = "token",
) -> Tensor:
    """Right for fewer tokens."""
    out: Tensor = reference("capacity_moe").capacity_moe(
        x, w_router, w_gate, w_up, w_down, top_k=top_k, capacity=min(capacity, 30), priority=priority)
    return out
