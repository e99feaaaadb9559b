"""The routers of Hugging Face's Switch and NLLB-MoE, which turn tokens away; their experts are no gated ones, so these are ours."""
from __future__ import annotations

import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._modules import bare, installed, late, run
from assay.impls.grouped_moe import gated

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


def routed(module: nn.Module, w_router: Tensor, tokens: Tensor) -> Any:
    """One call of a router, which casts its matrix to float32 on the way and so makes torch warn of a gradient it does not keep."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*not a leaf Tensor", UserWarning)
        return run(module, {"classifier.weight": w_router.float()}, tokens)


def weighed(tokens: Tensor, combine: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Σ_e combine_e · E_e over the tokens that e keeps."""
    out = torch.zeros_like(tokens)
    for e in range(combine.shape[-1]):
        rows = combine[:, e].detach().nonzero().flatten()
        out = out.index_add(0, rows, combine[rows, e, None] * gated(tokens[rows], w_gate[e], w_up[e], w_down[e]))
    return out


# The router is float32 whatever the input, its probabilities come in the input's type.
@assay.implements("capacity_moe", name="hf-switch-router", conventions={"router": "topk_of_softmax"}, limits={"top_k": {1}},
                  version=VERSION, url=URL)
def switch(x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int) -> Tensor:
    """`SwitchTransformersTop1Router` on one row of all tokens, which it counts row by row."""
    tokens = x.flatten(0, 1)
    settings = late("transformers.models.switch_transformers.configuration_switch_transformers").SwitchTransformersConfig(
        d_model=x.shape[-1], num_experts=w_router.shape[0], expert_capacity=capacity, router_jitter_noise=0.0)
    library = late("transformers.models.switch_transformers.modeling_switch_transformers")
    module = bare(library.SwitchTransformersTop1Router, settings).eval()
    index, probability, _ = routed(module, w_router, tokens[None])
    return weighed(tokens, (index * probability)[0], w_gate, w_up, w_down).reshape(x.shape)


@assay.implements("capacity_moe", name="hf-nllb-router", limits={"top_k": {2}, "priority": {"choice"}}, version=VERSION, url=URL)
def nllb(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
    priority: str = "token",
) -> Tensor:
    """`NllbMoeTop2Router`, weights normalised before tokens are turned away, as the call has them."""
    if priority != "choice":
        raise NotImplementedError(f"priority={priority!r} must be 'choice': first choices come first here")
    tokens = x.flatten(0, 1)
    settings = late("transformers.models.nllb_moe.configuration_nllb_moe").NllbMoeConfig(
        d_model=x.shape[-1], num_experts=w_router.shape[0], expert_capacity=capacity, second_expert_policy="all",
        normalize_router_prob_before_dropping=True, batch_prioritized_routing=False, moe_eval_capacity_token_fraction=-1.0)
    module = bare(late("transformers.models.nllb_moe.modeling_nllb_moe").NllbMoeTop2Router, settings).eval()
    _, combine, _ = routed(module, w_router, tokens)
    return weighed(tokens, combine, w_gate, w_up, w_down).reshape(x.shape)
