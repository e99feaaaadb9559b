"""Planted faults of attention: scale, softcap, bias, heads and values. The rest is in the `attention_*` files beside."""
from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from assay.faults import attention_gradients, attention_masks, attention_memory, attention_rounding
from assay.faults.attention_parts import (
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

PARTS = (attention_gradients, attention_masks, attention_memory, attention_rounding)

NOT_EXPRESSIBLE = {
    "BUG-014": "a second configuration flag (by layer index) that the call does not have; dropping `scale` is planted",
    "BUG-043": "a mask object moved between devices; the call takes plain tensors",
    "BUG-080": "the base of a returned logsumexp: see blockwise_attention",
    "BUG-081": "merging of partial results: see blockwise_attention",
    "BUG-082": "a returned logsumexp: see blockwise_attention",
    "BUG-217": "a compiler's pattern rewrite; its effect, the default scale in place of the given one, is planted",
    "BUG-221": "needs more than 2^31 mask elements; a wrap at a small offset is planted instead",
}


def _rescaled(q: Tensor, k: Tensor, v: Tensor, o: Options, scale: float) -> Tensor:
    return attend(q, k, v, replace(o, scale=scale if o.scale is None else o.scale))


@planted("scores divided by D in place of the root of D (default scale applied twice)", "BUG-009")
def scale_one_over_d(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _rescaled(q, k, v, o, 1 / q.shape[-1])


@planted("scores divided by the root of D+1")
def scale_root_of_d_plus_one(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _rescaled(q, k, v, o, 1 / math.sqrt(q.shape[-1] + 1))


@planted("scores divided by the root of the value width")
def scale_root_of_value_width(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _rescaled(q, k, v, o, 1 / math.sqrt(v.shape[-1]))


@planted("scores divided by the root of the model width H·D", "BUG-015")
def scale_root_of_model_width(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _rescaled(q, k, v, o, 1 / math.sqrt(q.shape[1] * q.shape[-1]))


@planted("no scale by default")
def no_scale(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _rescaled(q, k, v, o, 1.0)


@planted("a given scale is ignored, the default one used", "BUG-013")
def scale_argument_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, scale=None))


@planted("a given scale multiplies the default one in place of replacing it", "BUG-009")
def scale_on_top_of_default(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, scale=named_scale(q, replace(o, scale=None)) * (o.scale or 1.0)))


@planted("a given scale divides in place of multiplying", "BUG-217")
def scale_inverted(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, scale=1 / o.scale if o.scale else o.scale))


@planted("the scale multiplies the weights after the softmax", "BUG-011")
def scale_after_softmax(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, scale=1.0)) * named_scale(q, o)


@planted("queries and keys normalised to length 1: cosines in place of dot products")
def cosine_scores(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1), v, o)


@planted("softcap ignored", "BUG-084")
def softcap_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, softcap=None))


@planted("tanh of the scores without the factor in front")
def softcap_without_factor(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = (q @ heads(k, q).mT) * named_scale(q, o)
    s = s if o.softcap is None else torch.tanh(s / o.softcap)
    return weights(biased(s, o), visible(q, k, o)) @ heads(v, q)


@planted("scores clamped at the softcap in place of the tanh")
def softcap_by_clamp(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = (q @ heads(k, q).mT) * named_scale(q, o)
    s = s if o.softcap is None else s.clamp(-o.softcap, o.softcap)
    return weights(biased(s, o), visible(q, k, o)) @ heads(v, q)


@planted("softcap after the mask: masked keys come back at −softcap")
def softcap_after_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, replace(o, softcap=None)), visible(q, k, o)
    if o.softcap is None:
        return weights(s, keep) @ heads(v, q)
    s = capped(s.masked_fill(~keep, float("-inf")), o)
    return weights(s, torch.ones_like(keep)) @ heads(v, q)


@planted("softcap on the scores before the scale")
def softcap_before_scale(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = capped(q @ heads(k, q).mT, o) * named_scale(q, o)
    return weights(biased(s, o), visible(q, k, o)) @ heads(v, q)


@planted("softcap over scores and bias together")
def softcap_after_bias(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s = capped(biased((q @ heads(k, q).mT) * named_scale(q, o), o), o)
    return weights(s, visible(q, k, o)) @ heads(v, q)


@planted("bias ignored")
def bias_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, bias=None))


@planted("bias added before the scale")
def bias_before_scale(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.bias is None else replace(o, bias=o.bias * named_scale(q, o)))


@planted("bias read as a boolean: every non-zero entry masks", "BUG-023")
def bias_read_as_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.bias is None:
        return attend(q, k, v, o)
    keep = visible(q, k, o) & (o.bias == 0)
    return weights(scores(q, k, replace(o, bias=None)), keep) @ heads(v, q)


@planted("bias of the first head used for every head")
def bias_of_first_head(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.bias is None or o.bias.dim() < 3:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, bias=o.bias[..., :1, :, :]))


@planted("bias of the first query row used for every row: broadcast over the wrong axis")
def bias_of_first_row(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.bias is None or o.bias.dim() < 2:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, bias=o.bias[..., :1, :]))


@planted("bias subtracted")
def bias_subtracted(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.bias is None:
        return attend(q, k, v, o)
    return weights(scores(q, k, replace(o, bias=-o.bias)), visible(q, k, o)) @ heads(v, q)


def _tiled(x: Tensor, q: Tensor) -> Tensor:
    """Head h reads h mod G in place of h·G/H."""
    return x[:, torch.arange(q.shape[1], device=q.device) % x.shape[1]]


@planted("query head h reads key/value head h mod G (tiled in place of repeated in blocks)")
def grouped_heads_tiled(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, _tiled(k, q), _tiled(v, q), o)


@planted("keys are shared in blocks, values tiled")
def grouped_values_tiled(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, heads(k, q), _tiled(v, q), o)


@planted("grouped heads all read the first key/value head: right for G=1 and G=H only")
def grouped_heads_read_first(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if k.shape[1] == q.shape[1]:
        return attend(q, k, v, o)
    return attend(q, k[:, :1], v[:, :1], o)


@planted("right for H = G only: otherwise the group's keys are averaged over heads")
def right_without_groups_only(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k if k.shape[1] == q.shape[1] else k.mean(1, keepdim=True).expand(k.shape), v, o)


@planted("values wider than D cut to D, the rest zeros")
def value_width_cut_to_d(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    extra = max(0, v.shape[-1] - q.shape[-1])
    return torch.nn.functional.pad(attend(q, k, v[..., : v.shape[-1] - extra], o), (0, extra))


@planted("mean over the keys in place of the sum")
def mean_for_sum(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o) / max(1, k.shape[-2])


@planted("negated output")
def negated(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return -attend(q, k, v, o)


@planted("zeros")
def zeros(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o) * 0


@planted("a constant")
def constant(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o) * 0 + 0.5


@planted("the plain mean of the visible values: scores never used")
def uniform_weights(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return weights(scores(q, k, o) * 0, visible(q, k, o)) @ heads(v, q)


@planted("keys that form a square are left as they are, as NumPy's .transpose(-2, -1) leaves a 2-D array")
def square_keys_left_untransposed(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k.mT if k.shape[-2] == k.shape[-1] else k, v, o)


@planted("odd heads read the next head's query")
def odd_heads_wrong(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    odd = (torch.arange(q.shape[1], device=q.device) % 2 == 1)[:, None, None]
    return torch.where(odd, attend(q.roll(1, 1), k, v, o), out)


@planted("Tq ≠ Tk wrong: keys are cut or reused to the number of queries")
def right_for_square_only(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    tq, tk = q.shape[-2], k.shape[-2]
    keep = visible(q, k, o) & (torch.arange(tk, device=q.device) < max(tq, 1))
    return weights(scores(q, k, o), keep) @ heads(v, q)


@planted("softmax normalises over the heads in place of the keys")
def softmax_over_heads(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    return weights(s.transpose(1, 3), keep.expand(s.shape).transpose(1, 3)).transpose(1, 3) @ heads(v, q)


@planted("softmax normalises over the queries in place of the keys", "BUG-001")
def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    return weights(s.mT, keep.expand(s.shape).mT).mT @ heads(v, q)


@planted("an extra key of score 0 takes part of the mass")
def extra_zero_key(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    s, keep = torch.nn.functional.pad(s, (1, 0)), torch.nn.functional.pad(keep.expand(s.shape), (1, 0), value=True)
    return weights(s, keep)[..., 1:] @ heads(v, q)


@planted("the last key of an odd length takes part in the sum but its value is dropped")
def last_value_of_odd_length_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    keep = visible(q, k, o)
    if k.shape[-2] % 2 == 0 or k.shape[-2] == 1:
        return attend(q, k, v, o)
    return weights(scores(q, k, o), keep)[..., :-1] @ heads(v, q)[..., :-1, :]
