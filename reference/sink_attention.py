"""Attention with sinks: one learned logit a head that takes part in the softmax's sum and has no value."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen, precision, row_maximum
from assay.numbers.forms import Form
from assay.reference import attention as _attention

Window = int | tuple[int, int] | None


def sink_attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: Window = None, scale: float | None = None,
    causal_alignment: str = "bottom_right",
) -> Tensor:
    """Attention in which every head may leave part of its weight to a sink.

    Formula: out_h = Σ_j exp(s_hj) · v_j / (exp(sink_h) + Σ_j exp(s_hj)) over the visible keys, s = scale · q · kᵀ, scale = 1/√D
    unless given. The sink is neither scaled nor masked: a query that sees no key gives zeros.

    q: (B, H, Tq, D)
    k: (B, G, Tk, D), G divides H; head h reads group floor(h G / H)
    v: (B, G, Tk, Dv)
    sinks: (H,), one logit for each query head
    causal, window: as in `attention`
    returns: (B, H, Tq, Dv)

    Raises: ValueError where G does not divide H, or sinks is not (H,).
    Source: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", section 2.3, arXiv 2508.10925; Xiao et al., "Efficient Streaming
    Language Models with Attention Sinks", section 3.3, arXiv 2309.17453.

    >>> one = torch.ones(1, 1, 1, 2)
    >>> sink_attention(0 * one, one, 3 * one, torch.zeros(1)).flatten().tolist()
    [1.5, 1.5]
    """
    scores, sink = _scores(q, k, sinks, causal, window, scale, causal_alignment)
    joined = torch.cat([scores, sink], -1)
    exponentials = (joined - row_maximum(joined, -1)).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return _merged(weights[..., : k.shape[-2]] @ v.unsqueeze(2), q, v)


def _scores(
    q: Tensor, k: Tensor, sinks: Tensor, causal: bool, window: Window, scale: float | None, causal_alignment: str, *,
    both_sides: bool = False, factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Scores (B,G,H/G,Tq,Tk), minus infinity where a key is not seen, and the sinks as one more column (…,Tq,1)."""
    heads, groups = q.shape[1], k.shape[1]
    if tuple(sinks.shape) != (heads,):
        raise ValueError(f"sinks.shape={tuple(sinks.shape)} must be (H,) = ({heads},), got {tuple(sinks.shape)}; "
                         "pass one logit for each query head")
    named = _attention.scale_of(q, scale)
    root = math.sqrt(abs(named))
    left, right = (q * math.copysign(root, named), k * root) if both_sides else (q, k)
    by_head, keys, _ = _attention.grouped(left, right, right)
    scores = by_head @ keys.transpose(-1, -2)
    scores = scores if both_sides else scores * named
    sink = sinks.reshape(1, groups, heads // groups, 1, 1).expand(*scores.shape[:-1], 1)
    if factor != 1.0:
        scores, sink = scores * factor, sink * factor
    seen = _attention.positions_seen(q.shape[-2], k.shape[-2], causal, window, causal_alignment, q.device)
    return scores if seen is None else scores.masked_fill(~seen, float("-inf")), sink


def _merged(out: Tensor, q: Tensor, v: Tensor) -> Tensor:
    return out.reshape(*q.shape[:3], v.shape[-1])


def _top(scores: Tensor, sink: Tensor) -> Tensor:
    """The largest of scores and sink, a shift."""
    return freely_chosen(torch.cat([scores, sink], -1).amax(-1, keepdim=True))


# --- other legitimate ways to evaluate it ----------------------------------------------------------------------------


def _online(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: Window = None, scale: float | None = None,
    causal_alignment: str = "bottom_right",
) -> Tensor:
    """Scaled on both sides, summed as the keys come, the sink added to the sum, divided at the end."""
    scores, sink = _scores(q, k, sinks, causal, window, scale, causal_alignment, both_sides=True)
    top = _top(scores, sink)
    exponentials = (scores - top).exp()
    total = exponentials.sum(-1, keepdim=True) + (sink - top).exp()
    return _merged(exponentials @ v.unsqueeze(2) / total, q, v)


def _powers_of_two(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: Window = None, scale: float | None = None,
    causal_alignment: str = "bottom_right",
) -> Tensor:
    """In powers of two, scores and sink times log2 e first."""
    scores, sink = _scores(q, k, sinks, causal, window, scale, causal_alignment, factor=math.log2(math.e))
    top = _top(scores, sink)
    powers = torch.exp2(scores - top)
    total = powers.sum(-1, keepdim=True) + torch.exp2(sink - top)
    return _merged(powers @ v.unsqueeze(2) / total, q, v)


def _gated(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: Window = None, scale: float | None = None,
    causal_alignment: str = "bottom_right",
) -> Tensor:
    """Attention without sinks, times σ(logsumexp(s) − sink)."""
    scores, sink = _scores(q, k, sinks, causal, window, scale, causal_alignment)
    if k.shape[-2] == 0:
        return _merged(scores @ v.unsqueeze(2), q, v)
    seen = _attention.positions_seen(q.shape[-2], k.shape[-2], causal, window, causal_alignment, q.device)
    empty = None if seen is None else ~seen.any(-1, keepdim=True)
    filled = scores if empty is None else scores.masked_fill(empty, 0.0)
    top = freely_chosen(filled.amax(-1, keepdim=True))
    exponentials = (filled - top).exp()
    total = exponentials.sum(-1, keepdim=True)
    share = torch.sigmoid(total.log() + top - sink)
    out = exponentials / total @ v.unsqueeze(2) * share
    return _merged(out if empty is None else out.masked_fill(empty, 0.0), q, v)


def _recomputed(scores: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of keys and sink as exp(score − logsumexp), which is kept with the maximum in it."""
    top = _top(scores, sink)
    with precision("statistics"):
        whole = ((scores - top).exp().sum(-1, keepdim=True) + (sink - top).exp()).log() + top
    return (scores - whole).exp(), (sink - whole).exp()


def _recomputing(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: Window = None,
                 scale: float | None = None, causal_alignment: str = "bottom_right") -> Tensor:
    """Weights from the row's log-sum-exp, times the values."""
    weights, _ = _recomputed(*_scores(q, k, sinks, causal, window, scale, causal_alignment))
    return _merged(weights @ v.unsqueeze(2), q, v)


def _flash_backward(
    upstream: Tensor, wrt: tuple[str, ...], q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False,
    window: Window = None, scale: float | None = None, causal_alignment: str = "bottom_right",
) -> Mapping[str, Tensor]:
    """Gradients from recomputed weights: dS = P (dP − D), dsink = −Σ P_sink D, D = rowsum(dO O), a tile of queries at a time."""
    weights, left_over = _recomputed(*_scores(q, k, sinks, causal, window, scale, causal_alignment))
    above = upstream.reshape(*weights.shape[:-1], v.shape[-1])
    inner = (above * (weights @ v.unsqueeze(2))).sum(-1, keepdim=True)
    slopes = weights * (above @ v.unsqueeze(2).transpose(-1, -2) - inner)
    by_head, factor = q.reshape(*weights.shape[:-1], q.shape[-1]), _attention.scale_of(q, scale)
    gradients: dict[str, Any] = {
        "q": lambda: (slopes @ k.unsqueeze(2) * factor).reshape(q.shape),
        "k": lambda: (_attention.over_tiles(slopes, by_head) * factor).sum(2),
        "v": lambda: _attention.over_tiles(weights, above).sum(2),
        "sinks": lambda: -_attention.over_tiles(left_over, inner).sum(0).reshape(sinks.shape),
    }
    return {name: gradients[name]() for name in wrt}


FORMS: tuple[Form, ...] = (
    Form("the sink as one more column", sink_attention),
    Form("scaled on both sides, summed online", _online, additions=_attention.ONLINE_ADDITIONS, usual=True),
    Form("powers of two", _powers_of_two, additions=_attention.ONLINE_ADDITIONS),
    Form("attention times a sigmoid", _gated),
    Form("weights recomputed from log-sum-exp", _recomputing, backward=_flash_backward),
)
