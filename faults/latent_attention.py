"""Planted faults of multi-head latent attention, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.planting import plant_outputs, planter, wide
from assay.faults.qk_norm_attention import rms
from assay.faults.rotary import plain as rotated
from assay.registry import benign, fault


@dataclass(frozen=True)
class Call:
    """One call."""

    x: Tensor
    w_q: Tensor
    w_kv_a: Tensor
    w_kv_norm: Tensor
    w_kv_b: Tensor
    w_o: Tensor
    heads: int
    w_q_a: Tensor | None
    w_q_norm: Tensor | None
    positions: Tensor | None
    base: float
    pairing: str
    causal: bool
    scale: float | None
    eps: float

    @property
    def kept(self) -> int:
        """Numbers of the latent."""
        return self.w_kv_norm.shape[0]

    @property
    def turns(self) -> int:
        """Numbers of the rotary key."""
        return self.w_kv_a.shape[0] - self.kept

    @property
    def own(self) -> int:
        """Numbers of a head's key that are not turned."""
        return self.w_q.shape[0] // self.heads - self.turns

    @property
    def factor(self) -> float:
        return (self.own + self.turns) ** -0.5 if self.scale is None else self.scale


Way = Callable[[Call], Tensor]


@dataclass(frozen=True)
class Parts:
    """q, k (B,H,T,N); p, r (B,H,T,R), turned; v (B,H,T,Dv)."""

    q: Tensor
    p: Tensor
    k: Tensor
    r: Tensor
    v: Tensor


def split(x: Tensor, heads: int) -> Tensor:
    """(B,T,heads·width) to (B,heads,T,width)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def turned(c: Call, x: Tensor, sign: int = 1) -> Tensor:
    """(B,heads,T,R) turned by its positions."""
    return x if c.positions is None else rotated(x, sign * c.positions, c.base, c.pairing, None)


def queries(c: Call) -> Tensor:
    """Queries (B,H,T,N+R) before they are turned."""
    source = c.x
    if c.w_q_a is not None and c.w_q_norm is not None:
        source = rms(c.x @ c.w_q_a.mT, c.w_q_norm, c.eps)
    return split(source @ c.w_q.mT, c.heads)


def latent(c: Call) -> tuple[Tensor, Tensor]:
    """The latent (B,T,L) and the shared key (B,1,T,R), neither normalised nor turned."""
    both = c.x @ c.w_kv_a.mT
    return both[..., : c.kept], both[:, None, :, c.kept:]


def parts(c: Call, normed: Tensor | None = None) -> Parts:
    """All that the scores are made of; `normed` in place of the normalised latent."""
    query, (raw, shared) = queries(c), latent(c)
    both = split((rms(raw, c.w_kv_norm, c.eps) if normed is None else normed) @ c.w_kv_b.mT, c.heads)
    r = turned(c, shared).expand(-1, c.heads, -1, -1)
    return Parts(query[..., : c.own], turned(c, query[..., c.own:]), both[..., : c.own], r, both[..., c.own:])


def softmax(c: Call, s: Tensor, shift: int = 0) -> Tensor:
    """Weights of the keys that are seen."""
    length = s.shape[-1]
    hidden = torch.arange(length)[None, :] > torch.arange(length)[:, None] + shift
    return torch.softmax(s.masked_fill(hidden, -math.inf) if c.causal else s, -1)


def projected(c: Call, out: Tensor) -> Tensor:
    """(B,H,T,Dv) to (B,T,C)."""
    return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], out.shape[1] * out.shape[3]) @ c.w_o.mT


def mixed(c: Call, m: Parts | None = None, factor: float | None = None) -> Tensor:
    """The right attention, with parts replaced."""
    m = parts(c) if m is None else m
    s = torch.cat([m.q, m.p], -1) @ torch.cat([m.k, m.r], -1).mT * (c.factor if factor is None else factor)
    return projected(c, softmax(c, s) @ m.v)


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def latent_attention(
        x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
        w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
        pairing: str = "interleaved", causal: bool = False, scale: float | None = None, eps: float = 1e-6,
    ) -> Tensor:
        return way(Call(x, w_q, w_kv_a, w_kv_norm, w_kv_b, w_o, num_heads, w_q_a, w_q_norm, positions, base, pairing, causal, scale,
                        eps))

    return latent_attention


planted = planter("latent_attention", signed)


# ------------------------------------------------------------------------------------------------ the latent
@planted(fault, "the latent is not normalised")
def latent_not_normalised(c: Call) -> Tensor:
    return mixed(c, parts(c, latent(c)[0] * c.w_kv_norm))


@planted(fault, "the latent's weights are left out")
def latent_weight_ignored(c: Call) -> Tensor:
    return mixed(replace(c, w_kv_norm=c.w_kv_norm * 0 + 1))


@planted(fault, "values come out of the latent as it is, keys out of the normalised one")
def values_of_the_raw_latent(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), v=parts(c, latent(c)[0]).v))


@planted(fault, "keys come out of the latent as it is, values out of the normalised one")
def keys_of_the_raw_latent(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), k=parts(c, latent(c)[0]).k))


@planted(fault, "one root mean square for latent and rotary key together")
def root_over_latent_and_key(c: Call) -> Tensor:
    both = c.x @ c.w_kv_a.mT
    root = torch.sqrt(both.square().mean(-1, keepdim=True) + c.eps)
    return mixed(c, parts(c, latent(c)[0] / root * c.w_kv_norm))


@planted(fault, "the rotary key is normalised, too")
def rotary_key_normalised(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=rms(m.r, torch.ones_like(c.w_kv_a[c.kept:, 0]), c.eps)))


@planted(fault, "the latent's mean is subtracted: LayerNorm")
def latent_centred(c: Call) -> Tensor:
    raw = latent(c)[0]
    return mixed(c, parts(c, rms(raw - raw.mean(-1, keepdim=True), c.w_kv_norm, c.eps)))


@planted(fault, "eps is added to the root")
def eps_outside_the_root(c: Call) -> Tensor:
    raw = latent(c)[0]
    return mixed(c, parts(c, raw / (raw.square().mean(-1, keepdim=True).sqrt() + c.eps) * c.w_kv_norm))


@planted(fault, "eps is 1e-6 whatever is given")
def eps_fixed(c: Call) -> Tensor:
    return mixed(replace(c, eps=1e-6))


@planted(fault, "the rotary key's rows are taken for the first of w_kv_a")
def rotary_rows_first(c: Call) -> Tensor:
    return mixed(replace(c, w_kv_a=torch.cat([c.w_kv_a[c.turns:], c.w_kv_a[: c.turns]])))


@planted(fault, "the queries' latent is not normalised")
def query_latent_not_normalised(c: Call) -> Tensor:
    if c.w_q_a is None or c.w_q_norm is None:
        return mixed(c)
    return mixed(replace(c, x=c.x, w_q=(c.w_q * c.w_q_norm) @ c.w_q_a, w_q_a=None, w_q_norm=None))


@planted(fault, "the queries' norm has no weights")
def query_norm_weight_ignored(c: Call) -> Tensor:
    return mixed(c if c.w_q_norm is None else replace(c, w_q_norm=c.w_q_norm * 0 + 1))


@planted(fault, "the queries' norm has another eps, that of other layers")
def query_norm_of_another_eps(c: Call) -> Tensor:
    q = queries(c if c.w_q_a is None else replace(c, eps=c.eps + 2.0**-6))
    return mixed(c, replace(parts(c), q=q[..., : c.own], p=turned(c, q[..., c.own:])))


# ------------------------------------------------------------------------------------------------ expansion
@planted(fault, "a head's value rows come before its key rows")
def values_before_keys(c: Call) -> Tensor:
    rows = c.w_kv_b.reshape(c.heads, -1, c.kept)
    return mixed(replace(c, w_kv_b=torch.cat([rows[:, rows.shape[1] - c.own:], rows[:, : rows.shape[1] - c.own]], 1).flatten(0, 1)))


@planted(fault, "all heads' key rows come before all heads' value rows")
def key_rows_of_all_heads_first(c: Call) -> Tensor:
    width = c.w_kv_b.shape[0] // c.heads - c.own
    keys, values = c.w_kv_b[: c.heads * c.own], c.w_kv_b[c.heads * c.own:]
    rows = torch.cat([keys.reshape(c.heads, c.own, c.kept), values.reshape(c.heads, width, c.kept)], 1)
    return mixed(replace(c, w_kv_b=rows.flatten(0, 1)))


@planted(fault, "the queries' rotary rows come before the others")
def query_rotary_rows_first(c: Call) -> Tensor:
    rows = c.w_q.reshape(c.heads, -1, c.w_q.shape[1])
    return mixed(replace(c, w_q=torch.cat([rows[:, c.turns:], rows[:, : c.turns]], 1).flatten(0, 1)))


@planted(fault, "heads and channels change places in the expansion")
def expansion_transposed(c: Call) -> Tensor:
    return mixed(replace(c, w_kv_b=c.w_kv_b.reshape(-1, c.heads, c.kept).transpose(0, 1).flatten(0, 1)))


@planted(fault, "heads and channels change places before the output projection")
def output_transposed(c: Call) -> Tensor:
    return mixed(replace(c, w_o=c.w_o.reshape(c.w_o.shape[0], -1, c.heads).transpose(1, 2).flatten(1)))


@planted(fault, "every head expands by the first head's rows")
def first_heads_expansion(c: Call) -> Tensor:
    return mixed(replace(c, w_kv_b=c.w_kv_b[: c.w_kv_b.shape[0] // c.heads].repeat(c.heads, 1)))


# ------------------------------------------------------------------------------------------------ rotary
@planted(fault, "nothing is turned")
def positions_ignored(c: Call) -> Tensor:
    return mixed(replace(c, positions=None))


@planted(fault, "the shared key is not turned")
def key_not_turned(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), r=latent(c)[1].expand(-1, c.heads, -1, -1)))


@planted(fault, "queries are not turned")
def query_not_turned(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), p=queries(c)[..., c.own:]))


@planted(fault, "keys are turned backwards")
def key_turned_backwards(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), r=turned(c, latent(c)[1], -1).expand(-1, c.heads, -1, -1)))


@planted(fault, "the shared key is turned twice")
def key_turned_twice(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=turned(c, m.r)))


@planted(fault, "the first channels of a head are turned, too, by the same angles")
def unturned_part_turned(c: Call) -> Tensor:
    m, width = parts(c), min(c.own - c.own % 2, c.turns)
    if width == 0:
        return mixed(c)
    q, k = (torch.cat([turned(c, x[..., :width]), x[..., width:]], -1) for x in (m.q, m.k))
    return mixed(c, replace(m, q=q, k=k))


@planted(fault, "positions are taken for the tokens' index")
def positions_taken_for_the_index(c: Call) -> Tensor:
    return mixed(c if c.positions is None else replace(c, positions=torch.arange(c.x.shape[1])))


@planted(fault, "the base is 10000 whatever is given")
def base_ignored(c: Call) -> Tensor:
    return mixed(replace(c, base=10000.0))


@planted(fault, "the other pairing")
def pairing_exchanged(c: Call) -> Tensor:
    return mixed(replace(c, pairing="half" if c.pairing == "interleaved" else "interleaved"))


@planted(fault, "the shared key in the other pairing than the queries")
def pairing_of_the_key_exchanged(c: Call) -> Tensor:
    other = replace(c, pairing="half" if c.pairing == "interleaved" else "interleaved")
    return mixed(c, replace(parts(c), r=parts(other).r))


@planted(fault, "frequencies are those of the whole head, not of its turned part")
def frequencies_of_the_whole_head(c: Call) -> Tensor:
    return mixed(replace(c, base=c.base ** (c.turns / (c.own + c.turns))))


@planted(fault, "the shared key is seen by the first head alone")
def rotary_key_of_first_head(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=m.r * (torch.arange(c.heads) == 0)[:, None, None]))


@planted(fault, "the shared key of the first sample serves all")
def rotary_key_of_first_sample(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=m.r[:1].expand_as(m.r)))


@planted(fault, "the shared key is divided among the heads: its scores are H times too small")
def rotary_key_shared_out(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=m.r / c.heads))


@planted(fault, "the rotary part takes no part in the scores")
def rotary_part_left_out(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, p=m.p * 0))


# ------------------------------------------------------------------------------------------------ scores
@planted(fault, "the scale is that of the unturned part alone")
def scale_of_the_unturned_part(c: Call) -> Tensor:
    return mixed(c, factor=c.own**-0.5 if c.scale is None else c.scale)


@planted(fault, "the scale is that of the values' width")
def scale_of_the_values(c: Call) -> Tensor:
    return mixed(c, factor=(c.w_kv_b.shape[0] // c.heads - c.own) ** -0.5 if c.scale is None else c.scale)


@planted(fault, "the scale is that of the width that absorbed queries have")
def scale_of_the_latent(c: Call) -> Tensor:
    return mixed(c, factor=(c.kept + c.turns) ** -0.5 if c.scale is None else c.scale)


@planted(fault, "each part's scores are scaled by its own width")
def parts_scaled_apart(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, m, 1.0 if c.scale is None else c.scale) if c.scale is not None else mixed(
        c, replace(m, q=m.q * c.own**-0.5, p=m.p * c.turns**-0.5), 1.0)


@planted(fault, "no scale")
def unscaled(c: Call) -> Tensor:
    return mixed(c, factor=1.0)


@planted(fault, "a given scale is ignored")
def scale_ignored(c: Call) -> Tensor:
    return mixed(replace(c, scale=None))


@planted(fault, "causal is forgotten")
def causal_ignored(c: Call) -> Tensor:
    return mixed(replace(c, causal=False))


@planted(fault, "a query sees the next key as well")
def causal_sees_next(c: Call) -> Tensor:
    m = parts(c)
    s = torch.cat([m.q, m.p], -1) @ torch.cat([m.k, m.r], -1).mT * c.factor
    return projected(c, softmax(c, s, 1) @ m.v)


@planted(fault, "always causal")
def always_causal(c: Call) -> Tensor:
    return mixed(replace(c, causal=True))


plant_outputs(planted, mixed)


# ------------------------------------------------------------------------------------------------ right ways
def weights_by_head(c: Call) -> tuple[Tensor, Tensor]:
    """The expansion's key rows (H,N,L) and value rows (H,Dv,L)."""
    rows = c.w_kv_b.reshape(c.heads, -1, c.kept)
    return rows[:, : c.own], rows[:, c.own:]


@planted(benign, "absorbed: queries are taken to the latent, values come out of its mean")
def absorbed(c: Call) -> Tensor:
    query, (raw, shared) = queries(c), latent(c)
    w_k, w_v = weights_by_head(c)
    held = rms(raw, c.w_kv_norm, c.eps)[:, None]
    s = (query[..., : c.own] @ w_k @ held.mT + turned(c, query[..., c.own:]) @ turned(c, shared).mT) * c.factor
    return projected(c, softmax(c, s) @ held @ w_v.mT)


@planted(benign, "absorbed into the output projection, too")
def absorbed_twice(c: Call) -> Tensor:
    query, (raw, shared) = queries(c), latent(c)
    w_k, w_v = weights_by_head(c)
    out_of_latent = torch.einsum("chd,hdl->hcl", c.w_o.reshape(c.w_o.shape[0], c.heads, -1), w_v)
    held = rms(raw, c.w_kv_norm, c.eps)[:, None]
    s = (query[..., : c.own] @ w_k @ held.mT + turned(c, query[..., c.own:]) @ turned(c, shared).mT) * c.factor
    return (softmax(c, s) @ held @ out_of_latent.mT).sum(1)


@planted(benign, "one product for queries and compression, where queries are not compressed")
def fused_projections(c: Call) -> Tensor:
    if c.w_q_a is not None:
        return mixed(c)
    both = c.x @ torch.cat([c.w_q, c.w_kv_a]).mT
    query, rest = split(both[..., : c.w_q.shape[0]], c.heads), both[..., c.w_q.shape[0]:]
    expanded = split(rms(rest[..., : c.kept], c.w_kv_norm, c.eps) @ c.w_kv_b.mT, c.heads)
    r = turned(c, rest[:, None, :, c.kept:]).expand(-1, c.heads, -1, -1)
    return mixed(c, Parts(query[..., : c.own], turned(c, query[..., c.own:]), expanded[..., : c.own], r, expanded[..., c.own:]))


@planted(benign, "scores of the two parts added, norm in float32 rounded before its weight, torch's softmax in float32")
def two_sums_of_scores(c: Call) -> Tensor:
    raw = wide(latent(c)[0])
    m = parts(c, (raw * torch.rsqrt(raw.square().mean(-1, keepdim=True) + c.eps)).to(c.x.dtype) * c.w_kv_norm)
    s = (m.q @ m.k.mT + m.p @ m.r.mT) * c.factor
    return projected(c, softmax(c, wide(s)).to(c.x.dtype) @ m.v)


@planted(benign, "torch's rms_norm and attention, values padded to the keys' width")
def torch_functions(c: Call) -> Tensor:
    m = parts(c, torch.nn.functional.rms_norm(latent(c)[0], (c.kept,), c.w_kv_norm, c.eps))
    query, key, width = torch.cat([m.q, m.p], -1), torch.cat([m.k, m.r], -1), m.v.shape[-1]
    room = max(query.shape[-1], width)
    query, key, value = (torch.nn.functional.pad(x, (0, room - x.shape[-1])) for x in (query, key, m.v))
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=c.causal, scale=c.factor)
    return projected(c, out[..., :width])
