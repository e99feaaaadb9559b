"""Scaled dot-product attention: the reference formula and the legitimate ways to evaluate it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from assay.numbers.bound import freely_chosen, precision, row_maximum
from assay.numbers.forms import Form

Window = int | tuple[int, int] | None

DECLARATION = {"offers": {"two_sided_window", "negative_scale"}}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal_alignment: str = "bottom_right",
    empty_row: str = "zeros",
) -> torch.Tensor:
    """Each query's mean of the values, weighted by the softmax of its scores with the keys.

    out = softmax(cap(scale q k^T) + bias + masks) v, scale = 1/sqrt(D) unless given, cap(s) = softcap tanh(s/softcap).

    q: (B, H, Tq, D)
    k: (B, G, Tk, D), G divides H; head h reads group floor(h G / H)
    v: (B, G, Tk, Dv)
    mask: bool, broadcasts to (B, H, Tq, Tk), True = may attend
    bias: float, broadcasts likewise; minus infinity masks
    causal: query i sees keys up to its own position; window w: the last w of them (a pair: so many left and right)
    causal_alignment: the last query is at the last key (`bottom_right`), or the first at the first (`top_left`)
    empty_row: a query that sees no key gives `zeros`, the `mean` of all values, or a `nan_row`
    returns: (B, H, Tq, Dv)

    Raises ValueError where H is no multiple of G.
    Source: Vaswani et al., "Attention Is All You Need", section 3.2.1, arXiv:1706.03762.

    >>> one = torch.ones(1, 1, 1, 2)
    >>> attention(one, one, 3 * one)
    tensor([[[[3., 3.]]]])
    """
    by_group, keys, values = grouped(q, k, v)
    scores = capped(by_group @ keys.transpose(-1, -2) * scale_of(q, scale), softcap)
    visible = visibility(q, k, mask, bias, causal, window, causal_alignment)
    filled, empty = masked(with_bias(scores, bias, q.shape[1]), visible, q.shape[1])
    exponentials = (filled - row_maximum(filled, -1) if k.shape[-2] else filled).exp()
    weights = exponentials / exponentials.sum(-1, keepdim=True)
    return closed((weights @ values).reshape(*q.shape[:3], v.shape[-1]), empty, empty_row)


def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query heads by the group that they read from; keys and values are shared within it."""
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups:
        raise ValueError(
            f"k.shape[1]={groups} must divide the number of query heads, got {heads}; repeat or drop heads"
        )
    by_group = q.reshape(q.shape[0], groups, heads // groups, *q.shape[2:])  # (B, G, H/G, Tq, D)
    return by_group, k.unsqueeze(2), v.unsqueeze(2)  # (B, G, 1, Tk, D), (B, G, 1, Tk, Dv)


def scale_of(q: torch.Tensor, scale: float | None) -> float:
    """One over the root of the key width, unless given."""
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Scores squeezed into (-softcap, softcap)."""
    return scores if softcap is None else (scores / softcap).tanh() * softcap


def by_group(tensor: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
    """A tensor that broadcasts to (B, H, Tq, Tk), as one that broadcasts to (B, G, H/G, Tq, Tk)."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    if tensor.shape[1] == 1:
        return tensor.unsqueeze(2)
    return tensor.reshape(tensor.shape[0], groups, heads // groups, *tensor.shape[2:])


def with_bias(scores: torch.Tensor, bias: torch.Tensor | None, heads: int) -> torch.Tensor:
    """Scores plus bias; minus infinity in it masks by value, so that no NaN can arise."""
    if bias is None:
        return scores
    finite = bias.masked_fill(bias == float("-inf"), 0.0)
    return scores + by_group(finite, heads, scores.shape[1])


def visibility(
    q: torch.Tensor,
    k: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    causal: bool,
    window: Window,
    causal_alignment: str,
) -> torch.Tensor | None:
    """Which keys each query may attend to, broadcasting to (B, H, Tq, Tk); None: all."""
    visible = mask
    if bias is not None:
        open_ = bias != float("-inf")
        visible = open_ if visible is None else visible & open_
    positional = positions_seen(q.shape[-2], k.shape[-2], causal, window, causal_alignment, q.device)
    if positional is None:
        return visible
    return positional if visible is None else visible & positional


def positions_seen(
    queries: int, keys: int, causal: bool, window: Window, causal_alignment: str, device: torch.device
) -> torch.Tensor | None:
    """(Tq, Tk): what causality and the window leave; None: everything."""
    if not causal and window is None:
        return None
    offset = keys - queries if causal_alignment == "bottom_right" else 0
    row = torch.arange(queries, device=device).unsqueeze(-1) + offset
    column = torch.arange(keys, device=device)
    left, right = (
        (window - 1, 0) if isinstance(window, int) else (keys + queries, keys + queries) if window is None else window
    )
    seen = (column >= row - left) & (column <= row + (0 if causal else right))
    return seen


def masked(scores: torch.Tensor, visible: torch.Tensor | None, heads: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores with minus infinity where nothing is seen, and which rows (B, H, Tq, 1) see nothing: those are zeroed
    here,
    because after the softmax it would be too late for their gradients."""
    if visible is None:
        return scores, None
    empty = ~visible.any(-1, keepdim=True)
    open_ = by_group(visible | empty, heads, scores.shape[1])
    blank = by_group(empty, heads, scores.shape[1])
    filled = scores.masked_fill(~open_, float("-inf")).masked_fill(blank, 0.0)
    return filled, empty


def shifted(scores: torch.Tensor) -> torch.Tensor:
    """Scores less the row's maximum (any shift gives the same weights)."""
    if scores.shape[-1] == 0:
        return scores
    return scores - freely_chosen(scores.amax(-1, keepdim=True))


def closed(out: torch.Tensor, empty: torch.Tensor | None, empty_row: str) -> torch.Tensor:
    """The output with the rows that see no key as the convention has them."""
    if empty is None or empty_row == "mean":
        return out
    return out.masked_fill(empty, 0.0 if empty_row == "zeros" else float("nan"))


# --- other legitimate ways to evaluate it ----------------------------------------------------------------------------


def online_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal_alignment: str = "bottom_right",
    empty_row: str = "zeros",
) -> torch.Tensor:
    """Scaled on both sides, summed as the keys come, divided at the end."""
    factor = scale_of(q, scale)
    root = math.sqrt(abs(factor))
    by_head, keys, values = grouped(q * math.copysign(root, factor), k * root, v)
    scores = capped(by_head @ keys.transpose(-1, -2), softcap)
    visible = visibility(q, k, mask, bias, causal, window, causal_alignment)
    filled, empty = masked(with_bias(scores, bias, q.shape[1]), visible, q.shape[1])
    exponentials = shifted(filled).exp()
    total = exponentials.sum(-1, keepdim=True)
    out = exponentials @ values / total if k.shape[-2] else exponentials @ values
    return closed(out.reshape(*q.shape[:3], v.shape[-1]), empty, empty_row)


def base_two_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    causal: bool = False, window: Window = None, scale: float | None = None, softcap: float | None = None,
    causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> torch.Tensor:  # fmt: skip
    """In powers of two: whole scores times log2 e, before the maximum is taken off, as Triton's kernels do."""
    by_head, keys, values = grouped(q, k, v)
    scores = capped(by_head @ keys.transpose(-1, -2) * scale_of(q, scale), softcap)
    visible = visibility(q, k, mask, bias, causal, window, causal_alignment)
    filled, empty = masked(with_bias(scores, bias, q.shape[1]) * math.log2(math.e), visible, q.shape[1])
    powers = torch.exp2(shifted(filled))
    total = powers.sum(-1, keepdim=True)
    out = powers @ values / total if k.shape[-2] else powers @ values
    return closed(out.reshape(*q.shape[:3], v.shape[-1]), empty, empty_row)


def recomputed_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    causal: bool = False,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    causal_alignment: str = "bottom_right",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Weights as exp(score - lse), the capped scores, and the rows that see no key.

    The keys may have been split, and the log-sum-exps of the parts merged: as if in two parts of equal weight.
    """
    by_head, keys, _ = grouped(q, k, v)
    scores = capped(by_head @ keys.transpose(-1, -2) * scale_of(q, scale), softcap)
    visible = visibility(q, k, mask, bias, causal, window, causal_alignment)
    filled, empty = masked(with_bias(scores, bias, q.shape[1]), visible, q.shape[1])
    return merged_weights(filled, -1), scores, empty


def merged_weights(scores: torch.Tensor, dim: int) -> torch.Tensor:
    """exp(score - lse of its part) times exp(lse of its part - lse); the log-sum-exps carry the maximum with them."""
    if scores.shape[dim] == 0:
        return scores
    top = freely_chosen(scores.amax(dim, keepdim=True))
    with precision("statistics"):
        part = ((scores - top).exp().sum(dim, keepdim=True) * 0.5).log() + top
        whole = part + math.log(2.0)
        share = (part - whole).exp()
    return (scores - part).exp() * share


def recomputing_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, empty_row: str = "zeros", **options: Any
) -> torch.Tensor:
    """Weights from the row's log-sum-exp, times the values."""
    weights, _, empty = recomputed_weights(q, k, v, **options)
    return closed((weights @ v.unsqueeze(2)).reshape(*q.shape[:3], v.shape[-1]), empty, empty_row)


QUERY_TILE = 32  # the smallest that CPU flash attention uses in its backward: partial sums are stored after each


def over_tiles(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """left^T right, summed over rows a tile at a time, each partial sum stored: (..., T, M), (..., T, N) -> (..., M,
    N)."""
    if left.shape[-2] <= QUERY_TILE:
        return left.transpose(-1, -2) @ right
    tiles = [
        a.transpose(-1, -2) @ b for a, b in zip(left.split(QUERY_TILE, -2), right.split(QUERY_TILE, -2), strict=True)
    ]
    with precision("spilled"):
        return torch.stack(tiles).sum(0)


def of_parts(inner: torch.Tensor, weighed: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """D as it comes out of keys that were split: a part's own D, up to the largest dP seen, and what is left to the
    whole's."""
    if weighed.shape[-1] == 0:
        return inner
    part = freely_chosen(weighed.masked_fill(weights == 0, 0.0).abs().amax(-1, keepdim=True))
    with precision("statistics"):
        return (inner - part) + part


def flash_backward(
    upstream: torch.Tensor,
    wrt: tuple[str, ...],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    empty_row: str = "zeros",
    **options: Any,
) -> Mapping[str, torch.Tensor]:
    """Gradients from recomputed weights: dS = P (dP - D), D = rowsum(dO O), dV and dK a tile of queries at a time.

    Source: Dao et al., "FlashAttention", appendix B.2, arXiv:2205.14135.
    """
    weights, scores, empty = recomputed_weights(q, k, v, scale=scale, softcap=softcap, **options)
    heads, groups = q.shape[1], k.shape[1]
    above = upstream
    if empty is not None and empty_row != "mean":
        above = upstream.masked_fill(empty, 0.0)
    above = above.reshape(above.shape[0], groups, heads // groups, *above.shape[2:])
    inner = (above * (weights @ v.unsqueeze(2))).sum(-1, keepdim=True)  # D
    weighed = above @ v.unsqueeze(2).transpose(-1, -2)  # dP
    slopes = weights * (weighed - of_parts(inner, weighed, weights))  # dS
    if empty is not None:
        slopes = slopes.masked_fill(by_group(empty, heads, groups), 0.0)
    if softcap is not None:
        tame = scores / softcap
        slopes = slopes * (1.0 - tame * tame)
    factor = scale_of(q, scale)
    by_head = q.reshape(q.shape[0], groups, heads // groups, *q.shape[2:])
    gradients = {
        "q": lambda: (slopes @ k.unsqueeze(2) * factor).reshape(q.shape),
        "k": lambda: (over_tiles(slopes, by_head) * factor).sum(2),
        "v": lambda: over_tiles(weights, above).sum(2),
    }
    return {name: gradients[name]() for name in wrt}


# An online sum over tiles of one key takes, at each step: the rescaling factor (an exponential accurate to 4 units,
# rounded once), the product, and the addition.
ONLINE_ADDITIONS = 7

FORMS: tuple[Form, ...] = (
    Form("as written", attention),
    Form("scaled on both sides, summed online", online_attention, additions=ONLINE_ADDITIONS, usual=True),
    Form("powers of two", base_two_attention, additions=ONLINE_ADDITIONS),
    Form("weights recomputed from log-sum-exp", recomputing_attention, backward=flash_backward),
)
