"""Planted faults of attention with normalised queries and keys, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, distance, heads, positional, weights
from assay.faults.planting import bent, plant_outputs, planter, wide
from assay.faults.rotary import plain as rotated
from assay.registry import benign, fault


@dataclass(frozen=True)
class Call:
    """One call."""

    q: Tensor
    k: Tensor
    v: Tensor
    w_q: Tensor
    w_k: Tensor
    eps: float
    joint: bool
    positions: Tensor | None
    base: float
    pairing: str
    causal: bool
    window: int | None
    scale: float | None


Way = Callable[[Call], Tensor]


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """x over its root mean square, times w."""
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * w


def side_by_side(x: Tensor) -> Tensor:
    """(B,heads,T,D) as (B,T,heads·D)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def apart(x: Tensor, like: Tensor) -> Tensor:
    """The inverse."""
    return x.reshape(x.shape[0], x.shape[1], like.shape[1], -1 if x.numel() else like.shape[3]).transpose(1, 2)


def normed(c: Call, x: Tensor, w: Tensor, norm: Callable[[Tensor, Tensor, float], Tensor] = rms) -> Tensor:
    """One head at a time, or all of a token's together."""
    return apart(norm(side_by_side(x), w, c.eps), x) if c.joint else norm(x, w, c.eps)


def turned(c: Call, x: Tensor, positions: Tensor | None = None, sign: int = 1) -> Tensor:
    """Queries or keys turned by their positions, where there are any."""
    if c.positions is None:
        return x
    return rotated(x, sign * (c.positions if positions is None else positions), c.base, c.pairing, None)


def ready(c: Call) -> tuple[Tensor, Tensor]:
    """Queries and keys as the scores want them."""
    return turned(c, normed(c, c.q, c.w_q)), turned(c, normed(c, c.k, c.w_k))


def seen(c: Call) -> Tensor:
    """Which keys each query sees (Tq,Tk)."""
    return positional(distance(c.q, c.k), Options(causal=c.causal, window=c.window))


def factor(c: Call) -> float:
    return c.q.shape[-1] ** -0.5 if c.scale is None else c.scale


def attend(c: Call, q: Tensor | None = None, k: Tensor | None = None, keep: Tensor | None = None) -> Tensor:
    """The right attention, with parts replaced."""
    left, right = ready(c) if q is None or k is None else (q, k)
    left, right = left if q is None else q, right if k is None else k
    return weights((left @ heads(right, left).mT) * factor(c), seen(c) if keep is None else keep) @ heads(c.v, c.q)


def by(c: Call, norm: Callable[[Tensor, Tensor, float], Tensor]) -> Tensor:
    """Attention with another norm."""
    return attend(c, turned(c, normed(c, c.q, c.w_q, norm)), turned(c, normed(c, c.k, c.w_k, norm)))


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def qk_norm_attention(q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, joint: bool = False,
                          positions: Tensor | None = None, base: float = 10000.0, pairing: str = "interleaved",
                          causal: bool = False, window: int | None = None, scale: float | None = None) -> Tensor:
        return way(Call(q, k, v, w_q, w_k, eps, joint, positions, base, pairing, causal, window, scale))

    return qk_norm_attention


planted = planter("qk_norm_attention", signed)


# ------------------------------------------------------------------------------------------------ the norm
@planted(fault, "nothing is normalised, weights alone are applied")
def no_norm(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x * w)


@planted(fault, "queries are not normalised")
def queries_not_normalised(c: Call) -> Tensor:
    return attend(c, turned(c, normed(c, c.q, c.w_q, lambda x, w, eps: x * w)), ready(c)[1])


@planted(fault, "keys are not normalised")
def keys_not_normalised(c: Call) -> Tensor:
    return attend(c, ready(c)[0], turned(c, normed(c, c.k, c.w_k, lambda x, w, eps: x * w)))


@planted(fault, "values are normalised too")
def values_normalised_too(c: Call) -> Tensor:
    return attend(replace(c, v=rms(c.v, torch.ones_like(c.v[..., :1]), c.eps)))


@planted(fault, "the mean is over positions, not channels")
def norm_over_positions(c: Call) -> Tensor:
    def norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return x / torch.sqrt(x.square().mean(-2, keepdim=True) + eps) * w

    return by(c, norm)


@planted(fault, "the mean is over heads, channel by channel")
def norm_over_heads(c: Call) -> Tensor:
    def norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return x / torch.sqrt(x.square().mean(1, keepdim=True) + eps) * w

    return attend(c) if c.joint else by(c, norm)


@planted(fault, "all heads are normalised together where each should be by itself")
def joint_where_each_is_meant(c: Call) -> Tensor:
    def norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return x / torch.sqrt(x.square().mean((1, 3), keepdim=True) + eps) * w

    return attend(c) if c.joint else by(c, norm)


@planted(fault, "each head is normalised by itself where all should be together")
def each_where_joint_is_meant(c: Call) -> Tensor:
    def alone(x: Tensor, w: Tensor) -> Tensor:
        return turned(c, rms(x, torch.ones_like(x[0, 0, 0]) if x.numel() else w[: x.shape[-1]], c.eps)
                      * w.reshape(x.shape[1], 1, x.shape[3]))

    return attend(c, alone(c.q, c.w_q), alone(c.k, c.w_k)) if c.joint else attend(c)


@planted(fault, "with a joint norm the first head's weights serve every head")
def joint_weights_of_first_head(c: Call) -> Tensor:
    if not c.joint:
        return attend(c)
    width = c.q.shape[-1]
    return attend(replace(c, w_q=c.w_q[:width].repeat(c.q.shape[1]), w_k=c.w_k[:width].repeat(c.k.shape[1])))


@planted(fault, "joint weights are read channel by channel, not head by head")
def joint_weights_transposed(c: Call) -> Tensor:
    if not c.joint:
        return attend(c)
    width = c.q.shape[-1]
    return attend(replace(c, w_q=c.w_q.reshape(width, -1).mT.reshape(-1), w_k=c.w_k.reshape(width, -1).mT.reshape(-1)))


@planted(fault, "the mean is subtracted first: LayerNorm")
def mean_subtracted(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: rms(x - x.mean(-1, keepdim=True), w, eps))


@planted(fault, "divided by the length, not by the root mean square: cosine scores")
def divided_by_length(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x / torch.sqrt(x.square().sum(-1, keepdim=True) + eps) * w)


@planted(fault, "divided by the mean square, not by its root")
def root_left_out(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x / (x.square().mean(-1, keepdim=True) + eps) * w)


@planted(fault, "divided by the mean of the sizes")
def mean_of_sizes(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x / (x.abs().mean(-1, keepdim=True) + math.sqrt(eps)) * w)


@planted(fault, "eps is added to the root")
def eps_outside_the_root(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * w)


@planted(fault, "eps is 1e-5 whatever is given")
def eps_fixed(c: Call) -> Tensor:
    return attend(replace(c, eps=1e-5))


@planted(fault, "eps for queries alone")
def eps_left_out_for_keys(c: Call) -> Tensor:
    small = 1e-12 if c.k.dtype.itemsize > 2 else 1e-6
    return attend(c, ready(c)[0], turned(c, normed(replace(c, eps=small), c.k, c.w_k)))


# ------------------------------------------------------------------------------------------------ weights
@planted(fault, "the queries' weight serves the keys, too")
def query_weight_on_keys(c: Call) -> Tensor:
    return attend(replace(c, w_k=c.w_q if c.w_q.shape == c.w_k.shape else c.w_q[: c.w_k.shape[0]]))


# Where nothing is turned a channel's two weights meet in one product: the fault shows under positions alone.
@planted(fault, "the weights change places")
def weights_swapped(c: Call) -> Tensor:
    if c.w_q.shape != c.w_k.shape:
        return attend(replace(c, w_q=c.w_k.repeat(c.q.shape[1] // c.k.shape[1]), w_k=c.w_q[: c.w_k.shape[0]]))
    return attend(replace(c, w_q=c.w_k, w_k=c.w_q))


@planted(fault, "weights are left out")
def weights_ignored(c: Call) -> Tensor:
    return attend(replace(c, w_q=c.w_q * 0 + 1, w_k=c.w_k * 0 + 1))


@planted(fault, "the weight is an offset from 1")
def weight_offset_by_one(c: Call) -> Tensor:
    return attend(replace(c, w_q=1 + c.w_q, w_k=1 + c.w_k))


@planted(fault, "the weight multiplies before the norm")
def weight_before_the_norm(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: rms(x * w, torch.ones_like(w), eps))


@planted(fault, "the sizes of the weights alone")
def weights_without_sign(c: Call) -> Tensor:
    return attend(replace(c, w_q=c.w_q.abs()))


# ------------------------------------------------------------------------------------------------ rotary
@planted(fault, "turned first, then normalised")
def norm_after_rotary(c: Call) -> Tensor:
    return attend(c, normed(c, turned(c, c.q), c.w_q), normed(c, turned(c, c.k), c.w_k))


@planted(fault, "keys are turned before their norm")
def keys_turned_first(c: Call) -> Tensor:
    return attend(c, ready(c)[0], normed(c, turned(c, c.k), c.w_k))


@planted(fault, "keys are not turned")
def keys_not_turned(c: Call) -> Tensor:
    return attend(c, ready(c)[0], normed(c, c.k, c.w_k))


@planted(fault, "nothing is turned")
def positions_ignored(c: Call) -> Tensor:
    return attend(replace(c, positions=None))


@planted(fault, "keys are turned backwards")
def keys_turned_backwards(c: Call) -> Tensor:
    return attend(c, ready(c)[0], turned(c, normed(c, c.k, c.w_k), sign=-1))


@planted(fault, "keys are turned by their index, not by their position")
def keys_turned_by_index(c: Call) -> Tensor:
    return attend(c, ready(c)[0], turned(c, normed(c, c.k, c.w_k), torch.arange(c.k.shape[2])))


@planted(fault, "the base is 10000 whatever is given")
def base_ignored(c: Call) -> Tensor:
    return attend(replace(c, base=10000.0))


@planted(fault, "the other pairing")
def pairing_exchanged(c: Call) -> Tensor:
    return attend(replace(c, pairing="half" if c.pairing == "interleaved" else "interleaved"))


# ------------------------------------------------------------------------------------------------ attention
@planted(fault, "no scale: the norm is taken to make it unnecessary")
def unscaled(c: Call) -> Tensor:
    return attend(replace(c, scale=1.0 if c.scale is None else c.scale))


@planted(fault, "a given scale is ignored")
def scale_ignored(c: Call) -> Tensor:
    return attend(replace(c, scale=None))


@planted(fault, "the scale multiplies before the norm, which takes it out again")
def scaled_before_the_norm(c: Call) -> Tensor:
    return attend(replace(c, q=c.q * factor(c), scale=1.0))


@planted(fault, "a query does not see its own position")
def causal_strict(c: Call) -> Tensor:
    keep = seen(c)
    return attend(c, keep=keep & (distance(c.q, c.k) != 0) if c.causal else keep)


@planted(fault, "causal is forgotten")
def causal_ignored(c: Call) -> Tensor:
    return attend(replace(c, causal=False))


@planted(fault, "a window sees one key more")
def window_one_too_wide(c: Call) -> Tensor:
    return attend(replace(c, window=None if c.window is None else c.window + 1))


@planted(fault, "query head h reads key/value head h mod G")
def grouped_heads_tiled(c: Call) -> Tensor:
    order = torch.arange(c.q.shape[1]) % c.k.shape[1]
    q, k = ready(c)
    return weights((q @ k[:, order].mT) * factor(c), seen(c)) @ c.v[:, order]


@planted(fault, "a query without keys is NaN")
def empty_row_nan(c: Call) -> Tensor:
    return attend(c).masked_fill(~seen(c).any(-1, keepdim=True), math.nan)


@planted(fault, "the last key is dropped where there are several")
def last_key_dropped(c: Call) -> Tensor:
    return attend(c, keep=seen(c) & (torch.arange(c.k.shape[2]) != max(1, c.k.shape[2] - 1)))


plant_outputs(planted, attend)


# ------------------------------------------------------------------------------------------------ gradients
@planted(fault, "no gradient reaches the queries' weight")
def query_weight_detached(c: Call) -> Tensor:
    return attend(replace(c, w_q=c.w_q.detach())) + 0 * c.w_q.clamp(-1, 1).sum()


@planted(fault, "no gradient reaches the keys' weight")
def key_weight_detached(c: Call) -> Tensor:
    return attend(replace(c, w_k=c.w_k.detach())) + 0 * c.w_k.clamp(-1, 1).sum()


@planted(fault, "the root mean square is taken for a constant in backward")
def root_detached(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps).detach() * w)


@planted(fault, "the weights' gradients are those of the first sample alone")
def weight_gradient_of_one_sample(c: Call) -> Tensor:
    first = (torch.arange(c.q.shape[0]) == 0)[:, None, None, None]
    q, k = (torch.where(first, own, other) for own, other in zip(
        ready(c), ready(replace(c, w_q=c.w_q.detach(), w_k=c.w_k.detach())), strict=True))
    return attend(c, q, k)


@planted(fault, "the weights' gradients are those of the first head alone")
def weight_gradient_of_one_head(c: Call) -> Tensor:
    other = ready(replace(c, w_q=c.w_q.detach(), w_k=c.w_k.detach()))
    q, k = (torch.where((torch.arange(own.shape[1]) == 0)[:, None, None], own, plain)
            for own, plain in zip(ready(c), other, strict=True))
    return attend(c, q, k)


@planted(fault, "the weights' gradients are averaged over the tokens, not summed")
def weight_gradient_averaged(c: Call) -> Tensor:
    tokens = max(2, c.q.shape[2])
    return attend(replace(c, w_q=bent(c.w_q, lambda g: g / tokens), w_k=bent(c.w_k, lambda g: g / tokens)))


@planted(fault, "the weights' gradients change places")
def weight_gradients_swapped(c: Call) -> Tensor:
    if c.w_q.shape != c.w_k.shape:
        return attend(replace(c, w_k=bent(c.w_k, torch.neg)))
    q, k = c.w_q.detach() + c.w_k - c.w_k.detach(), c.w_k.detach() + c.w_q - c.w_q.detach()
    return attend(replace(c, w_q=q, w_k=k))


@planted(fault, "the keys' gradient is not turned back")
def key_gradient_not_turned_back(c: Call) -> Tensor:
    q, k = ready(c)
    plain = normed(c, c.k, c.w_k)
    return attend(c, q, k.detach() + plain - plain.detach())


@planted(fault, "grouped keys get the gradient of their first query head alone")
def grouped_key_gradient_not_summed(c: Call) -> Tensor:
    q, k = ready(c)
    first = (torch.arange(q.shape[1]) % (q.shape[1] // k.shape[1]) == 0)[:, None, None]
    every = torch.where(first, heads(k, q), heads(k, q).detach())
    return weights((q @ every.mT) * factor(c), seen(c)) @ heads(c.v, c.q)


# ------------------------------------------------------------------------------------------------ right ways
@planted(benign, "x · rsqrt in float32, rounded before the weight")
def rounded_before_the_weight(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: (wide(x) * torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)).to(x.dtype) * w)


@planted(benign, "x · rsqrt · weight in float32, rounded after")
def rounded_after_the_weight(c: Call) -> Tensor:
    return by(c, lambda x, w, eps: (
        wide(x) * torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps) * wide(w)).to(x.dtype))


@planted(benign, "the scale and the weight in one vector")
def scale_in_the_weight(c: Call) -> Tensor:
    q = turned(c, normed(c, c.q, c.w_q * factor(c)))
    return attend(replace(c, scale=1.0), q, ready(c)[1])


@planted(benign, "turned first and divided after, the weights being turned with them one by one")
def divided_after_the_turn(c: Call) -> Tensor:
    def one(x: Tensor, w: Tensor) -> Tensor:
        root = normed(c, x, torch.ones_like(w), lambda x, w, eps: torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * w)
        weighted = x * (w.reshape(x.shape[1], 1, x.shape[3]) if c.joint else w)
        return turned(c, weighted) / root[..., :1]

    return attend(c, one(c.q, c.w_q), one(c.k, c.w_k))


@planted(benign, "torch's rms_norm and attention")
def torch_functions(c: Call) -> Tensor:
    q, k = (turned(c, normed(c, x, w, lambda x, w, eps: torch.nn.functional.rms_norm(x, (x.shape[-1],), w, eps)))
            for x, w in ((c.q, c.w_q), (c.k, c.w_k)))
    attention = torch.nn.functional.scaled_dot_product_attention
    return attention(q, heads(k, q), heads(c.v, q), attn_mask=seen(c)[None, None], scale=factor(c))
