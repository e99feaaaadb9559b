"""Planted faults of size in layers, embeddings, routers, losses and filters: right up to some size of one argument, an eighth off
beyond it; where the axis is the output's too, in the tail alone."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.faults.sizes import Place, plant_sizes
from assay.registry import fault, reference

_TOKENS: Place = ("x", -2, 64, -2)
_FEED: Mapping[str, Place] = {"beyond_64_tokens": _TOKENS, "beyond_128_features": ("x", -1, 128, None)}
_ROUTER_LOSS: Mapping[str, Place] = {"beyond_256_tokens": ("logits", 0, 256, None), "beyond_64_experts": ("logits", 1, 64, None)}
_SAMPLES: Mapping[str, Place] = {"beyond_8_samples": ("logp", 0, 8, None)}
PLACES: Mapping[str, Mapping[str, Place]] = {
    "feed_forward": {**_FEED, "beyond_128_hidden_units": ("w_in", 0, 128, None)},
    "gated_feed_forward": {**_FEED, "beyond_128_hidden_units": ("w_gate", 0, 128, None)},
    "router": {"beyond_64_tokens": ("x", 0, 64, 0), "beyond_64_experts": ("w_router", 0, 64, None)},
    "sigmoid_router": {"beyond_64_tokens": ("logits", 0, 64, 0), "beyond_64_experts": ("logits", 1, 64, None)},
    "moe": {"beyond_64_tokens": _TOKENS, "beyond_32_experts": ("w_router", 0, 32, None)},
    "load_balancing_loss": _ROUTER_LOSS, "router_z_loss": _ROUTER_LOSS,
    "embedding": {"beyond_64_ids": ("ids", -1, 64, -2), "beyond_128_channels": ("weight", 1, 128, -1)},
    "input_embedding": {"beyond_64_tokens": ("ids", 1, 64, 1)},
    "unembedding": {"beyond_128_words": ("w_out", 0, 128, -1), "beyond_64_states": ("h", -2, 64, -2),
                    "beyond_128_features": ("h", -1, 128, None)},
    "logits_filter": {"beyond_16_rows": ("logits", 0, 16, 0), "beyond_256_words": ("logits", 1, 256, 1)},
    "patchify": {"beyond_32_pixels_high": ("image", 2, 32, None), "beyond_4_pixels_a_side": ("patch_size", 0, 4, None),
                 "beyond_8_channels": ("image", 1, 8, None)},
    "cross_entropy": {"beyond_128_rows": ("logits", 0, 128, None), "beyond_2048_words": ("logits", 1, 2048, None)},
    "lm_loss": {"beyond_64_tokens": ("ids", 1, 64, None), "beyond_8_samples": ("ids", 0, 8, None)},
    "preference_loss": {"beyond_256_pairs": ("r_chosen", 0, 256, None)},
    "policy_loss": {"beyond_128_tokens": ("logp", 1, 128, None), **_SAMPLES},
    "block": {"beyond_17_tokens": ("x", 1, 17, 1), "beyond_4_heads": ("num_heads", 0, 4, None)},
    "encoder": {"beyond_16_tokens": ("x", 1, 16, 1)},
    "decoder": {"beyond_16_tokens": ("y", 1, 16, 1), "beyond_16_of_memory": ("memory", 1, 16, None)},
    "encoder_decoder": {"beyond_16_tokens": ("tgt", 1, 16, 1)},
}


plant_sizes(PLACES)


@fault("moe", summary="an expert takes its first 50 tokens and turns the others away, which is not declared", origin="BUG-172")
def capacity_of_fifty(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, shared: Any = None,
) -> Tensor:
    """Right for fewer tokens."""
    tokens = x.reshape(-1, x.shape[-1])
    out = torch.zeros_like(tokens)
    weights, indices = reference("router").router(tokens, w_router, top_k=top_k)
    expert = reference("gated_feed_forward").gated_feed_forward
    for e in range(w_router.shape[0]):
        row, slot = (places[:50] for places in torch.nonzero(indices == e, as_tuple=True))
        out = out.index_add(0, row, weights[row, slot].unsqueeze(-1) * expert(tokens[row], w_gate[e], w_up[e], w_down[e]))
    return (out if shared is None else out + expert(tokens, *shared)).reshape(x.shape)
