"""torch.nn.MultiheadAttention, which holds three implementations: with weights, without, and its fused fast path.

In torch's words a boolean mask says what is *hidden*. A row without keys gives zeros before `w_o` without weights, and
NaN with weights and on the fast path, where the softmax is over -inf alone.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._modules import Kernels, bare, run

NAN_ROW = {"empty_row": "nan_row"}


def parts(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, biases: list[Tensor | None]
) -> dict[str, Tensor]:
    """The call's weights under the module's names; absent biases are zeros, as the module starts with."""
    width = x.shape[-1]
    if {w.shape for w in (w_q, w_k, w_v, w_o)} != {(width, width)}:
        raise NotImplementedError(f"w_q={tuple(w_q.shape)} must be ({width}, {width}): heads share the model's width")
    b_q, b_k, b_v, b_o = (x.new_zeros(width) if b is None else b for b in biases)
    return {"in_proj_weight": torch.cat([w_q, w_k, w_v]), "in_proj_bias": torch.cat([b_q, b_k, b_v]),
            "out_proj.weight": w_o, "out_proj.bias": b_o}


def hidden(x: Tensor, length: int, num_heads: int, mask: Tensor | None, causal: bool) -> Tensor | None:
    """What is hidden from each query, (Tq,Tk) or one grid a head."""
    blocked = None if mask is None else ~mask
    if blocked is not None and blocked.dim() == 3:
        blocked = blocked.repeat_interleave(num_heads, dim=0)
    if causal:
        late = torch.ones(x.shape[1], length, dtype=torch.bool, device=x.device).triu(length - x.shape[1] + 1)
        blocked = late if blocked is None else blocked | late
    return blocked


def attend(
    x: Tensor, weights: dict[str, Tensor], num_heads: int, context: Tensor | None, key_mask: Tensor | None,
    blocked: Tensor | None, training: bool, need_weights: bool,
) -> Tensor:
    """Call the module; without dropout, training only keeps it off the fast path."""
    module = bare(nn.MultiheadAttention, x.shape[-1], num_heads, batch_first=True).train(training)
    source = x if context is None else context
    options: dict[str, Any] = {"key_padding_mask": None if key_mask is None else ~key_mask, "attn_mask": blocked}
    out: Tensor = run(module, weights, x, source, source, need_weights=need_weights, **options)[0]
    return out


@assay.implements("multi_head_attention", name="torch-multi-head", version=torch.__version__)
def multi_head(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, context: Tensor | None = None,
    key_mask: Tensor | None = None, mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None,
    b_k: Tensor | None = None, b_v: Tensor | None = None, b_o: Tensor | None = None,
) -> Tensor:
    """Without weights: torch's own attention function inside."""
    blocked = hidden(x, (x if context is None else context).shape[1], num_heads, mask, causal)
    weights = parts(x, w_q, w_k, w_v, w_o, [b_q, b_k, b_v, b_o])
    return attend(x, weights, num_heads, context, key_mask, blocked, training=True, need_weights=False)


@assay.implements("multi_head_attention", name="torch-multi-head-weights", conventions=NAN_ROW,
                  version=torch.__version__)
def multi_head_with_weights(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, context: Tensor | None = None,
    key_mask: Tensor | None = None, mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None,
    b_k: Tensor | None = None, b_v: Tensor | None = None, b_o: Tensor | None = None,
) -> Tensor:
    """With weights: two products and a softmax."""
    blocked = hidden(x, (x if context is None else context).shape[1], num_heads, mask, causal)
    weights = parts(x, w_q, w_k, w_v, w_o, [b_q, b_k, b_v, b_o])
    return attend(x, weights, num_heads, context, key_mask, blocked, training=True, need_weights=True)


@assay.implements("multi_head_attention", name="torch-multi-head-fast", conventions=NAN_ROW, grad=False,
                  version=torch.__version__)
def multi_head_fast(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, key_mask: Tensor | None = None,
    mask: Tensor | None = None, causal: bool = False, b_q: Tensor | None = None, b_k: Tensor | None = None,
    b_v: Tensor | None = None, b_o: Tensor | None = None,
) -> Tensor:
    """The fused path of evaluation without gradients, refused where it did not run (odd numbers of heads, for one)."""
    blocked = hidden(x, x.shape[1], num_heads, mask, causal)
    weights = parts(x, w_q, w_k, w_v, w_o, [b_q, b_k, b_v, b_o])
    with torch.no_grad(), Kernels() as seen:
        out = attend(x, weights, num_heads, None, key_mask, blocked, training=False, need_weights=False)
    if not seen.ran("_native_multi_head_attention"):
        raise NotImplementedError(f"num_heads={num_heads}: the module did not take its fast path")
    return out
