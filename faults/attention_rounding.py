"""Planted faults of attention in its arithmetic: overflow, cancellation, accumulators, truncation."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.faults.attention_parts import (
    INFINITY,
    Options,
    attend,
    biased,
    capped,
    heads,
    named_scale,
    planted,
    scores,
    visible,
    weights,
)


def _shifted(q: Tensor, k: Tensor, v: Tensor, o: Options, shift: float | Tensor) -> Tensor:
    """Attention whose softmax subtracts `shift` in place of the row maximum."""
    e = torch.exp(scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY) - shift)
    total = e.sum(-1, keepdim=True)
    return (e / torch.where(total == 0, torch.ones_like(total), total)) @ heads(v, q)


@planted("no maximum subtracted: large scores overflow")
def no_shift(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _shifted(q, k, v, o, 0.0)


@planted("a fixed 10 subtracted in place of the row's maximum", "BUG-005")
def fixed_shift(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _shifted(q, k, v, o, 10.0)


@planted("the row's maximum starts at 0 in place of −∞: rows of very negative scores underflow")
def maximum_starts_at_zero(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if k.shape[-2] == 0:
        return attend(q, k, v, o)
    s = scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY)
    return _shifted(q, k, v, o, s.detach().amax(-1, keepdim=True).clamp(min=0))


@planted("the maximum is that of the whole head: other rows underflow")
def maximum_of_the_head(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if k.shape[-2] == 0 or q.shape[-2] == 0:
        return attend(q, k, v, o)
    s = scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY)
    top = s.detach().amax((-2, -1), keepdim=True)
    return _shifted(q, k, v, o, top.masked_fill(torch.isinf(top), 0))


@planted("1e-6 added to the normaliser")
def epsilon_in_normaliser(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    s = scores(q, k, o).detach().masked_fill(~visible(q, k, o), -INFINITY)
    total = torch.exp(torch.logsumexp(s, -1, keepdim=True) - s.amax(-1, keepdim=True)) if k.shape[-2] else 1.0
    return out if k.shape[-2] == 0 else torch.nan_to_num(out * (total / (total + 1e-3)))


@planted("raw products rounded to the input's type before the scale: fp16 overflows", "BUG-007")
def products_overflow_before_scale(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = (q @ heads(k, q).mT).to(torch.float16).to(q.dtype) * named_scale(q, o)
    return weights(biased(capped(s, o), o), visible(q, k, o)) @ heads(v, q)


@planted("scores rounded to bfloat16")
def scores_in_bfloat16(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = scores(q, k, o)
    rounded = s + (s.to(torch.bfloat16).to(s.dtype) - s).detach()
    return weights(rounded, visible(q, k, o)) @ heads(v, q)


@planted("sums over keys accumulated in bfloat16, key by key")
def bfloat16_accumulator(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    p, full = weights(scores(q, k, o), visible(q, k, o)), heads(v, q)
    exact = p @ full
    total = torch.zeros_like(exact, dtype=torch.bfloat16)
    for j in range(k.shape[-2]):
        total = (total.float() + (p[..., j, None] * full[..., None, j, :]).detach().float()).to(torch.bfloat16)
    return exact + (total.to(exact.dtype) - exact.detach())


@planted("weights rounded toward zero to 8 bits before the sum")
def weights_truncated(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    p = weights(scores(q, k, o), visible(q, k, o))
    cut = torch.floor(p.detach() * 256) / 256
    return (p + (cut - p.detach())) @ heads(v, q)


def _tf32(x: Tensor) -> Tensor:
    """x cut to 10 bits after the leading one."""
    if x.dtype != torch.float32:
        return x
    cut = (x.detach().contiguous().view(torch.int32) & -8192).view(torch.float32)
    return x + (cut - x.detach())


@planted("float32 inputs cut to TF32 without saying so")
def inputs_truncated_to_tf32(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(_tf32(q), _tf32(k), _tf32(v), o)


@planted("float32 computed in float16")
def computed_in_float16(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    bias = None if o.bias is None else o.bias.half()
    return attend(q.half(), k.half(), v.half(), replace(o, bias=bias)).to(q.dtype)


@planted("the exponential is a table of 64 steps")
def coarse_exponential(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = scores(q, k, o)
    return weights(s + (torch.round(s.detach() * 64) / 64 - s.detach()), visible(q, k, o)) @ heads(v, q)


@planted("weights below 1e-3 are dropped without renormalising")
def small_weights_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    p = weights(scores(q, k, o), visible(q, k, o))
    return torch.where(p < 1e-3, torch.zeros_like(p), p) @ heads(v, q)


@planted("NaN in the scores is turned to 0: overflow is hidden as garbage")
def overflow_turned_to_zero(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return torch.nan_to_num(_shifted(q, k, v, o, 0.0), nan=0.0)
