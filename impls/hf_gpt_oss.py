"""Hugging Face gpt-oss: eager attention with its learned sinks."""
from __future__ import annotations

import os
from types import SimpleNamespace

from torch import Tensor

import assay
from assay.impls._masks import lowest, visible
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


@assay.implements("sink_attention", name="hf-gpt-oss-eager", version=VERSION, url=URL)
def sink_attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: int | None = None, scale: float | None = None
) -> Tensor:
    """`eager_attention_forward`; the mask is added as the lowest number of the type, as the model's masks are."""
    mask = lowest(visible(q, k, None, causal, window), q)
    module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], sinks=sinks, training=False)
    scaling = q.shape[-1] ** -0.5 if scale is None else scale
    out: Tensor = late("transformers.models.gpt_oss.modeling_gpt_oss").eager_attention_forward(module, q, k, v, mask, scaling)[0]
    return out.transpose(1, 2)
