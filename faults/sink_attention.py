"""Planted faults of attention with sinks, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, distance, heads, positional, weights
from assay.faults.planting import bent, plant_outputs, planter
from assay.registry import benign, fault


@dataclass(frozen=True)
class Call:
    """One call."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor
    causal: bool
    window: int | None
    scale: float


Way = Callable[[Call], Tensor]


def scores(c: Call, k: Tensor | None = None) -> Tensor:
    """Scores (B,H,Tq,Tk), minus infinity where a key is not seen."""
    keys = heads(c.k, c.q) if k is None else k
    seen = positional(distance(c.q, keys), Options(causal=c.causal, window=c.window))
    return ((c.q @ keys.mT) * c.scale).masked_fill(~seen, -math.inf)


def column(c: Call, sinks: Tensor | None = None) -> Tensor:
    """The sinks as one more column of scores (B,H,Tq,1)."""
    given = c.sinks if sinks is None else sinks
    return given[None, :, None, None].expand(*c.q.shape[:3], 1)


def shares(s: Tensor, sink: Tensor) -> Tensor:
    """Softmax over keys and sink, the sink's share dropped."""
    return torch.softmax(torch.cat([s, sink], -1), -1)[..., : s.shape[-1]]


def attend(c: Call, sinks: Tensor | None = None, s: Tensor | None = None) -> Tensor:
    """The right attention, with parts replaced."""
    return shares(scores(c) if s is None else s, column(c, sinks)) @ heads(c.v, c.q)


def plain(c: Call) -> tuple[Tensor, Tensor]:
    """Attention without sinks and the log-sum-exp of the scores; rows that see no key give zeros and minus infinity."""
    s = scores(c)
    seen = ~torch.isneginf(s)
    empty = ~seen.any(-1, keepdim=True)
    lse = torch.logsumexp(s.masked_fill(empty, 0.0), -1, keepdim=True).masked_fill(empty, -math.inf)
    return weights(s, seen) @ heads(c.v, c.q), lse


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def sink_attention(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *, causal: bool = False, window: int | None = None,
                       scale: float | None = None) -> Tensor:
        if sinks.shape != (q.shape[1],) or q.shape[1] % k.shape[1]:
            raise ValueError(f"sinks={tuple(sinks.shape)} must be one logit a head")
        return way(Call(q, k, v, sinks, causal, window, q.shape[-1] ** -0.5 if scale is None else scale))

    return sink_attention


planted = planter("sink_attention", signed)


@planted(fault, "the sinks take no part")
def sinks_ignored(c: Call) -> Tensor:
    return plain(c)[0] + 0 * c.sinks.clamp(-1, 1).sum()


@planted(fault, "the sink is scaled like a score")
def sink_scaled(c: Call) -> Tensor:
    return attend(c, c.sinks * c.scale)


@planted(fault, "a sink of zero, whatever was learned: the off-by-one softmax")
def sink_always_zero(c: Call) -> Tensor:
    return attend(c, c.sinks * 0)


@planted(fault, "the sink enters with the other sign")
def sink_negated(c: Call) -> Tensor:
    return attend(c, -c.sinks)


@planted(fault, "the sink is counted in each of two tiles of keys: twice in the sum")
def sink_counted_twice(c: Call) -> Tensor:
    return attend(c, c.sinks + math.log(2))


@planted(fault, "the first head's sink serves every head")
def sink_of_first_head(c: Call) -> Tensor:
    return attend(c, c.sinks[:1].expand(c.sinks.shape))


@planted(fault, "one sink a key/value head: that of the group's first query head")
def sinks_by_group(c: Call) -> Tensor:
    times = c.q.shape[1] // c.k.shape[1]
    return attend(c, c.sinks[::times].repeat_interleave(times))


@planted(fault, "every head reads the next head's sink")
def sinks_shifted_by_one_head(c: Call) -> Tensor:
    return attend(c, c.sinks.roll(-1))


@planted(fault, "the mean of the sinks serves every head")
def sinks_averaged(c: Call) -> Tensor:
    return attend(c, c.sinks.mean().expand(c.sinks.shape))


@planted(fault, "the sink's logit, not its exponential, is added to the sum")
def sink_subtracts_its_logit(c: Call) -> Tensor:
    s = scores(c)
    top = torch.cat([s, column(c)], -1).amax(-1, keepdim=True)
    e = torch.exp(s - top)
    return e / (e.sum(-1, keepdim=True) + column(c).abs()) @ heads(c.v, c.q)


@planted(fault, "the sink's share goes to the mean of the values")
def sink_value_is_mean(c: Call) -> Tensor:
    if not c.k.shape[-2]:
        return attend(c)
    w = shares(scores(c), column(c))
    return w @ heads(c.v, c.q) + (1 - w.sum(-1, keepdim=True)) * heads(c.v, c.q).mean(-2, keepdim=True)


@planted(fault, "the causal mask hides the sink from the first queries")
def sink_hidden_by_causality(c: Call) -> Tensor:
    place = torch.arange(c.q.shape[-2])[:, None]
    hidden = (place == 0) & torch.tensor(c.causal or c.window is not None)
    s = scores(c)
    empty = torch.isneginf(s).all(-1, keepdim=True)
    return shares(s, column(c).masked_fill(hidden & ~empty, -math.inf)) @ heads(c.v, c.q)


@planted(fault, "sinks below −8 are raised to it")
def sink_clamped(c: Call) -> Tensor:
    return attend(c, c.sinks.clamp(-8, 8))


@planted(fault, "the maximum is taken over the scores alone: a high sink overflows")
def sink_left_out_of_maximum(c: Call) -> Tensor:
    s = scores(c)
    if not s.shape[-1]:
        return attend(c)
    top = s.amax(-1, keepdim=True)
    top = torch.where(top.isfinite(), top, column(c))
    e, extra = torch.exp(s - top), torch.exp(column(c) - top)
    total = e.sum(-1, keepdim=True) + extra
    return (e @ heads(c.v, c.q)) * (1 / total) * (1 + 0 * extra)


@planted(fault, "no maximum is subtracted")
def no_shift(c: Call) -> Tensor:
    e = torch.exp(scores(c))
    return e / (e.sum(-1, keepdim=True) + torch.exp(column(c))) @ heads(c.v, c.q)


@planted(fault, "the sink takes the place of the first key")
def sink_in_place_of_first_key(c: Call) -> Tensor:
    s = scores(c)
    return attend(c, s=torch.cat([s[..., :1].masked_fill(torch.tensor(s.shape[-1] > 1), -math.inf), s[..., 1:]], -1))


@planted(fault, "the last key is dropped where there are several")
def last_key_dropped(c: Call) -> Tensor:
    s = scores(c)
    last = torch.arange(s.shape[-1]) == max(1, s.shape[-1] - 1)
    return attend(c, s=s.masked_fill(last, -math.inf))


@planted(fault, "a window sees one key more")
def window_one_too_wide(c: Call) -> Tensor:
    return attend(replace(c, window=None if c.window is None else c.window + 1))


@planted(fault, "a query does not see its own position")
def causal_strict(c: Call) -> Tensor:
    if not c.causal and c.window is None:
        return attend(c)
    return attend(c, s=scores(c).masked_fill(distance(c.q, c.k) == 0, -math.inf))


@planted(fault, "a given scale is ignored")
def scale_ignored(c: Call) -> Tensor:
    return attend(replace(c, scale=c.q.shape[-1] ** -0.5))


@planted(fault, "query head h reads key/value head h mod G")
def grouped_heads_tiled(c: Call) -> Tensor:
    order = torch.arange(c.q.shape[1]) % c.k.shape[1]
    return attend(replace(c, k=c.k[:, order], v=c.v[:, order]))


@planted(fault, "attention times σ(sink − lse), the gate upside down")
def gate_upside_down(c: Call) -> Tensor:
    out, lse = plain(c)
    return out * torch.sigmoid(column(c) - lse)


@planted(fault, "a query without keys is NaN: its gate is σ(−∞) of 0/0")
def empty_row_nan(c: Call) -> Tensor:
    out = attend(c)
    return out.masked_fill(torch.isneginf(scores(c)).all(-1, keepdim=True), math.nan) if c.k.shape[-2] else out


@planted(fault, "a query without keys gets the mean of the values: the mask is a large negative number beside a masked sink")
def empty_row_mean(c: Call) -> Tensor:
    if not c.k.shape[-2]:
        return attend(c)
    empty = torch.isneginf(scores(c)).all(-1, keepdim=True)
    return torch.where(empty, heads(c.v, c.q).mean(-2, keepdim=True), attend(c))


plant_outputs(planted, attend)


@planted(fault, "no gradient reaches the sinks")
def sinks_detached(c: Call) -> Tensor:
    return attend(c, c.sinks.detach()) + 0 * c.sinks.clamp(-1, 1).sum()


@planted(fault, "the sinks' gradient has the other sign")
def sink_gradient_negated(c: Call) -> Tensor:
    return attend(c, bent(c.sinks, torch.neg))


@planted(fault, "the sinks' gradient is that of the first sample alone")
def sink_gradient_of_one_sample(c: Call) -> Tensor:
    rest = torch.arange(c.q.shape[0])[:, None, None, None] == 0
    sink = column(c)
    return shares(scores(c), torch.where(rest, sink, sink.detach())) @ heads(c.v, c.q)


@planted(fault, "the sinks' gradient is a mean over the queries in place of a sum")
def sink_gradient_averaged(c: Call) -> Tensor:
    return attend(c, bent(c.sinks, lambda g: g / max(2, c.q.shape[-2])))


@planted(fault, "the scores' gradient is normalised over the keys alone, as if there were no sink")
def row_sum_without_sink(c: Call) -> Tensor:
    def change(g: Tensor) -> Tensor:
        w = torch.nan_to_num(torch.softmax(scores(c), -1)).detach()
        return g - w * g.sum(-1, keepdim=True)

    s = scores(c)
    return attend(c, s=bent(s, change))


@planted(fault, "grouped keys get the gradient of their first query head alone")
def grouped_key_gradient_not_summed(c: Call) -> Tensor:
    times = c.q.shape[1] // c.k.shape[1]
    first = (torch.arange(c.q.shape[1]) % times == 0)[:, None, None]
    return attend(c, s=scores(c, torch.where(first, heads(c.k, c.q), heads(c.k, c.q).detach())))


@planted(benign, "attention without sinks, times σ(lse − sink)")
def gate_of_the_log_sum(c: Call) -> Tensor:
    out, lse = plain(c)
    return out * torch.sigmoid(lse - column(c)) if c.k.shape[-2] else attend(c)


@planted(benign, "the sink is a first key of its own score and value 0, its channel beside the others")
def sink_as_a_key(c: Call) -> Tensor:
    s = torch.cat([column(c), scores(c)], -1)
    v = torch.nn.functional.pad(heads(c.v, c.q), (0, 0, 1, 0))
    return torch.softmax(s, -1) @ v


@planted(benign, "tile by tile with a running maximum that begins at the sink, sums kept in the type",
         arithmetic={"accumulate": "input"})
def online_from_the_sink(c: Call) -> Tensor:
    s, values, top = scores(c), heads(c.v, c.q), column(c)
    total, out = torch.ones_like(top), c.q.new_zeros(*c.q.shape[:3], c.v.shape[-1])
    for tile, v in zip(s.split(8, -1), values.split(8, -2), strict=True) if s.shape[-1] else ():
        new = torch.maximum(top, tile.amax(-1, keepdim=True))
        p, old = torch.exp(tile - new), torch.exp(top - new)
        total, out, top = total * old + p.sum(-1, keepdim=True), out * old + p @ v, new
    return out / total


@planted(benign, "powers of two, in float32, the shift that of the largest score or sink", arithmetic={"internal": "float32"})
def powers_of_two(c: Call) -> Tensor:
    wide = torch.promote_types(c.q.dtype, torch.float32)
    up = replace(c, q=c.q.to(wide), k=c.k.to(wide), v=c.v.to(wide), sinks=c.sinks.to(wide))
    s, sink = scores(up) / math.log(2), column(up) / math.log(2)
    top = torch.cat([s, sink], -1).amax(-1, keepdim=True).detach()
    e = torch.exp2(s - top)
    return (e @ heads(up.v, up.q) / (e.sum(-1, keepdim=True) + torch.exp2(sink - top))).to(c.q.dtype)
