"""Hugging Face Mixtral: its router and its sparse block, experts stacked as the model keeps them."""
from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


def part(name: str, width: int, hidden: int, experts: int, top_k: int) -> nn.Module:
    """One of the model's modules, in evaluation."""
    configuration: Any = late("transformers.models.mixtral.configuration_mixtral").MixtralConfig(
        hidden_size=width, intermediate_size=hidden, num_local_experts=experts, num_experts_per_tok=top_k,
    )
    configuration._experts_implementation = "eager"  # the block alone, without a model around it, asks for one
    return bare(getattr(late("transformers.models.mixtral.modeling_mixtral"), name), configuration).eval()


# The router's softmax is in float32 whatever the input, and so are the weights it gives.
@assay.implements("router", name="hf-mixtral-router", version=VERSION, url=URL)
def router(x: Tensor, w_router: Tensor, *, top_k: int) -> tuple[Tensor, Tensor]:
    """`MixtralTopKRouter`: softmax over all experts, the largest made to sum to 1."""
    module = part("MixtralTopKRouter", x.shape[-1], 1, w_router.shape[0], top_k)
    _, weights, indices = run(module, {"weight": w_router}, x)
    return weights, indices


# The block calls `.view`, which raises on tokens that do not lie row after row.
@assay.implements("moe", name="hf-mixtral-moe", lacks={"strided"}, version=VERSION, url=URL)
def moe(x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int) -> Tensor:
    """`MixtralSparseMoeBlock`, expert by expert."""
    experts, hidden, width = w_gate.shape
    weights = {"gate.weight": w_router, "experts.gate_up_proj": torch.cat([w_gate, w_up], dim=1),
               "experts.down_proj": w_down}
    out: Tensor = run(part("MixtralSparseMoeBlock", width, hidden, experts, top_k), weights, x)
    return out
