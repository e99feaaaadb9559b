"""Hugging Face DeepSeek: the router of V3, the latent attention of V2 and V3."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls import hf_llama
from assay.impls._masks import lowest, visible
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
Weights = Mapping[str, Any]  # by the call's names
Turn = Callable[[Any, int], Any]  # (configuration, turned width) -> the module's position embeddings
EVEN = range(2, 8193, 2)  # V2 views pairs as complex numbers, for which the strides must be even
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


# Scores and weights are float32 whatever the input. The module makes logits itself, by a matrix that is the identity here: the
# products are exact. It ranks every group by two experts, and so refuses a single one.
@assay.implements("sigmoid_router", name="hf-deepseek-v3-router", arithmetic={"internal": "float32"}, version=VERSION, url=URL)
def sigmoid_router(
    logits: Tensor, bias: Tensor, *, top_k: int, n_groups: int = 1, top_groups: int = 1, normalize: bool = True, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`DeepseekV3TopkRouter`."""
    experts = logits.shape[-1]
    if experts // n_groups < 2:
        raise NotImplementedError(f"n_groups={n_groups} must leave two experts a group, got {experts} in all")
    configuration: Any = late("transformers.models.deepseek_v3.configuration_deepseek_v3").DeepseekV3Config(
        hidden_size=experts, num_local_experts=experts, num_experts_per_tok=top_k, n_group=n_groups, topk_group=top_groups,
        norm_topk_prob=normalize, routed_scaling_factor=scale)
    module = bare(late("transformers.models.deepseek_v3.modeling_deepseek_v3").DeepseekV3TopkRouter, configuration)
    weights = {"weight": torch.eye(experts, device=logits.device), "e_score_correction_bias": bias.float()}
    _, found, indices = run(module, weights, logits)
    return found, indices


def attended(version: int, weights: Weights, num_heads: int, causal: bool, turn: Turn, **settings: Any) -> Tensor:
    """The attention module of one version, on the call's tokens and weights; `turn` gives what it wants of positions."""
    x, width, kept = weights["x"], weights["w_o"].shape[1] // num_heads, weights["w_kv_norm"].shape[0]
    turns, compressed = weights["w_kv_a"].shape[0] - kept, weights["w_q_a"]
    name = f"deepseek_v{version}"
    configuration: Any = getattr(late(f"transformers.models.{name}.configuration_{name}"), f"DeepseekV{version}Config")(
        hidden_size=num_heads * x.shape[-1], num_attention_heads=num_heads, num_key_value_heads=num_heads, kv_lora_rank=kept,
        q_lora_rank=None if compressed is None else compressed.shape[0], qk_rope_head_dim=turns, v_head_dim=width,
        qk_nope_head_dim=weights["w_kv_b"].shape[0] // num_heads - width, **settings)
    configuration.hidden_size = x.shape[-1]  # which V2 wants a multiple of the heads when it is made, and nowhere else
    configuration._attn_implementation = "eager"
    module = bare(getattr(late(f"transformers.models.{name}.modeling_{name}"), f"DeepseekV{version}Attention"), configuration, 0)
    queries = {"q_proj.weight": weights["w_q"]} if compressed is None else {
        "q_a_proj.weight": compressed, "q_a_layernorm.weight": weights["w_q_norm"], "q_b_proj.weight": weights["w_q"]}
    mask = lowest(visible(x, x, None, causal, None), x)
    out: Tensor = run(module.eval(), {
        **queries, "kv_a_proj_with_mqa.weight": weights["w_kv_a"], "kv_a_layernorm.weight": weights["w_kv_norm"],
        "kv_b_proj.weight": weights["w_kv_b"], "o_proj.weight": weights["w_o"],
    }, x, position_embeddings=turn(configuration, turns), attention_mask=mask)[0]
    return out


# The norms keep their eps of 1e-6 whatever the configuration says; a view of nothing raises.
@assay.implements("latent_attention", name="hf-deepseek-v3-attention", lacks={"empty"}, arithmetic={"tables": "input"},
                  version=VERSION, url=URL)
def latent_v3(
    x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
    w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
    pairing: str = "interleaved", causal: bool = False,
) -> Tensor:
    """`DeepseekV3Attention`, pairs by `rope_interleave`."""
    weights = {"x": x, "w_q": w_q, "w_kv_a": w_kv_a, "w_kv_norm": w_kv_norm, "w_kv_b": w_kv_b, "w_o": w_o, "w_q_a": w_q_a,
               "w_q_norm": w_q_norm}
    return attended(3, weights, num_heads, causal, lambda _, width: hf_llama.turns(x, positions, width, base),
                    rope_interleave=pairing == "interleaved")


@assay.implements("latent_attention", name="hf-deepseek-v2-attention", lacks={"empty"}, limits={"D": EVEN, "Lk": EVEN},
                  version=VERSION, url=URL)
def latent_v2(
    x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
    w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
    causal: bool = False,
) -> Tensor:
    """`DeepseekV2Attention`: pairs are complex numbers, turned in float32, which are views where the tokens are float32 already."""
    widths = w_kv_a.shape[0], w_q.shape[0] // num_heads
    if x.dtype == torch.float32 and (widths[0] % 2 or widths[1] % 2):
        raise NotImplementedError(f"rows of w_kv_a, and of w_q a head, {widths}, must be even: pairs are viewed as complex")

    def turn(configuration: Any, width: int) -> Tensor:
        if positions is None:
            return torch.ones(1, x.shape[1], width // 2, dtype=torch.complex64, device=x.device)
        library = late("transformers.models.deepseek_v2.modeling_deepseek_v2")
        found: Tensor = library.DeepseekV2RotaryEmbedding(configuration).to(x.device)(x, torch.atleast_2d(positions))
        return found

    weights = {"x": x, "w_q": w_q, "w_kv_a": w_kv_a, "w_kv_norm": w_kv_norm, "w_kv_b": w_kv_b, "w_o": w_o, "w_q_a": w_q_a,
               "w_q_norm": w_q_norm}
    return attended(2, weights, num_heads, causal, turn, rope_parameters={"rope_type": "default", "rope_theta": base})
