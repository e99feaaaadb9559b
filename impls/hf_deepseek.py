"""Hugging Face DeepSeek-V3: its router."""
from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
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
