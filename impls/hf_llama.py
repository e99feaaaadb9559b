"""Hugging Face Llama: two attentions, norm, feed-forward and rotary embedding, called as the model calls them."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls._masks import lowest, visible
from assay.impls._modules import bare, installed, late, run

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # here and not in a call: an implementation leaves the environment alone
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


def library() -> ModuleType:
    """The model's own module."""
    return late("transformers.models.llama.modeling_llama")


@lru_cache(maxsize=256)
def settings(head: int, rope: str = '{"rope_theta": 10000.0}', **others: Any) -> Any:
    """A configuration of one head of this width; `rope`: its rotary parameters as JSON, so that they can be a key."""
    made = late("transformers.models.llama.configuration_llama").LlamaConfig(
        head_dim=head, num_attention_heads=1, num_key_value_heads=1, **{"hidden_size": head, **others},
        rope_parameters={"rope_type": "default", **json.loads(rope)},
    )
    return made


def layer(q: Tensor, k: Tensor) -> Any:
    """What the attention functions read off the attention module that calls them."""
    return SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False, is_causal=True)


# The model adds the type's lowest number, not -inf, so a row without keys has equal scores: the mean of all values.
# In float16 that number is half a step (16) away from -inf, so that scores below -16 fall off: not claimed.
@assay.implements("attention", name="hf-llama-eager", lacks={"empty_rows"}, version=VERSION, url=URL)
def eager(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False, window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """`eager_attention_forward` under the mask that `eager_mask` would build."""
    added = lowest(visible(q, k, mask, causal, window), q)
    scaling = q.shape[-1] ** -0.5 if scale is None else scale
    out: Tensor = library().eager_attention_forward(layer(q, k), q, k, v, added, scaling=scaling)[0]
    return out.transpose(1, 2)


# A row without keys gives zeros, as torch's own function does; with B = 0 or Tq = 0 a reshape of nothing raises.
@assay.implements("attention", name="hf-llama-sdpa", lacks={"empty"}, version=VERSION, url=URL)
def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False, window: int | None = None,
    scale: float | None = None,
) -> Tensor:
    """`sdpa_attention_forward`: a square causal call by flag, all else under the boolean mask of `sdpa_mask`."""
    square = causal and mask is None and window is None and q.shape[-2] == k.shape[-2]
    seen = None if square else visible(q, k, mask, causal, window)
    attend = late("transformers.integrations.sdpa_attention").sdpa_attention_forward
    out: Tensor = attend(layer(q, k), q, k, v, seen, scaling=scale, is_causal=square)[0]
    return out.transpose(1, 2)


@assay.implements("rms_norm", name="hf-llama-rms-norm", version=VERSION, url=URL)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`LlamaRMSNorm`: float32 inside, rounded to the input's type before the weight."""
    out: Tensor = run(bare(library().LlamaRMSNorm, x.shape[-1], eps=eps), {"weight": weight}, x)
    return out


@assay.implements("gated_feed_forward", name="hf-llama-mlp", version=VERSION, url=URL)
def gated_feed_forward(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu") -> Tensor:
    """`LlamaMLP`, the activation by the library's own table."""
    name = {"gelu_tanh": "gelu_pytorch_tanh"}.get(activation, activation)
    shape = settings(2, hidden_size=x.shape[-1], intermediate_size=w_up.shape[0], hidden_act=name)
    module = bare(library().LlamaMLP, shape)
    weights = {"gate_proj.weight": w_gate, "up_proj.weight": w_up, "down_proj.weight": w_down}
    out: Tensor = run(module, weights, x)
    return out


def rope_parameters(base: float, scaling: Mapping[str, Any] | None) -> str:
    """The call's base and scaling under the library's names."""
    if scaling is not None and scaling["type"] == "ntk":
        raise NotImplementedError("scaling=ntk: the library's `dynamic` grows its factor with the length instead")
    names = {"type": "rope_type", "original_length": "original_max_position_embeddings"}
    return json.dumps({"rope_theta": base, **{names.get(name, name): value for name, value in (scaling or {}).items()}})


def tables(x: Tensor, positions: Tensor, width: int, rope: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines as the model makes them: float32 angles, rounded to the input's type at the end."""
    embedding = library().LlamaRotaryEmbedding(settings(width, rope)).to(x.device)
    cos, sin = embedding(x, torch.atleast_2d(positions))
    return cos, sin


def turns(x: Tensor, positions: Tensor | None, width: int, base: float) -> tuple[Tensor, Tensor]:
    """The same for tokens (…, T, C) and an unscaled base; where there are no positions, what leaves all as it is."""
    if positions is None:
        shape = 1, x.shape[-2], width
        return x.new_ones(shape), x.new_zeros(shape)
    return tables(x, positions, width, rope_parameters(base, None))


@assay.implements("rotary", name="hf-llama-rotary", conventions={"pairing": "half"},
                  arithmetic={"angles": "float32", "tables": "input"}, version=VERSION, url=URL)
def rotary(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, scaling: Mapping[str, Any] | None = None
) -> Tensor:
    """`LlamaRotaryEmbedding` and `apply_rotary_pos_emb`: channel i turns with channel i + D/2."""
    cos, sin = tables(x, positions, x.shape[-1], rope_parameters(base, scaling))
    out: Tensor = library().apply_rotary_pos_emb(x, x, cos, sin)[0]
    return out
