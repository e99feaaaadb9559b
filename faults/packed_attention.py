"""Planted faults of attention over packed sequences, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.attention_parts import weights
from assay.faults.planting import bent, plant_outputs, planter
from assay.registry import benign, fault


@dataclass(frozen=True)
class Call:
    """One call."""

    q: Tensor
    k: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor
    causal: bool
    scale: float

    @property
    def of_query(self) -> Tensor:
        """The sequence of each query."""
        return sequence_of(self.queries)

    @property
    def of_key(self) -> Tensor:
        """The sequence of each key."""
        return sequence_of(self.keys)


Way = Callable[[Call], Tensor]


def sequence_of(bounds: Tensor) -> Tensor:
    """The number of the sequence that each row belongs to."""
    return torch.arange(len(bounds) - 1).repeat_interleave(bounds.long().diff())


def blocks(c: Call) -> Tensor:
    """Which keys lie in the query's own sequence (Nq,Nk)."""
    return c.of_query[:, None] == c.of_key[None, :]


def distance(c: Call, *, top_left: bool = False) -> Tensor:
    """How far each key lies behind each query, both counted within their sequences."""
    row = torch.arange(len(c.q)) - c.queries.long()[c.of_query]
    column = torch.arange(len(c.k)) - c.keys.long()[c.of_key]
    shift = (c.keys.diff() - c.queries.diff()).long()[c.of_query]
    return (row if top_left else row + shift)[:, None] - column[None, :]


def visible(c: Call) -> Tensor:
    """Which keys each query sees."""
    return blocks(c) & (distance(c) >= 0) if c.causal else blocks(c)


def shared(x: Tensor, c: Call) -> Tensor:
    """Key or value heads repeated in blocks: (H,Nk,width)."""
    return x.repeat_interleave(c.q.shape[1] // x.shape[1], 1).transpose(0, 1)


def scores(c: Call, k: Tensor | None = None) -> Tensor:
    """Scaled scores (H,Nq,Nk) of all queries with all keys."""
    return (c.q.transpose(0, 1) @ (shared(c.k, c) if k is None else k).mT) * c.scale


def attend(c: Call, keep: Tensor | None = None, s: Tensor | None = None) -> Tensor:
    """The right attention, or one over other keys, or by other scores."""
    w = weights(scores(c) if s is None else s, visible(c) if keep is None else keep)
    return (w @ shared(c.v, c)).transpose(0, 1)


def signed(way: Way) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def packed_attention(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, causal: bool = False,
                         scale: float | None = None) -> Tensor:
        return way(Call(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, q.shape[-1] ** -0.5 if scale is None else scale))

    return packed_attention


planted = planter("packed_attention", signed)


@planted(fault, "every query sees the keys of all sequences")
def boundaries_ignored(c: Call) -> Tensor:
    return attend(c, visible(c) | ~blocks(c))


@planted(fault, "the first key of the next sequence is still seen")
def boundary_one_late(c: Call) -> Tensor:
    first = torch.zeros(len(c.k) + 1, dtype=torch.bool)
    first[c.keys.long()[1:]] = True
    after = (c.of_query[:, None] + 1 == c.of_key[None, :]) & first[:-1][None, :]
    return attend(c, visible(c) | after)


@planted(fault, "the previous sequence is seen as well: sequences of one document packed in a row")
def previous_sequence_seen(c: Call) -> Tensor:
    return attend(c, visible(c) | (c.of_query[:, None] == c.of_key[None, :] + 1))


@planted(fault, "keys are cut at the boundaries of the queries")
def keys_by_the_queries_boundaries(c: Call) -> Tensor:
    last = c.queries.clamp(max=len(c.k)).clone()
    last[-1:] = len(c.k)
    return attend(replace(c, keys=last))


@planted(fault, "every sequence is taken to be as long as the first")
def lengths_of_first_sequence(c: Call) -> Tensor:
    if len(c.queries) < 2:
        return attend(c)
    one, other = max(1, int(c.queries[1])), max(1, int(c.keys[1]))
    same = (torch.arange(len(c.q)) // one)[:, None] == (torch.arange(len(c.k)) // other)[None, :]
    return attend(c, same & (visible(c) | ~blocks(c)))


@planted(fault, "sequences are padded to the longest, and the keys of the padding, zeros, take part")
def tail_padded_with_zero_keys(c: Call) -> Tensor:
    lengths = c.keys.diff().long()
    if not len(c.q) or not len(c.k):
        return attend(c)
    keep = visible(c)
    extra = (lengths.max() - lengths)[c.of_query] * (not c.causal)  # causality hides the padding
    s = scores(c).masked_fill(~keep, -math.inf)
    top = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True) + extra[:, None] * torch.exp(-top)
    return (e / torch.where(keep.any(-1, keepdim=True), total, torch.ones_like(total)) @ shared(c.v, c)).transpose(0, 1)


@planted(fault, "causal by rows of the packed tensors, not by positions within the sequence")
def causal_over_packed_rows(c: Call) -> Tensor:
    back = torch.arange(len(c.q))[:, None] - torch.arange(len(c.k))[None, :]
    return attend(c, blocks(c) & (back >= 0) if c.causal else None)


@planted(fault, "causal ignored")
def causal_ignored(c: Call) -> Tensor:
    return attend(c, blocks(c))


@planted(fault, "a query does not see its own position")
def causal_strict(c: Call) -> Tensor:
    return attend(c, visible(c) & (distance(c) > 0) if c.causal else None)


@planted(fault, "where a sequence has more keys than queries, the first query is put beside the first key")
def causal_from_the_other_corner(c: Call) -> Tensor:
    return attend(c, blocks(c) & (distance(c, top_left=True) >= 0) if c.causal else None)


@planted(fault, "only the first sequence is causal")
def first_sequence_alone_causal(c: Call) -> Tensor:
    return attend(c, torch.where((c.of_query == 0)[:, None], visible(c), blocks(c)))


@planted(fault, "the last sequence is left out where there are several: B boundaries are taken for B sequences")
def last_sequence_left_out(c: Call) -> Tensor:
    last = c.of_query == len(c.queries) - 2
    return attend(c).masked_fill(last[:, None, None] & (len(c.queries) > 2), 0.0)


@planted(fault, "a given scale is ignored")
def scale_ignored(c: Call) -> Tensor:
    return attend(replace(c, scale=c.q.shape[-1] ** -0.5))


@planted(fault, "query head h reads key/value head h mod G")
def grouped_heads_tiled(c: Call) -> Tensor:
    order = torch.arange(c.q.shape[1]) % c.k.shape[1]
    return attend(replace(c, k=c.k[:, order], v=c.v[:, order]))


def _empty(c: Call) -> Tensor:
    return ~visible(c).any(-1)[:, None, None]


@planted(fault, "a query without keys is NaN")
def empty_row_nan(c: Call) -> Tensor:
    return attend(c).masked_fill(_empty(c), math.nan)


@planted(fault, "a query without keys gets the mean of all values")
def empty_row_mean(c: Call) -> Tensor:
    if not len(c.k):
        return attend(c)
    return torch.where(_empty(c), shared(c.v, c).mean(1), attend(c))


@planted(fault, "a sequence of no query is forgotten: later ones read the keys of the sequence before them")
def sequence_after_an_empty_one_shifted(c: Call) -> Tensor:
    told = c.queries.unique_consecutive()
    return attend(replace(c, queries=torch.cat([told, told[-1:].expand(len(c.queries) - len(told))])))


@planted(fault, "lengths are at least 1: a sequence of no query overwrites the next row with what it makes of the next key")
def empty_sequence_takes_a_token(c: Call) -> Tensor:
    if not len(c.q) or not len(c.k):
        return attend(c)
    keep, place = visible(c), torch.arange(len(c.k))
    for b in (c.queries.diff() == 0).nonzero().flatten().tolist():
        keep[min(int(c.queries[b]), len(c.q) - 1)] = place == min(int(c.keys[b]), len(c.k) - 1)
    return attend(c, keep)


plant_outputs(planted, attend)


@planted(fault, "the keys' gradient has the other sign")
def gradient_of_keys_negated(c: Call) -> Tensor:
    return attend(replace(c, k=bent(c.k, torch.neg)))


@planted(fault, "the values' gradient runs over into the next sequence")
def gradient_crosses_boundaries(c: Call) -> Tensor:
    return attend(replace(c, v=bent(c.v, lambda g: g + g.roll(1, 0))))


@planted(fault, "the last sequence gets no gradient where there are several")
def gradient_of_last_sequence_dropped(c: Call) -> Tensor:
    last = (c.of_key == len(c.keys) - 2)[:, None, None] & (len(c.keys) > 2)
    return attend(replace(c, v=bent(c.v, lambda g: g.masked_fill(last, 0.0))))


@planted(fault, "grouped keys get the gradient of their first query head alone")
def grouped_key_gradient_not_summed(c: Call) -> Tensor:
    k = shared(c.k, c)
    first = (torch.arange(len(k)) % (c.q.shape[1] // c.k.shape[1]) == 0)[:, None, None]
    return attend(c, s=scores(c, torch.where(first, k, k.detach())))


@planted(fault, "the backward pass is always causal")
def gradient_always_causal(c: Call) -> Tensor:
    right, other = attend(c), attend(replace(c, causal=True))
    return other + (right - other).detach()


def _one_by_one(c: Call, way: Callable[[Tensor, Tensor, Tensor, Call], Tensor]) -> Tensor:
    """Each sequence by a call of its own: (H,n,D), (H,m,D), (H,m,Dv) to (H,n,Dv)."""
    rows = []
    for b in range(len(c.queries) - 1):
        one, other = slice(*c.queries[b:b + 2].tolist()), slice(*c.keys[b:b + 2].tolist())
        q = c.q[one].transpose(0, 1)
        k, v = (shared(x[other], c) for x in (c.k, c.v))
        rows.append(way(q, k, v, c).transpose(0, 1))
    return torch.cat(rows) if rows else attend(c)


def _softmax(q: Tensor, k: Tensor, v: Tensor, c: Call) -> Tensor:
    n, m = q.shape[1], k.shape[1]
    keep = torch.arange(n)[:, None] + m - n >= torch.arange(m)[None, :] if c.causal else torch.ones(n, m, dtype=torch.bool)
    return weights((q * c.scale) @ k.mT, keep) @ v


@planted(benign, "one sequence after another, the query scaled first")
def one_by_one(c: Call) -> Tensor:
    return _one_by_one(c, _softmax)


@planted(benign, "padded to the longest sequence and masked")
def padded_batch(c: Call) -> Tensor:
    n, m = c.queries.diff().long(), c.keys.diff().long()
    if not len(c.q) or not len(c.k):
        return attend(c)
    row, column = torch.arange(int(n.max())), torch.arange(int(m.max()))
    here, there = row[None] < n[:, None], column[None] < m[:, None]
    q = c.q.new_zeros(len(n), len(row), *c.q.shape[1:]).index_put((here.nonzero(as_tuple=True)), c.q).transpose(1, 2)
    k, v = (x.new_zeros(len(m), len(column), *x.shape[1:]).index_put((there.nonzero(as_tuple=True)), x).transpose(1, 2)
            .repeat_interleave(c.q.shape[1] // x.shape[1], 1) for x in (c.k, c.v))
    keep = there[:, None, :] & (row[None, :, None] + (m - n)[:, None, None] >= column if c.causal else torch.tensor(True))
    return (weights((q @ k.mT) * c.scale, keep[:, None]) @ v).transpose(1, 2)[here]


@planted(benign, "packed in reverse order inside, in float32", arithmetic={"internal": "float32"})
def packed_backward(c: Call) -> Tensor:
    wide = torch.promote_types(c.q.dtype, torch.float32)
    up = replace(c, q=c.q.to(wide), k=c.k.to(wide), v=c.v.to(wide))
    return attend(replace(up, k=up.k.flip(0), v=up.v.flip(0)), visible(c).flip(1)).to(c.q.dtype)
