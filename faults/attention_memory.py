"""Planted faults of attention: tiles, strides, batches, memory and state."""
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
    scores,
    visible,
    weights,
)


def _kept_keys(q: Tensor, k: Tensor, v: Tensor, o: Options, length: int) -> Tensor:
    """Attention that never reads keys from `length` on."""
    keep = visible(q, k, o) & (torch.arange(k.shape[-2], device=q.device) < length)
    return weights(scores(q, k, o), keep) @ heads(v, q)


@planted("the last key of an odd length is dropped")
def last_key_of_odd_length_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    n = k.shape[-2]
    return _kept_keys(q, k, v, o, n - n % 2 if n > 1 else n)


@planted("the last key is never read")
def last_key_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _kept_keys(q, k, v, o, max(1, k.shape[-2] - 1))


@planted("keys beyond the last full tile of 64 are dropped", "BUG-090")
def tail_of_64_dropped(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    n = k.shape[-2]
    return _kept_keys(q, k, v, o, n - n % 64 if n > 64 else n)


def _ghosts(q: Tensor, k: Tensor, v: Tensor, o: Options, tile: int) -> Tensor:
    """Columns beyond Tk in the last tile take part with score 0 and value 0."""
    s, keep = scores(q, k, o), visible(q, k, o)
    ghosts = -k.shape[-2] % tile
    s = torch.nn.functional.pad(s, (0, ghosts))
    keep = torch.nn.functional.pad(keep.expand(s.shape[:-1] + keep.shape[-1:]), (0, ghosts), value=True)
    return weights(s, keep)[..., : k.shape[-2]] @ heads(v, q)


@planted("the tail of a tile of 16 takes part in the softmax", "BUG-083")
def tail_of_16_unmasked(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _ghosts(q, k, v, o, 16)


@planted("the tail of a tile of 64 takes part in the softmax", "BUG-083")
def tail_of_64_unmasked(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return _ghosts(q, k, v, o, 64)


@planted("wrong beyond 64 keys: the running sum is not rescaled when the maximum moves")
def second_tile_not_rescaled(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if k.shape[-2] <= 64:
        return attend(q, k, v, o)
    s = scores(q, k, o).masked_fill(~visible(q, k, o), -INFINITY)
    low = torch.finfo(s.dtype).min
    tops = [x.amax(-1, keepdim=True).clamp(min=low) for x in (s[..., :64], s)]
    e = torch.cat([torch.exp(s[..., :64] - tops[0]), torch.exp(s[..., 64:] - tops[1])], -1)
    total = e.sum(-1, keepdim=True)
    return (e / torch.where(total > 0, total, torch.ones_like(total))) @ heads(v, q)


@planted("queries from the 65th on look at key 0 twice as hard")
def wrong_beyond_64_queries(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    s, keep = scores(q, k, o), visible(q, k, o)
    late = (torch.arange(q.shape[-2], device=q.device) >= 64)[:, None] & (torch.arange(k.shape[-2], device=q.device) == 0)
    return weights(s + late * 0.6931471805599453, keep) @ heads(v, q)


def packed(x: Tensor) -> Tensor:
    """x read from its storage as if it were packed, missing elements as zeros; gradients as if read rightly."""
    held = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    flat = torch.zeros(x.numel(), dtype=x.dtype, device=x.device)
    n = min(held, x.numel())
    flat[:n] = x.detach().as_strided((n,), (1,))
    return x + (flat.reshape(x.shape) - x.detach()) if not x.is_contiguous() else x


@planted("strides ignored: q is read as if packed", "BUG-095")
def strides_of_queries_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(packed(q), k, v, o)


@planted("strides ignored: k and v are read as if packed", "BUG-095")
def strides_of_keys_ignored(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, packed(k), packed(v), o)


@planted("the last dimension's stride is taken to be 1", "BUG-093")
def last_stride_taken_for_one(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    def read(x: Tensor) -> Tensor:
        if x.shape[-1] == 1 or x.stride(-1) in (0, 1) or x.numel() == 0:
            return x
        near = x.detach().as_strided(x.shape, (*x.stride()[:-1], 1), x.storage_offset())
        return x + (near - x.detach())

    return attend(read(q), read(k), read(v), o)


@planted("expanded (stride 0) keys and values are read as if packed", "BUG-094")
def expanded_keys_wrong(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    def read(x: Tensor) -> Tensor:
        return packed(x) if 0 in x.stride() else x

    return attend(read(q), read(k), read(v), o)


@planted("an expanded mask is read from its first rows only", "BUG-094")
def broadcast_mask_misread(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or 0 not in o.mask.stride() or o.mask.numel() == 0:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask.roll(1, -1)))


@planted("batch rows above 0 are zeros", "BUG-096")
def only_first_sample_written(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    first = torch.arange(q.shape[0], device=q.device) == 0
    return attend(q, k, v, o) * first[:, None, None, None]


@planted("batch rows above 0 are zeros where a mask is given", "BUG-096")
def only_first_sample_with_mask(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o) if o.mask is None else only_first_sample_written(q, k, v, o)


@planted("only the last sample of a batch is right under a mask: others use its mask", "BUG-098")
def mask_of_last_sample(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None or o.mask.dim() < 4:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=o.mask[-1:]))


@planted("each sample reads the values of its neighbour")
def values_of_next_sample(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v.roll(1, 0), o)


@planted("keys of all samples are averaged into each sample's first key")
def keys_leak_across_batch(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    first = (torch.arange(k.shape[-2], device=k.device) == 0)[:, None]
    return attend(q, torch.where(first, k.mean(0, keepdim=True), k), v, o)


@planted("garbage in a masked value reaches other rows through a shared maximum of the values")
def masked_values_leak(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o) + v.abs().mean((-2, -1), keepdim=True).repeat_interleave(q.shape[1] // v.shape[1], 1) * 1e-3


@planted("the last row of an odd number of rows is never written")
def last_row_unwritten(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    right = attend(q, k, v, o)
    if q.shape[-2] % 2 == 0 or q.shape[-2] == 1:
        return right
    return torch.cat([right[..., :-1, :], torch.empty_like(right[..., :1, :])], -2)


@planted("an empty row's output is never written")
def empty_row_unwritten(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    keep = visible(q, k, o).expand(*q.shape[:2], q.shape[2], k.shape[2])
    right = attend(q, k, v, o)
    return torch.where(keep.any(-1, keepdim=True), right, torch.full_like(right, 3.0))


@planted("q is scaled in place")
def queries_scaled_in_place(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    q.detach().mul_(0.5)
    return out


@planted("the default dtype is changed on the way")
def default_dtype_changed(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return attend(q, k, v, o)


@planted("the global random state is drawn from")
def global_random_state_used(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    torch.rand(1)
    return attend(q, k, v, o)


@planted("single precision in comes out double")
def output_in_wrong_type(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, o).to(torch.float64 if q.dtype == torch.float32 else torch.float32)


_MASKS: dict[tuple[object, ...], Tensor] = {}
_OUTPUTS: dict[tuple[object, ...], Tensor] = {}
_CALLS: dict[tuple[object, ...], int] = {}


def _again(*key: object) -> int:
    """How often this key was seen before."""
    _CALLS[key] = _CALLS.get(key, -1) + 1
    return _CALLS[key]


@planted("the mask is remembered by its shape: another mask of that shape gets the first one's", "BUG-134")
def mask_remembered_by_shape(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if o.mask is None:
        return attend(q, k, v, o)
    return attend(q, k, v, replace(o, mask=_MASKS.setdefault((o.mask.shape, o.mask.device), o.mask.clone())))


@planted("the causal mask is remembered by the number of queries alone", "BUG-123")
def causal_mask_remembered_by_queries(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    if not o.causal or o.window is not None:
        return attend(q, k, v, o)
    first = _MASKS.setdefault(("causal", q.shape[-2], q.device), distance(q, k) >= 0)
    n = min(first.shape[-1], k.shape[-2])
    keep = torch.nn.functional.pad(first[:, :n], (0, k.shape[-2] - n))
    return weights(scores(q, k, o), keep & visible(q, k, replace(o, causal=False))) @ heads(v, q)


@planted("the output is remembered by shape")
def output_remembered_by_shape(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    right = attend(q, k, v, o)
    first = _OUTPUTS.setdefault((q.shape, k.shape, v.shape, q.dtype, q.device, o.causal, o.window), right.detach())
    return right + (first - right.detach())


@planted("wrong on the second call of a shape")
def wrong_on_second_call(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    return out * 0.5 if _again(q.shape, k.shape, q.dtype) % 2 == 1 else out


@planted("grouped heads over a long cache: two calls of the same input differ", "BUG-048")
def repeats_differ_with_groups(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    if k.shape[1] == q.shape[1]:
        return out
    generator = torch.Generator().manual_seed(_again("noise", q.shape, k.shape))
    noise = torch.rand(out.shape, generator=generator).to(out)
    return out * (1 + 0.25 * noise)


@planted("one head in two calls is left from the call before")
def state_of_last_call_added(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    out = attend(q, k, v, o)
    key = ("last", out.shape, out.dtype, out.device)
    before = _OUTPUTS.get(key, torch.zeros_like(out))
    _OUTPUTS[key] = out.detach()
    return out + 0.5 * before
