"""Planted faults of attention: windows of two sides."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, attend, distance, heads, scores, visible, weights
from assay.faults.planting import bent, planter
from assay.registry import benign, fault

Way = Callable[[Tensor, Tensor, Tensor, Options, int, int], Tensor]
OFFERED = {"offers": {"two_sided_window"}}


def between(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int, back: Tensor | None = None) -> Tensor:
    """The right attention over the keys i − left … i + right, and no others; `back` in place of the distances."""
    far = distance(q, k) if back is None else back
    return weights(scores(q, k, o), visible(q, k, o) & (far <= left) & (far >= -right)) @ heads(v, q)


def signed(way: Way) -> Callable[..., Tensor]:
    """A way to treat a pair with the signature of the kind; all else is right."""
    def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
                  window: int | tuple[int, int] | None = None, scale: float | None = None, softcap: float | None = None) -> Tensor:
        options = Options(mask, bias, causal, None, scale, softcap)
        if window is None or isinstance(window, int):
            return attend(q, k, v, replace(options, window=window))
        return way(q, k, v, options, *window)

    return attention


planted = planter("attention", signed)


@planted(fault, "two-sided: left and right change places", **OFFERED)
def pair_sides_swapped(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, right, left)


@planted(fault, "two-sided: keys ahead are not seen", **OFFERED)
def pair_right_side_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, 0)


@planted(fault, "two-sided: all keys ahead are seen", **OFFERED)
def pair_right_side_open(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, k.shape[-2] + q.shape[-2])


@planted(fault, "two-sided: all keys behind are seen", **OFFERED)
def pair_left_side_open(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, k.shape[-2] + q.shape[-2], right)


@planted(fault, "two-sided: the left side serves for both", **OFFERED)
def pair_taken_for_symmetric(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, left)


@planted(fault, "two-sided: a key more behind", **OFFERED)
def pair_left_one_too_wide(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left + 1, right)


@planted(fault, "two-sided: a key more ahead", **OFFERED)
def pair_right_one_too_wide(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, right + 1)


@planted(fault, "two-sided: left counts the query's own key, as a window of one number does", **OFFERED)
def pair_left_counts_the_query(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, max(0, left - 1), right)


@planted(fault, "two-sided: the last key ahead is not seen", **OFFERED)
def pair_right_one_too_narrow(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, max(0, right - 1))


@planted(fault, "two-sided: causal is forgotten", **OFFERED)
def pair_forgets_causal(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, replace(o, causal=False), left, right)


@planted(fault, "two-sided: a mask is forgotten", **OFFERED)
def pair_forgets_the_mask(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, replace(o, mask=None), left, right)


@planted(fault, "two-sided: the first query at the first key, whatever the lengths", **OFFERED)
def pair_aligned_top_left(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    return between(q, k, v, o, left, right, distance(q, k) - (k.shape[-2] - q.shape[-2]))


@planted(fault, "two-sided: in blocks of four queries, each block as wide as its first query's window", **OFFERED)
def pair_of_the_blocks_first_query(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    row = torch.arange(q.shape[-2])[:, None]
    return between(q, k, v, o, left, right, distance(q, k) - row % 4)


@planted(fault, "two-sided: backward forgets the keys ahead", **OFFERED)
def pair_gradient_of_the_past_alone(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    ahead = distance(q, k) < 0
    s = bent(scores(q, k, o), lambda upstream: upstream.masked_fill(ahead, 0.0))
    far = distance(q, k)
    return weights(s, visible(q, k, o) & (far <= left) & (far >= -right)) @ heads(v, q)


@planted(benign, "two-sided: key by key, each query's own slice", **OFFERED)
def pair_by_slices(q: Tensor, k: Tensor, v: Tensor, o: Options, left: int, right: int) -> Tensor:
    s, keep, far = scores(q, k, o), visible(q, k, o), distance(q, k)
    keep = (keep & (far <= left) & (far >= -right)).expand(s.shape)
    rows = []
    for i in range(q.shape[-2]):
        at = i + k.shape[-2] - q.shape[-2]
        part = slice(max(0, at - left), max(0, at + right + 1))
        rows.append(weights(s[:, :, i:i + 1, part], keep[:, :, i:i + 1, part]) @ heads(v, q)[:, :, part]
                    if s[:, :, i:i + 1, part].shape[-1] else q.new_zeros(*q.shape[:2], 1, v.shape[-1]))
    return torch.cat(rows, -2) if rows else between(q, k, v, o, left, right)
