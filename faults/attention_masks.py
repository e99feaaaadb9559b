"""Planted faults of attention: masks, causal triangle, window, empty rows."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.faults.attention_parts import (
    INFINITY,
    Options,
    attend,
    distance,
    heads,
    planted,
    positional,
    scores,
    visible,
    weights,
)


def _kept(q: Tensor, k: Tensor, v: Tensor, o: Options, keep: Tensor) -> Tensor:
    """Attention under another notion of what is visible."""
    return weights(scores(q, k, o), keep) @ heads(v, q)


def _aligned(q: Tensor, k: Tensor, v: Tensor, o: Options, shift: int | Tensor) -> Tensor:
    """Attention whose causal and window distances are off by `shift`."""
    keep = positional(distance(q, k) + shift, o)
    return _kept(q, k, v, o, keep & visible(q, k, replace(o, causal=False, window=None)))


@planted("mask applied to the weights after the softmax, without renormalising")
def mask_after_softmax(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    return (weights(s, torch.ones_like(keep)) * keep) @ heads(v, q)


def _sentinel(q: Tensor, k: Tensor, v: Tensor, o: Options, value: float) -> Tensor:
    keep = visible(q, k, o)
    s = scores(q, k, o).masked_fill(~keep, value)
    return torch.softmax(s, -1) @ heads(v, q)


@planted("masked scores set to −1e4: empty rows give the mean, very negative scores lose", "BUG-034")
def finite_sentinel_ten_thousand(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _sentinel(q, k, v, o, -1e4)


@planted("masked scores set to −1e5", "BUG-032")
def finite_sentinel_hundred_thousand(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _sentinel(q, k, v, o, max(-1e5, torch.finfo(q.dtype).min))


@planted("−1e4 added to masked scores in place of −∞", "BUG-034")
def additive_ten_thousand(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return torch.softmax(scores(q, k, o) - 1e4 * (~visible(q, k, o)).to(q.dtype), -1) @ heads(v, q)


@planted("masked scores set to the type's smallest number: empty rows give the mean of all values", "BUG-003")
def empty_row_gives_mean(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _sentinel(q, k, v, o, torch.finfo(q.dtype).min)


@planted("the type's smallest number is added, not filled in: with negative scores it overflows to −∞", "BUG-036")
def additive_smallest_number(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    low = torch.finfo(q.dtype).min * (~visible(q, k, o)).to(q.dtype)
    return torch.softmax(scores(q, k, o) + low, -1) @ heads(v, q)


@planted("causal and padding planes, each the smallest number, are summed: −∞, then NaN", "BUG-035")
def planes_summed(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    low = torch.finfo(q.dtype).min
    s = scores(q, k, o)
    for part in (replace(o, mask=None), replace(o, causal=False, window=None)):
        s = s + low * (~visible(q, k, part)).to(q.dtype)
    return torch.softmax(s, -1) @ heads(v, q)


@planted("a fully masked row is NaN", "BUG-002")
def empty_row_gives_nan(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _sentinel(q, k, v, o, -INFINITY)


@planted("one empty row turns every row of its head NaN")
def empty_row_spreads(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    empty = ~keep.expand(s.shape).any(-1, keepdim=True)
    return attend(q, k, v, o).masked_fill(empty.any(-2, keepdim=True), float("nan"))


@planted("an empty row is zeroed after a NaN softmax: the gradients stay NaN", "BUG-033")
def empty_row_gradient_nan(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    keep = visible(q, k, o)
    plane = torch.zeros_like(keep, dtype=q.dtype).masked_fill(~keep, -INFINITY)
    p = torch.softmax(scores(q, k, o) + plane, -1)
    return torch.where(keep.any(-1, keepdim=True), p, torch.zeros_like(p)) @ heads(v, q)


@planted("mask inverted: True drops", "BUG-017")
def mask_inverted(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.mask is None else replace(o, mask=~o.mask.bool()))


@planted("mask ignored", "BUG-022")
def mask_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, mask=None))


@planted("mask ignored when causal")
def mask_ignored_when_causal(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, mask=None) if o.causal else o)


@planted("a window discards the mask", "BUG-037")
def mask_ignored_with_window(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.window is None else replace(o, mask=None))


@planted("causal ignored when a mask is given", "BUG-029")
def causal_ignored_with_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.mask is None else replace(o, causal=False))


@planted("causal ignored without a mask", "BUG-021")
def causal_ignored_without_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, causal=False) if o.mask is None else o)


@planted("causal ignored when a bias is given", "BUG-028")
def causal_ignored_with_bias(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.bias is None else replace(o, causal=False))


@planted("causal ignored where keys outnumber queries (a cache)", "BUG-026")
def causal_ignored_with_more_keys(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, causal=False) if k.shape[-2] > q.shape[-2] else o)


@planted("causal and padding combined by or")
def masks_combined_by_or(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or not (o.causal or o.window):
        return attend(q, k, v, o)
    return _kept(q, k, v, o, visible(q, k, replace(o, mask=None)) | o.mask.bool())


@planted("causal triangle without its diagonal", "BUG-020")
def causal_strict(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _aligned(q, k, v, o, -1) if o.causal and o.window is None else attend(q, k, v, o)


@planted("causal triangle one key too wide")
def causal_sees_next(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _aligned(q, k, v, o, 1) if o.causal and o.window is None else attend(q, k, v, o)


@planted("causal keeps the future in place of the past", "BUG-018")
def causal_keeps_future(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    rest = visible(q, k, replace(o, causal=False))
    return _kept(q, k, v, o, rest & (distance(q, k) < 0) if o.causal else rest)


@planted("causal bound computed once per four queries: most rows see future keys", "BUG-027")
def causal_in_groups_of_four(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    i = torch.arange(q.shape[-2], device=q.device)
    return _aligned(q, k, v, o, (i // 4 * 4 + 3 - i)[:, None]) if o.causal and o.window is None else attend(q, k, v, o)


@planted("the same in low precision only", "BUG-027")
def causal_in_groups_of_four_half(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return (attend if q.dtype in (torch.float32, torch.float64) else causal_in_groups_of_four)(q, k, v, o)


@planted("causal aligned at the top left without saying so", "BUG-025")
def causal_top_left(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _aligned(q, k, v, o, q.shape[-2] - k.shape[-2])


@planted("the first query lines up with the last key", "BUG-024")
def causal_aligned_one_too_late(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _aligned(q, k, v, o, 1 if q.shape[-2] != k.shape[-2] else 0)


@planted("a window without causal also looks ahead")
def window_looks_ahead(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.window is None or o.causal:
        return attend(q, k, v, o)
    back = distance(q, k)
    return _kept(q, k, v, o, visible(q, k, replace(o, window=None)) & (back.abs() < o.window))


@planted("window of w+1 keys", "BUG-065")
def window_one_too_wide(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.window is None else replace(o, window=o.window + 1))


@planted("window of w−1 keys")
def window_one_too_narrow(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.window is None else replace(o, window=o.window - 1))


@planted("window of w+1 keys where keys outnumber queries", "BUG-066")
def window_one_too_wide_with_cache(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return window_one_too_wide(q, k, v, o) if k.shape[-2] > q.shape[-2] else attend(q, k, v, o)


@planted("window off by one row where several queries meet a cache", "BUG-068")
def window_row_off_with_cache(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.window is None or not 1 < q.shape[-2] < k.shape[-2]:
        return attend(q, k, v, o)
    keep = positional(distance(q, k) - 1, replace(o, causal=False)) & (distance(q, k) >= 0)
    return _kept(q, k, v, o, keep & visible(q, k, replace(o, window=None)))


@planted("window ignored")
def window_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, window=None, causal=o.causal or o.window is not None))


@planted("window ignored unless causal")
def window_ignored_unless_causal(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o if o.causal else replace(o, window=None))


@planted("window of w visible keys in place of w positions: masked keys are not counted")
def window_counts_visible_keys(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.window is None:
        return attend(q, k, v, o)
    keep = visible(q, k, replace(o, window=None)) & (distance(q, k) >= 0)
    after = keep.flip(-1).cumsum(-1).flip(-1)
    return _kept(q, k, v, o, keep & (after <= o.window))


@planted("the mask of the first sample is used for every sample", "BUG-031")
def mask_of_first_sample(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 4:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask[:1]))


@planted("scores are head-major, the mask is repeated batch-major: samples use each other's masks", "BUG-031")
def mask_repeated_batch_major(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 4 or o.mask.shape[0] == 1:
        return attend(q, k, v, o)
    b, h = q.shape[:2]
    full = o.mask.expand(b, h, *o.mask.shape[2:])
    row = torch.arange(b * h, device=q.device) % b
    return attend(q, k, v, replace(o, mask=full[row, 0].reshape(full.shape)))


@planted("the mask of the first head is used for every head")
def mask_of_first_head(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 3:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask[..., :1, :, :]))


@planted("the mask is transposed when it is square")
def square_mask_transposed(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 2 or o.mask.shape[-1] != o.mask.shape[-2]:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask.mT))


@planted("the last key's mask bit is not read: padding at the end is attended", "BUG-039")
def last_mask_bit_not_read(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or k.shape[-2] < 2:
        return attend(q, k, v, o)
    last = torch.arange(k.shape[-2], device=q.device) == k.shape[-2] - 1
    return attend(q, k, v, replace(o, mask=o.mask.bool() | last))


@planted("cross lengths are made causal", "BUG-041")
def cross_lengths_made_causal(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, causal=o.causal or q.shape[-2] != k.shape[-2]))


@planted("a block-diagonal mask is replaced by the causal triangle: documents see each other", "BUG-045")
def document_mask_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    square = o.mask is not None and o.mask.dim() >= 2 and o.mask.shape[-2] == q.shape[-2] > 1
    return attend(q, k, v, replace(o, mask=None) if square else o)


@planted("the mask's offset wraps: rows past the 64th read the mask from its start", "BUG-221")
def mask_offset_wraps(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 2 or o.mask.shape[-2] <= 64:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask[..., torch.arange(o.mask.shape[-2], device=q.device) % 64, :]))


@planted("a mask of integers is negated bit by bit: 0 and 1 become -1 and -2, both of them true (erratum E20)")
def integer_mask_negated(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dtype == torch.bool:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=~(~o.mask).bool()))
