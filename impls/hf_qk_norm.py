"""Hugging Face's attentions with normalised queries and keys: Qwen3, head by head, and OLMo 2, all heads together."""
from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls import hf_llama
from assay.impls._masks import lowest, visible
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Queries and keys have one length, heads one width; `.view(..., -1, head_dim)` raises on nothing; hidden keys get the type's lowest
# number, which gives the mean where there are no others.
OPTIONS: dict[str, Any] = {
    "lacks": {"cross_lengths", "value_width", "empty", "empty_rows"}, "arithmetic": {"tables": "input"},
    "version": installed("transformers"), "url": "https://github.com/huggingface/transformers"}


def attended(name: str, title: str, q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, eps: float,
             positions: Tensor | None, base: float, causal: bool, window: int | None) -> Tensor:
    """The module of one model type. It projects by itself: its matrices take queries, keys and values out of tokens that hold
    them side by side, and put the heads' outputs side by side; products with 1 and 0 are exact."""
    (batch, heads, length, width), groups = q.shape, k.shape[1]
    tokens = torch.cat([one.transpose(1, 2).reshape(batch, length, -1) for one in (q, k, v)], -1)
    tokens = torch.nn.functional.pad(tokens, (0, -tokens.shape[-1] % heads))  # the configuration asks for a multiple
    ends = (heads * width, (heads + groups) * width, (heads + 2 * groups) * width)
    eye = torch.eye(tokens.shape[-1], dtype=q.dtype, device=q.device)
    configuration = getattr(late(f"transformers.models.{name}.configuration_{name}"), f"{title}Config")(
        hidden_size=tokens.shape[-1], num_attention_heads=heads, num_key_value_heads=groups, head_dim=width, rms_norm_eps=eps)
    configuration._attn_implementation = "eager"
    module = bare(getattr(late(f"transformers.models.{name}.modeling_{name}"), f"{title}Attention"), configuration, 0).eval()
    parameters = {"q_proj.weight": eye[: ends[0]], "k_proj.weight": eye[ends[0]: ends[1]], "v_proj.weight": eye[ends[1]: ends[2]],
                  "o_proj.weight": eye[:, : ends[0]], "q_norm.weight": w_q, "k_norm.weight": w_k}
    mask = lowest(visible(q, k, None, causal, window), q)
    turn = hf_llama.turns(q, positions, width, base)
    out: Tensor = run(module, parameters, tokens, position_embeddings=turn, attention_mask=mask)[0]
    return out[..., : ends[0]].reshape(batch, length, heads, width).transpose(1, 2)


@assay.implements("qk_norm_attention", name="hf-qwen3-attention", conventions={"pairing": "half"}, **OPTIONS)
def qwen3(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, positions: Tensor | None = None,
    base: float = 10000.0, causal: bool = False, window: int | None = None,
) -> Tensor:
    """`Qwen3Attention`: float32 inside the norms, rounded before the weights."""
    return attended("qwen3", "Qwen3", q, k, v, w_q, w_k, eps, positions, base, causal, window)


@assay.implements("qk_norm_attention", name="hf-olmo2-attention", conventions={"pairing": "half"}, limits={"joint": {True}},
                  **OPTIONS)
def olmo2(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, joint: bool = False, positions: Tensor | None = None,
    base: float = 10000.0, causal: bool = False, window: int | None = None,
) -> Tensor:
    """`Olmo2Attention`: one norm over all heads, float32 inside, rounded after the weights."""
    if not joint and q.shape[1] * k.shape[1] > 1:
        raise NotImplementedError("joint=False: the model normalises all heads of a token together")
    return attended("olmo2", "Olmo2", q, k, v, w_q, w_k, eps, positions, base, causal, window)
