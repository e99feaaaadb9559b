"""Attention with normalised queries and keys by torch's own functions."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay
from assay.impls._masks import visible


@assay.implements("qk_norm_attention", name="torch-qk-norm", version=torch.__version__)
def qk_norm_attention(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, joint: bool = False, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Tensor:
    """`rms_norm` on both sides, then `scaled_dot_product_attention` under a boolean mask."""
    query, key = normalised(q, w_q, eps, joint), normalised(k, w_k, eps, joint)
    return F.scaled_dot_product_attention(query, key, v, attn_mask=visible(q, k, None, causal, window), scale=scale,
                                          enable_gqa=q.shape[1] != k.shape[1])


def normalised(x: Tensor, weight: Tensor, eps: float, joint: bool) -> Tensor:
    """(B,heads,T,D), head by head or all heads of a token together."""
    if not joint:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    tokens = x.transpose(1, 2)
    return F.rms_norm(tokens.flatten(2), (weight.shape[0],), weight, eps).reshape(tokens.shape).transpose(1, 2)
