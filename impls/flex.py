"""torch's flex_attention, uncompiled: masks, bias and soft cap all go through its score modification."""
from __future__ import annotations

import warnings

import torch
from torch import Tensor

import assay
from assay.impls._masks import four_axes, visible
from assay.impls._modules import late

# No backward on CPU: "FlexAttention does not support backward on CPU". A row without keys gives zeros, by score
# modification; with Tk = 0 the maximum over no keys raises, and with B = 0 or Tq = 0 the score modification is an
# internal error (vmap over nothing), so empty shapes are not claimed.


@assay.implements("attention", name="flex", grad=False, lacks={"empty"}, version=torch.__version__)
def flex(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None, softcap: float | None = None,
) -> Tensor:
    """The eager path, which materialises the scores."""
    if k.shape[-2] == 0:
        raise NotImplementedError("k: flex_attention takes no maximum over 0 keys")
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    grid = visible(q, k, mask, causal, window)
    seen = None if grid is None else grid.expand(shape)
    added = None if bias is None else four_axes(bias).expand(shape)

    def score(s: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if added is not None:
            s = s + added[batch, head, i, j]
        return s if seen is None else torch.where(seen[batch, head, i, j], s, float("-inf"))

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out: Tensor = late("torch.nn.attention.flex_attention").flex_attention(
            q, k, v, score_mod=score, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    return out
