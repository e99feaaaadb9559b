"""Hugging Face's losses of a router: those of Mixtral and of the Switch Transformer."""
from __future__ import annotations

import os

import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"
SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers"


# The function takes logits alone and counts the most probable experts, so that no others can be asked for.
@assay.implements("load_balancing_loss", name="hf-mixtral-load-balancing", limits={"indices": {"best"}}, version=VERSION, url=URL)
def mixtral(logits: Tensor, indices: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """`load_balancing_loss_func`, which chooses the experts itself, by the probabilities rounded to the logits' type."""
    top_k = indices.shape[-1]
    own = torch.topk(torch.softmax(logits.detach(), -1), top_k, dim=-1).indices
    if not torch.equal(own.sort(-1).values, indices.sort(-1).values):
        raise NotImplementedError("indices: the function takes the most probable experts, and no others")
    function = late("transformers.models.mixtral.modeling_mixtral").load_balancing_loss_func
    out: Tensor = function((logits,), logits.shape[-1], top_k, None if mask is None else mask[None])
    return out


@assay.implements("load_balancing_loss", name="hf-switch-load-balancing", version=VERSION, url=URL)
def switch(logits: Tensor, indices: Tensor) -> Tensor:
    """`load_balancing_loss_func` on the softmax of the logits, all tokens one group."""
    probabilities = torch.softmax(logits, -1)
    out: Tensor = late(SWITCH).load_balancing_loss_func(probabilities[None], indices[None])
    return out


@assay.implements("router_z_loss", name="hf-switch-z-loss", version=VERSION, url=URL)
def z_loss(logits: Tensor) -> Tensor:
    """`router_z_loss_func`, all tokens one group."""
    out: Tensor = late(SWITCH).router_z_loss_func(logits[None])
    return out
