"""Planted faults of the sigmoid router, and unusual ways that are right."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from assay.faults.planting import bent, planter
from assay.registry import benign, fault

Routed = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Call:
    """One call."""

    logits: Tensor
    bias: Tensor
    top_k: int
    groups: int
    top_groups: int
    normalize: bool
    scale: float

    @property
    def scores(self) -> Tensor:
        return torch.sigmoid(self.logits)


Way = Callable[[Call], Routed]


def best(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest, the lower index first among equals."""
    return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]


def two_best(x: Tensor) -> Tensor:
    """The sum of the two largest."""
    return x.topk(min(2, x.shape[-1]), -1).values.sum(-1)


def choose(c: Call, by: Tensor | None = None, rank: Callable[[Tensor], Tensor] = two_best, closed: float = -math.inf) -> Tensor:
    """The right choice, with parts replaced."""
    corrected = (c.scores + c.bias if by is None else by).detach()
    if c.groups > 1:
        grouped = corrected.unflatten(-1, (c.groups, -1))
        open_ = torch.zeros(grouped.shape[:-1], dtype=torch.bool).scatter(-1, best(rank(grouped), c.top_groups), True)
        corrected = grouped.masked_fill(~open_[..., None], closed).flatten(-2)
    return best(corrected, c.top_k)


def weigh(c: Call, index: Tensor, scores: Tensor | None = None) -> Routed:
    """The right weights of a choice, by other scores where given."""
    kept = (c.scores if scores is None else scores).gather(-1, index)
    return (kept / kept.sum(-1, keepdim=True) if c.normalize else kept) * c.scale, index


def signed(way: Way) -> Callable[..., Routed]:
    """A way with the signature of the kind."""
    def sigmoid_router(logits: Tensor, bias: Tensor, *, top_k: int, n_groups: int = 1, top_groups: int = 1,
                       normalize: bool = True, scale: float = 1.0) -> Routed:
        return way(Call(logits, bias, top_k, n_groups, top_groups, normalize, scale))

    return sigmoid_router


planted = planter("sigmoid_router", signed)


@planted(fault, "the bias stays in the weights")
def weights_with_bias(c: Call) -> Routed:
    return weigh(c, choose(c), c.scores + c.bias)


@planted(fault, "weights are never normalised")
def not_normalised(c: Call) -> Routed:
    return weigh(replace(c, normalize=False), choose(c))


@planted(fault, "weights are always normalised")
def always_normalised(c: Call) -> Routed:
    return weigh(replace(c, normalize=True), choose(c))


@planted(fault, "the scale is ignored")
def scale_ignored(c: Call) -> Routed:
    return weigh(replace(c, scale=1.0), choose(c))


@planted(fault, "the scale is applied before weights are normalised, which undoes it")
def scale_before_normalising(c: Call) -> Routed:
    return weigh(replace(c, scale=1.0 if c.normalize else c.scale), choose(c))


@planted(fault, "softmax over all experts in place of the sigmoid")
def softmax_scores(c: Call) -> Routed:
    return weigh(c, choose(c), torch.softmax(c.logits, -1))


@planted(fault, "softmax over the chosen logits in place of sigmoids over their sum")
def softmax_over_chosen(c: Call) -> Routed:
    index = choose(c)
    return torch.softmax(c.logits.gather(-1, index), -1) * c.scale, index


@planted(fault, "normalised over all experts, not over the chosen")
def normalised_over_all_experts(c: Call) -> Routed:
    scores = c.scores / c.scores.sum(-1, keepdim=True) if c.normalize else c.scores
    return weigh(replace(c, normalize=False), choose(c), scores)


@planted(fault, "normalised over the tokens")
def normalised_over_tokens(c: Call) -> Routed:
    index = choose(c)
    kept = c.scores.gather(-1, index)
    return (kept / kept.sum(0, keepdim=True) if c.normalize else kept) * c.scale, index


@planted(fault, "raw logits as weights")
def raw_logits_as_weights(c: Call) -> Routed:
    return weigh(c, choose(c), c.logits)


@planted(fault, "weights in the order of the experts, indices in the order of the scores")
def weights_and_indices_out_of_step(c: Call) -> Routed:
    index = choose(c)
    return weigh(c, index.sort(-1).values)[0], index


@planted(fault, "zeros for weights")
def zeros(c: Call) -> Routed:
    weights, index = weigh(c, choose(c))
    return weights * 0, index


@planted(fault, "the bias plays no part")
def bias_ignored(c: Call) -> Routed:
    return weigh(c, choose(c, c.scores))


@planted(fault, "the bias is subtracted")
def bias_subtracted(c: Call) -> Routed:
    return weigh(c, choose(c, c.scores - c.bias))


@planted(fault, "the bias is added to the logits, before the sigmoid")
def bias_added_to_logits(c: Call) -> Routed:
    return weigh(c, choose(c, c.logits + c.bias))


@planted(fault, "scores are multiplied by one plus the bias")
def bias_multiplied(c: Call) -> Routed:
    return weigh(c, choose(c, c.scores * (1 + c.bias)))


@planted(fault, "the lowest scores are chosen")
def lowest_chosen(c: Call) -> Routed:
    return weigh(c, choose(c, -(c.scores + c.bias)))


@planted(fault, "the last expert can never be chosen")
def last_expert_never_chosen(c: Call) -> Routed:
    corrected, last = c.scores + c.bias, torch.arange(c.logits.shape[-1]) == c.logits.shape[-1] - 1
    return weigh(c, choose(c, corrected.masked_fill(last, -1e4)))


@planted(fault, "one expert is chosen twice")
def one_expert_twice(c: Call) -> Routed:
    index = choose(c)
    return weigh(c, index if c.top_k == 1 else torch.cat([index[..., :-1], index[..., :1]], -1))


@planted(fault, "groups are ignored")
def groups_ignored(c: Call) -> Routed:
    return weigh(c, choose(replace(c, groups=1)))


@planted(fault, "one group more is open")
def one_group_more(c: Call) -> Routed:
    return weigh(c, choose(replace(c, top_groups=min(c.groups, c.top_groups + 1))))


@planted(fault, "groups are ranked by their best expert alone")
def groups_by_their_best(c: Call) -> Routed:
    return weigh(c, choose(c, rank=lambda x: x.amax(-1)))


@planted(fault, "groups are ranked by the sum over all their experts")
def groups_by_their_sum(c: Call) -> Routed:
    return weigh(c, choose(c, rank=lambda x: x.sum(-1)))


@planted(fault, "experts of closed groups count as 0, and win over negative scores")
def closed_groups_at_zero(c: Call) -> Routed:
    return weigh(c, choose(c, closed=0.0))


@planted(fault, "the choice is that of the first token, for every token")
def routed_like_first_token(c: Call) -> Routed:
    index = choose(c)
    return weigh(c, index[:1].expand(index.shape) if len(index) else index)


@planted(fault, "the weights are detached: no gradient to the router")
def weights_detached(c: Call) -> Routed:
    weights, index = weigh(c, choose(c))
    return weights.detach() + 0 * c.logits.clamp(-1, 1).sum(), index


@planted(fault, "the gradient does not go through the sum that normalises")
def gradient_of_the_sum_left_out(c: Call) -> Routed:
    index = choose(c)
    kept = c.scores.gather(-1, index)
    return (kept / kept.sum(-1, keepdim=True).detach() if c.normalize else kept) * c.scale, index


@planted(fault, "the gradient leaves the scale out")
def gradient_unscaled(c: Call) -> Routed:
    weights, index = weigh(c, choose(c))
    return bent(weights, lambda g: g / c.scale), index


@planted(fault, "the gradient of a sigmoid is taken to be p, not p (1 − p)")
def gradient_through_softmax(c: Call) -> Routed:
    scores = bent(c.scores, lambda g: g / (1 - c.scores.detach()).clamp(min=1e-3))
    return weigh(c, choose(c), scores)


@planted(fault, "experts that were not chosen get a gradient")
def gradient_reaches_all_experts(c: Call) -> Routed:
    weights, index = weigh(c, choose(c))
    rest = c.scores.sum(-1, keepdim=True)
    return weights + (rest - rest.detach()), index


@planted(benign, "choices in order of the expert's number")
def sorted_by_expert(c: Call) -> Routed:
    return weigh(c, choose(c).sort(-1).values)


@planted(benign, "in float32, weights in float32, a small number added to the sum", arithmetic={"internal": "float32"})
def in_float32(c: Call) -> Routed:
    wide = torch.promote_types(c.logits.dtype, torch.float32)
    up = replace(c, logits=c.logits.to(wide), bias=c.bias.to(wide))
    index = choose(up)
    kept = up.scores.gather(-1, index)
    weights = (kept / (kept.sum(-1, keepdim=True) + 1e-20) if c.normalize else kept) * c.scale
    return weights.to(torch.float32 if c.logits.dtype.itemsize < 4 else c.logits.dtype), index


@planted(benign, "the scale over the sum first, weakest expert first")
def scale_over_sum(c: Call) -> Routed:
    index = choose(c).flip(-1)
    kept = c.scores.gather(-1, index)
    return kept * (c.scale / kept.sum(-1, keepdim=True)) if c.normalize else kept * c.scale, index
