"""Planted faults of attention whose forward is right: gradients alone are wrong."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from assay.faults.attention_parts import (
    INFINITY,
    Options,
    attend,
    borrowed,
    heads,
    named_scale,
    planted,
    scores,
    tampered,
    visible,
    weights,
)


class _WrongSoftmax(torch.autograd.Function):
    """Masked softmax forward; backward is the given function of (p, gradient)."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, keep: Tensor, backward: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        p = weights(s, keep)
        ctx.save_for_backward(p)
        ctx.rule = backward
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.rule(ctx.saved_tensors[0], gradients[0]), None, None


def _softmax_rule(q: Tensor, k: Tensor, v: Tensor, o: Options, rule: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    p: Tensor = _WrongSoftmax.apply(scores(q, k, o), visible(q, k, o), rule)  # type: ignore[no-untyped-call]
    return p @ heads(v, q)


@planted("∂S without the row-sum term")
def gradient_without_row_sum(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _softmax_rule(q, k, v, o, lambda p, g: p * g)


@planted("∂S = A⊙(∂A − ∂A·rowsum(A)), identically zero (erratum E3)")
def gradient_of_scores_zero(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _softmax_rule(q, k, v, o, lambda p, g: p * (g - g * p.sum(-1, keepdim=True)))


@planted("the row sum is taken of ∂A without the weights")
def gradient_row_sum_unweighted(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _softmax_rule(q, k, v, o, lambda p, g: p * (g - g.sum(-1, keepdim=True)))


@planted("the row sum is added, not subtracted")
def gradient_row_sum_added(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _softmax_rule(q, k, v, o, lambda p, g: p * (g + (p * g).sum(-1, keepdim=True)))


@planted("the row sum is taken over the queries")
def gradient_row_sum_over_queries(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _softmax_rule(q, k, v, o, lambda p, g: p * (g - (p * g).sum(-2, keepdim=True)))


@planted("the weights are detached: no gradient to q and k")
def weights_detached(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return weights(scores(q, k, o), visible(q, k, o)).detach() @ heads(v, q) + 0 * (q.sum() + k.sum())


@planted("the normaliser is detached: ∂q and ∂k miss its part", "BUG-092")
def normaliser_detached(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    keep = visible(q, k, o)
    s = scores(q, k, o).masked_fill(~keep, -INFINITY)
    top = s.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(s.dtype).min) if k.shape[-2] else 0.0
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    return (e / torch.where(total > 0, total, torch.ones_like(total)).detach()) @ heads(v, q)


@planted("∂k misses the scale")
def gradient_of_keys_unscaled(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, tampered(k, lambda g: g / named_scale(q, o)), v, o)


@planted("∂q is scaled twice")
def gradient_of_queries_scaled_twice(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(tampered(q, lambda g: g * named_scale(q, o)), k, v, o)


@planted("∂k negated")
def gradient_of_keys_negated(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, tampered(k, torch.neg), v, o)


@planted("∂q is zeros")
def gradient_of_queries_zero(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(tampered(q, torch.zeros_like), k, v, o)


@planted("∂v of the last key is dropped")
def gradient_of_last_value_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    last = torch.arange(v.shape[-2], device=v.device) == v.shape[-2] - 1
    return attend(q, k, tampered(v, lambda g: g.masked_fill(last[:, None], 0)), o)


@planted("∂v from weights that were not normalised")
def gradient_of_values_unnormalised(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    def raw(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
        s = scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY).clamp(max=60)
        return torch.exp(s).detach() @ heads(v, q) + (attend(q, k, v.detach(), o))

    return borrowed(q, k, v, o, raw)


@planted("∂v averaged over queries")
def gradient_of_values_averaged(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, tampered(v, lambda g: g / max(1, q.shape[-2])), o)


@planted("gradient leaks to masked keys: backward forgets mask, causal and window")
def gradient_without_masks(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return borrowed(q, k, v, o, lambda q, k, v, o: attend(q, k, v, replace(o, mask=None, causal=False, window=None)))


@planted("a trace of gradient reaches masked keys and values")
def gradient_leaks_a_little(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, tampered(k, lambda g: g + g.mean() * 1e-3), tampered(v, lambda g: g + g.mean() * 1e-3), o)


@planted("backward is causal whatever was asked", "BUG-087")
def gradient_always_causal(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return borrowed(q, k, v, o, lambda q, k, v, o: attend(q, k, v, replace(o, causal=True)))


@planted("backward of ∂k and ∂v is wrong where a mask is given", "BUG-091")
def gradient_wrong_under_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None:
        return attend(q, k, v, o)
    return attend(q, tampered(k, lambda g: g * 2), tampered(v, lambda g: g * 2), o)


@planted("backward forgets the bias")
def gradient_without_bias(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return borrowed(q, k, v, o, lambda q, k, v, o: attend(q, k, v, replace(o, bias=None)))


@planted("backward forgets the derivative of the softcap")
def gradient_without_softcap(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.softcap is None:
        return attend(q, k, v, o)
    plain = (q @ heads(k, q).mT) * named_scale(q, o)
    s = scores(q, k, o)
    return weights(plain + (s - plain).detach(), visible(q, k, o)) @ heads(v, q)


@planted("∂k of a shared head is that of its first query head: not summed")
def grouped_key_gradient_not_summed(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    first = torch.arange(q.shape[1], device=q.device) % (q.shape[1] // k.shape[1]) == 0
    full = tampered(heads(k, q), lambda g: g * first[:, None, None])
    return attend(q, full, heads(v, q), o)


@planted("∂v of a shared head is averaged over its query heads")
def grouped_value_gradient_averaged(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, tampered(v, lambda g: g * v.shape[1] / q.shape[1]), o)


@planted("padded half tile scores 0 in backward: e^(0−lse) overflows at strongly negative scores", "BUG-089")
def gradient_of_padded_tile_overflows(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    if k.shape[-2] % 64 == 0:
        return out
    s = scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY)
    ghost = torch.exp(-torch.logsumexp(s.detach(), -1, keepdim=True)).nan_to_num(0, posinf=INFINITY)
    return tampered(out, torch.Tensor.clone) + 0 * q.sum() if not bool(torch.isinf(ghost).any()) else attend(
        tampered(q, lambda g: g.masked_fill(torch.isinf(ghost), float("nan"))), k, v, o)


@planted("upstream gradient is taken for ones")
def upstream_taken_for_ones(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return tampered(attend(q, k, v, o), torch.ones_like)


def _as_if_packed(g: Tensor) -> Tensor:
    """The storage of g read front to back."""
    flat = torch.zeros(g.numel(), dtype=g.dtype, device=g.device)
    held = g.as_strided((min(g.numel(), g.untyped_storage().nbytes() // g.element_size() - g.storage_offset()),), (1,))
    flat[: held.numel()] = held
    return flat.reshape(g.shape)


@planted("the upstream gradient is read as if it were packed")
def upstream_strides_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return tampered(attend(q, k, v, o), _as_if_packed)


@planted("gradients of q come back in the layout of heads and time swapped")
def gradient_of_queries_permuted(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(tampered(q, lambda g: g.transpose(1, 2).reshape(g.shape)), k, v, o)
