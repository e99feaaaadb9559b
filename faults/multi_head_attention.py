"""Planted faults of multi-head attention, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, attend, tampered
from assay.faults.multi_head_attention_parts import Call, by_heads, closed, linear, merge, planted, projected, right, split, turned
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-056": "attention weights are not returned, and the call has no dropout",
    "BUG-058": "norm and partial rotary fused: see rotary",
    "BUG-062": "a decoding step of cross-attention: see decoder",
}


@planted(fault, "heads merged without swapping head and time", "BUG-049")
def heads_merged_without_swap(c: Call) -> Tensor:
    out = by_heads(c)
    return closed(c, out.reshape(out.shape[0], out.shape[2], -1) if out.numel() else merge(out))


def _viewed(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)


def _with_split(c: Call, view: Callable[[Tensor, int], Tensor]) -> Tensor:
    q, k, v = (view(linear(s, w, b), n) for s, w, b, n in (
        (c.x, c.w_q, c.b_q, c.heads), (c.source, c.w_k, c.b_k, c.groups),
        (c.source if c.values is None else c.values, c.w_v, c.b_v, c.groups)))
    if c.positions is not None:
        q, k = turned(q, c.positions, c.base), turned(k, c.positions, c.base)
    return closed(c, merge(attend(q, k, v, Options(mask=c.joined(), causal=c.causal, window=c.window))))


@planted(fault, "heads split by a view without transposing", "BUG-051")
def heads_split_by_view(c: Call) -> Tensor:
    return _with_split(c, _viewed)


@planted(fault, "split by view and merged by view: tokens are mixed", "BUG-050")
def split_and_merged_by_view(c: Call) -> Tensor:
    q, k, v = (_viewed(linear(s, w, b), n) for s, w, b, n in (
        (c.x, c.w_q, c.b_q, c.heads), (c.source, c.w_k, c.b_k, c.groups),
        (c.source if c.values is None else c.values, c.w_v, c.b_v, c.groups)))
    out = attend(q, k, v, Options(mask=c.joined(), causal=c.causal, window=c.window))
    return closed(c, out.reshape(out.shape[0], out.shape[2], out.shape[1] * out.shape[3]))


@planted(fault, "channels of a head interleaved: head is the fast axis")
def heads_interleaved(c: Call) -> Tensor:
    return _with_split(c, lambda x, n: x.reshape(*x.shape[:2], x.shape[2] // n, n).permute(0, 3, 1, 2))


@planted(fault, "the head axis is taken for the batch axis on the way out", "BUG-053")
def batch_and_heads_swapped(c: Call) -> Tensor:
    out = by_heads(c)
    return closed(c, merge(out.transpose(0, 1).reshape(out.shape)))


@planted(fault, "rows of w_q, w_k, w_v read as one fused layout, head by head", "BUG-054")
def fused_layout_mistaken(c: Call) -> Tensor:
    if c.groups != c.heads or c.w_q.shape != c.w_v.shape:
        return right(c)
    fused = torch.cat([c.w_q, c.w_k, c.w_v]).reshape(c.heads, 3, -1, c.w_q.shape[1])
    w_q, w_k, w_v = (fused[:, i].reshape(c.w_q.shape) for i in range(3))
    return right(replace(c, w_q=w_q, w_k=w_k, w_v=w_v))


@planted(fault, "the gate's sigmoid is taken twice", "BUG-052")
def gate_sigmoid_twice(c: Call) -> Tensor:
    gate = 1.0 if c.w_gate is None else torch.sigmoid(torch.sigmoid(c.x @ c.w_gate.mT))
    return linear(merge(by_heads(c)) * gate, c.w_o, c.b_o)


@planted(fault, "the gate is left out")
def gate_left_out(c: Call) -> Tensor:
    return right(replace(c, w_gate=None))


@planted(fault, "the gate without its sigmoid")
def gate_linear(c: Call) -> Tensor:
    gate = 1.0 if c.w_gate is None else c.x @ c.w_gate.mT
    return linear(merge(by_heads(c)) * gate, c.w_o, c.b_o)


@planted(fault, "the gate after the output projection")
def gate_after_projection(c: Call) -> Tensor:
    out = right(replace(c, w_gate=None))
    if c.w_gate is None:
        return out
    gate = torch.sigmoid(c.x @ c.w_gate.mT)
    return out * (gate if gate.shape == out.shape else gate.mean(-1, keepdim=True))


@planted(fault, "one gate a head: the mean of its channels")
def gate_per_head(c: Call) -> Tensor:
    if c.w_gate is None:
        return right(c)
    gate = torch.sigmoid(c.x @ c.w_gate.mT)
    shape = (*gate.shape[:2], c.heads, -1) if gate.numel() else gate.shape
    gate = gate.reshape(shape).mean(-1, keepdim=True).expand(*gate.shape[:2], c.heads, gate.shape[2] // c.heads).reshape(gate.shape)
    return linear(merge(by_heads(c)) * gate, c.w_o, c.b_o)


@planted(fault, "no output projection where the widths allow it")
def projection_left_out(c: Call) -> Tensor:
    merged = merge(by_heads(c))
    return merged if merged.shape == c.x.shape else closed(c, merged)


@planted(fault, "the output projection's weight transposed where it is square")
def projection_transposed(c: Call) -> Tensor:
    return right(replace(c, w_o=c.w_o.mT) if c.w_o.shape[0] == c.w_o.shape[1] else c)


@planted(fault, "the query weight transposed where it is square")
def query_weight_transposed(c: Call) -> Tensor:
    return right(replace(c, w_q=c.w_q.mT) if c.w_q.shape[0] == c.w_q.shape[1] else c)


@planted(fault, "heads are averaged, then repeated")
def heads_averaged(c: Call) -> Tensor:
    out = by_heads(c)
    return closed(c, merge(out.mean(1, keepdim=True).expand(out.shape)))


@planted(fault, "the last head is dropped")
def last_head_dropped(c: Call) -> Tensor:
    keep = torch.arange(c.heads, device=c.x.device) < max(1, c.heads - 1)
    return closed(c, merge(by_heads(c) * keep[:, None, None]))


@planted(fault, "heads are numbered from 0 to h: one more than there are, where the width allows it")
def one_head_more(c: Call) -> Tensor:
    more = c.heads + 1
    return right(replace(c, heads=more, groups=more) if c.groups == c.heads and c.w_q.shape[0] % more == 0 and
                 (c.positions is None or c.w_q.shape[0] // more % 2 == 0) else c)


@planted(fault, "the heads are added to x, without w_o")
def input_added_without_projection(c: Call) -> Tensor:
    merged = merge(by_heads(c))
    return c.x + merged if merged.shape == c.x.shape else closed(c, merged)


@planted(fault, "the head width is taken to be C/H, whatever the weights hold")
def head_width_from_model_width(c: Call) -> Tensor:
    n, g = c.x.shape[-1], c.x.shape[-1] * c.groups // c.heads
    return right(replace(c, w_q=c.w_q[:n], w_k=c.w_k[:g], w_v=c.w_v[:g], w_o=c.w_o[:, :n]))


@planted(fault, "every head is computed at the width of all heads, zeros elsewhere: H times the products")
def products_by_every_head(c: Call) -> Tensor:
    def spread(x: Tensor, n: int) -> Tensor:  # (B,n,T,D) to (B,n,T,n·D), each head in its own channels
        own = torch.eye(n, dtype=x.dtype, device=x.device)
        return (own[:, None, :, None] * x[:, :, :, None, :]).flatten(-2)

    q, k, v = projected(c)
    times = c.heads // c.groups
    o = Options(mask=c.joined(), causal=c.causal, window=c.window, scale=q.shape[-1] ** -0.5)
    return closed(c, merge(attend(spread(q, c.heads), spread(k.repeat_interleave(times, 1), c.heads), v, o)))


@planted(fault, "the window slides in steps of its width", refuses=True)
def window_in_steps(c: Call) -> Tensor:
    if c.window is None:
        return right(c)
    tq, tk = c.x.shape[1], c.source.shape[1]
    i = torch.arange(tq, device=c.x.device)[:, None] + tk - tq
    j = torch.arange(tk, device=c.x.device)[None, :]
    keep = (j <= i) & (j // c.window == i // c.window)
    joined = c.joined()
    q, k, v = projected(c)
    return closed(c, merge(attend(q, k, v, Options(mask=keep if joined is None else keep & joined))))


@planted(fault, "every head uses the first head's keys")
def keys_of_first_head(c: Call) -> Tensor:
    q, k, v = projected(c)
    out = attend(q, k[:, :1].expand(k.shape), v, Options(mask=c.joined(), causal=c.causal, window=c.window))
    return closed(c, merge(out))


@planted(fault, "scores divided by the root of the model width", "BUG-015")
def scale_of_model_width(c: Call) -> Tensor:
    q, k, v = projected(c)
    options = Options(mask=c.joined(), causal=c.causal, window=c.window, scale=c.x.shape[-1] ** -0.5)
    return closed(c, merge(attend(q, k, v, options)))


@planted(fault, "grouped heads tiled in place of repeated in blocks")
def grouped_heads_tiled(c: Call) -> Tensor:
    q, k, v = projected(c)
    index = torch.arange(c.heads, device=c.x.device) % c.groups
    out = attend(q, k[:, index], v[:, index], Options(mask=c.joined(), causal=c.causal, window=c.window))
    return closed(c, merge(out))


@planted(fault, "the context is ignored: always self-attention")
def context_ignored(c: Call) -> Tensor:
    if c.context is None or c.context.shape[1] != c.x.shape[1]:
        return right(c)
    return right(replace(c, context=None))


@planted(fault, "values come from x though a context is given")
def values_from_queries(c: Call) -> Tensor:
    same = c.context is not None and c.values is None and c.context.shape == c.x.shape
    return right(replace(c, values=c.x) if same else c)


@planted(fault, "separate values are ignored")
def values_ignored(c: Call) -> Tensor:
    return right(replace(c, values=None))


@planted(fault, "cross-attention is causal", "BUG-041")
def cross_attention_causal(c: Call) -> Tensor:
    return right(replace(c, causal=c.causal or c.context is not None))


@planted(fault, "the key mask is ignored", "BUG-039")
def key_mask_ignored(c: Call) -> Tensor:
    return right(replace(c, key_mask=None))


@planted(fault, "the key mask is read as True = drop", "BUG-017")
def key_mask_inverted(c: Call) -> Tensor:
    return right(c if c.key_mask is None else replace(c, key_mask=~c.key_mask.bool()))


@planted(fault, "the key mask replaces causal", "BUG-029")
def key_mask_replaces_causal(c: Call) -> Tensor:
    return right(c if c.key_mask is None else replace(c, causal=False))


@planted(fault, "the key mask replaces the mask")
def key_mask_replaces_mask(c: Call) -> Tensor:
    return right(c if c.key_mask is None else replace(c, mask=None))


@planted(fault, "a (T,T) mask is read as (B,T) padding where B = T", refuses=False)
def mask_taken_for_padding(c: Call) -> Tensor:
    if c.mask is None or c.mask.dim() != 2 or c.mask.shape[0] != c.x.shape[0]:
        return right(c)
    return right(replace(c, mask=None, key_mask=c.mask))


@planted(fault, "a (B,T) key mask in `mask` is broadcast without a word", refuses=False)
def padding_taken_for_mask(c: Call) -> Tensor:
    shape = (c.x.shape[0], c.x.shape[1], c.source.shape[1])
    if c.mask is None or c.mask.dim() != 2 or tuple(c.mask.shape) == shape[1:]:
        return right(c)
    return right(replace(c, mask=c.mask.bool()[:1].expand(shape[1:])))


@planted(fault, "masks repeated batch-major over head-major scores", "BUG-031")
def mask_repeated_batch_major(c: Call) -> Tensor:
    joined, b = c.joined(), c.x.shape[0]
    if joined is None or joined.shape[0] == 1 or b == 0:
        return right(c)
    q, k, v = projected(c)
    row = torch.arange(b * c.heads, device=c.x.device) % b
    wrong = joined[row, 0].reshape(b, c.heads, *joined.shape[2:])
    return closed(c, merge(attend(q, k, v, Options(mask=wrong, causal=c.causal, window=c.window))))


@planted(fault, "window ignored")
def window_ignored(c: Call) -> Tensor:
    return right(replace(c, window=None, causal=c.causal or c.window is not None))


@planted(fault, "window of w+1", "BUG-065")
def window_one_too_wide(c: Call) -> Tensor:
    return right(c if c.window is None else replace(c, window=c.window + 1))


@planted(fault, "a window discards the masks", "BUG-037")
def window_discards_masks(c: Call) -> Tensor:
    return right(c if c.window is None else replace(c, key_mask=None, mask=None))


@planted(fault, "a row without keys gives the mean of the values", "BUG-003")
def empty_row_gives_mean(c: Call) -> Tensor:
    q, k, v = projected(c)
    o = Options(mask=c.joined(), causal=c.causal, window=c.window)
    ones = attend(q, k, torch.ones_like(v), o)
    mean = v.mean(2, keepdim=True).repeat_interleave(c.heads // c.groups, 1)
    return closed(c, merge(attend(q, k, v, o) + (ones == 0) * mean))


@planted(fault, "biases ignored")
def biases_ignored(c: Call) -> Tensor:
    return right(replace(c, b_q=None, b_k=None, b_v=None, b_o=None))


@planted(fault, "the key bias is added to the values too")
def key_bias_on_values(c: Call) -> Tensor:
    fits = c.b_k is not None and c.w_v.shape[0] == c.w_k.shape[0]
    return right(replace(c, b_v=c.b_k) if fits else c)


@planted(fault, "the output bias is added once a head")
def output_bias_per_head(c: Call) -> Tensor:
    return right(c if c.b_o is None else replace(c, b_o=c.b_o * c.heads))


@planted(fault, "positions ignored")
def positions_ignored(c: Call) -> Tensor:
    return right(replace(c, positions=None))


@planted(fault, "keys are not turned")
def keys_not_turned(c: Call) -> Tensor:
    if c.positions is None:
        return right(c)
    q, k, v = projected(replace(c, positions=None))
    out = attend(turned(q, c.positions, c.base), k, v, Options(mask=c.joined(), causal=c.causal, window=c.window))
    return closed(c, merge(out))


@planted(fault, "values are turned too")
def values_turned(c: Call) -> Tensor:
    q, k, v = projected(c)
    if c.positions is None or v.shape[-1] % 2:
        return right(c)
    out = attend(q, k, turned(v, c.positions, c.base), Options(mask=c.joined(), causal=c.causal, window=c.window))
    return closed(c, merge(out))


@planted(fault, "channels turned in halves where pairs are interleaved", "BUG-103")
def halves_turned(c: Call) -> Tensor:
    if c.positions is None:
        return right(c)
    q, k, v = projected(replace(c, positions=None))

    def halves(x: Tensor) -> Tensor:
        n = x.shape[-1] // 2
        order = torch.stack([torch.arange(n), torch.arange(n) + n], -1).flatten()
        return turned(x[..., order], c.positions, c.base) if c.positions is not None else x

    return closed(c, merge(attend(halves(q), halves(k), v, Options(mask=c.joined(), causal=c.causal, window=c.window))))


@planted(fault, "the base of the angles is fixed at 10000")
def base_ignored(c: Call) -> Tensor:
    return right(replace(c, base=10000.0))


@planted(fault, "positions of the first row serve for every row")
def positions_of_first_row(c: Call) -> Tensor:
    row = c.positions is not None and c.positions.dim() == 2
    return right(replace(c, positions=c.positions[:1].expand(c.positions.shape)) if row and c.positions is not None else c)


@planted(fault, "H need not divide: the rest of the channels is dropped", refuses=False)
def uneven_heads_accepted(c: Call) -> Tensor:
    d = max(1, c.w_q.shape[0] // c.heads)
    if c.w_q.shape[0] % c.heads == 0 and c.heads % c.groups == 0:
        return right(c)
    n = c.heads * d
    return torch.nn.functional.pad(c.x @ c.w_q[:n].mT, (0, 0))[..., : c.x.shape[-1]]


@planted(fault, "no gradient to w_k")
def key_weight_detached(c: Call) -> Tensor:
    return right(replace(c, w_k=c.w_k.detach())) + 0 * c.w_k.sum()


@planted(fault, "the gradient of w_o is that of the first sample")
def output_gradient_of_first_sample(c: Call) -> Tensor:
    merged = merge(by_heads(c)).detach()
    merged = merged if c.w_gate is None else merged * torch.sigmoid(c.x @ c.w_gate.mT).detach()
    first = (torch.arange(c.x.shape[0], device=c.x.device) == 0)[:, None, None]
    part = (merged * first) @ c.w_o.mT
    return right(replace(c, w_o=c.w_o.detach())) + (part - part.detach())


@planted(fault, "the context's gradient is dropped")
def context_detached(c: Call) -> Tensor:
    return right(c) if c.context is None else right(replace(c, context=c.context.detach())) + 0 * c.context.sum()


@planted(fault, "a shared key head's gradient is divided by its query heads")
def grouped_gradient_averaged(c: Call) -> Tensor:
    return right(replace(c, w_k=tampered(c.w_k, lambda g: g * c.groups / c.heads)))


@planted(benign, "q, k and v from one fused product")
def fused_projections(c: Call) -> Tensor:
    biased = any(b is not None for b in (c.b_q, c.b_k, c.b_v))
    if c.context is not None or c.values is not None or biased or c.positions is not None:
        return right(c)
    parts = (c.x @ torch.cat([c.w_q, c.w_k, c.w_v]).mT).split([len(c.w_q), len(c.w_k), len(c.w_v)], -1)
    q, k, v = (split(p, n) for p, n in zip(parts, (c.heads, c.groups, c.groups), strict=True))
    return closed(c, merge(attend(q, k, v, Options(mask=c.joined(), causal=c.causal, window=c.window))))


@planted(benign, "the sum over heads of each head times its slice of w_o")
def sum_over_heads(c: Call) -> Tensor:
    out = by_heads(c)
    width = out.shape[-1]
    gate = torch.ones_like(merge(out)) if c.w_gate is None else torch.sigmoid(c.x @ c.w_gate.mT)
    slices = [slice(h * width, (h + 1) * width) for h in range(c.heads)]
    total = sum(((out[:, h] * gate[..., s]) @ c.w_o[:, s].mT for h, s in enumerate(slices)), torch.zeros_like(c.x))
    return total if c.b_o is None else total + c.b_o


@planted(benign, "key/value heads repeated in the weights")
def heads_repeated_in_weights(c: Call) -> Tensor:
    def repeated(w: Tensor | None) -> Tensor | None:
        return None if w is None else w.reshape(c.groups, -1, *w.shape[1:]).repeat_interleave(
            c.heads // c.groups, 0).reshape(-1, *w.shape[1:])

    w_k, w_v = c.w_k.reshape(c.groups, -1, c.w_k.shape[1]), c.w_v.reshape(c.groups, -1, c.w_v.shape[1])
    k, v = (w.repeat_interleave(c.heads // c.groups, 0).flatten(0, 1) for w in (w_k, w_v))
    return right(replace(c, w_k=k, w_v=v, b_k=repeated(c.b_k), b_v=repeated(c.b_v), groups=c.heads))


@planted(benign, "the scale inside w_q")
def scale_in_weights(c: Call) -> Tensor:
    q, k, v = projected(c)
    scale = q.shape[-1] ** -0.5
    o = Options(mask=c.joined(), causal=c.causal, window=c.window, scale=1.0)
    return closed(c, merge(attend(q * scale, k, v, o)))
