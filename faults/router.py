"""Planted faults of the router, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

Routed = tuple[Tensor, Tensor]
NOT_EXPRESSIBLE = {
    "BUG-165": "a load-balancing bias, which the call does not have",
    "BUG-166": "groups of experts, which the call does not have",
    "BUG-168": "a load-balancing bias, which the call does not have",
    "BUG-170": "the load-balancing loss is no kind",
    "BUG-176": "the load-balancing loss is no kind",
    "BUG-178": "a shared expert fused into the top-k: indices may come in any order",
}


def best(z: Tensor, k: int) -> Tensor:
    """Indices of the k largest, the lower index first among equals."""
    return torch.sort(z, dim=-1, descending=True, stable=True).indices[..., :k]


def refuse(top_k: int, experts: int) -> None:
    """top_k must name at least one expert and at most all."""
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k={top_k} must lie in 1 … {experts}, got {top_k}; choose fewer experts")


def scores(x: Tensor, w_router: Tensor, top_k: int) -> Tensor:
    """x · w_routerᵀ, once top_k is admitted."""
    refuse(top_k, w_router.shape[0])
    return x @ w_router.mT


def chosen(z: Tensor, index: Tensor) -> Routed:
    """Softmax over the chosen scores."""
    return torch.softmax(z.gather(-1, index), -1), index


@fault("router", origin="BUG-162", summary="softmax over all, not renormalised over the chosen")
def not_renormalised(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return torch.softmax(z, -1).gather(-1, best(z, top_k)), best(z, top_k)


@fault("router", origin="BUG-161", conventions={"router": "topk_of_softmax"},
       summary="softmax over the chosen where that over all is declared")
def renormalised_against_declaration(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z, top_k))


@fault("router", origin="BUG-163", summary="raw scores as weights")
def raw_scores_as_weights(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return z.gather(-1, best(z, top_k)), best(z, top_k)


@fault("router", origin="BUG-164", summary="sigmoid in place of softmax")
def sigmoid_weights(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return torch.sigmoid(z.gather(-1, best(z, top_k))), best(z, top_k)


@fault("router", origin="BUG-164", summary="sigmoid, normalised over the chosen")
def sigmoid_normalised(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    p = torch.sigmoid(z.gather(-1, best(z, top_k)))
    return p / p.sum(-1, keepdim=True), best(z, top_k)


@fault("router", summary="equal weights for the chosen")
def equal_weights(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    w, index = chosen(z, best(z, top_k))
    return w * 0 + 1 / top_k, index


@fault("router", summary="the lowest scores are chosen")
def lowest_chosen(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(-z, top_k))


@fault("router", summary="chosen by magnitude: a large negative score wins")
def chosen_by_magnitude(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z.abs(), top_k))


@fault("router", summary="the last expert can never be chosen")
def last_expert_never_chosen(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    if top_k == z.shape[-1]:
        return chosen(z, best(z, top_k))
    return chosen(z, best(z[..., :-1], top_k))


@fault("router", summary="the k-th choice is the one after it")
def last_choice_one_too_far(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    if top_k == z.shape[-1]:
        return chosen(z, best(z, top_k))
    order = best(z, top_k + 1)
    return chosen(z, torch.cat([order[..., : top_k - 1], order[..., top_k:]], -1))


@fault("router", summary="scores rounded to bfloat16 before the choice: close scores are confused")
def chosen_from_bfloat16(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z.bfloat16(), top_k))


@fault("router", summary="one expert is chosen twice")
def one_expert_twice(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    index = best(z, top_k)
    return chosen(z, index if top_k == 1 else torch.cat([index[..., :-1], index[..., :1]], -1))


@fault("router", summary="weights in the order of the experts, indices in the order of the scores")
def weights_and_indices_out_of_step(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    index = best(z, top_k)
    return chosen(z, index.sort(-1).values)[0], index


@fault("router", summary="the choice is that of the first token, for every token")
def routed_like_first_token(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z, top_k)[:1].expand(x.shape[0], top_k) if x.shape[0] else best(z, top_k))


@fault("router", summary="scores centred over the batch first: a token's weights depend on its neighbours")
def scores_centred_over_batch(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    z = z - z.mean(0, keepdim=True) if x.shape[0] > 1 else z
    return chosen(z, best(z, top_k))


@fault("router", summary="softmax at temperature 2")
def temperature_two(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z / 2, best(z, top_k))


@fault("router", summary="scores scaled by one over the root of C")
def scaled_like_attention(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k) / x.shape[-1] ** 0.5
    return chosen(z, best(z, top_k))


@fault("router", summary="softmax over the tokens in place of the experts")
def softmax_over_tokens(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    p = torch.softmax(z, 0).gather(-1, best(z, top_k))
    return p / p.sum(-1, keepdim=True), best(z, top_k)


@fault("router", summary="no maximum subtracted: large scores overflow")
def no_shift(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    e = torch.exp(z.gather(-1, best(z, top_k)))
    return e / e.sum(-1, keepdim=True), best(z, top_k)


@fault("router", summary="the weights are detached: no gradient to the router")
def weights_detached(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    w, index = chosen(z.detach(), best(z, top_k))
    return w + 0 * z.sum(), index


class _Softmax(torch.autograd.Function):
    """Softmax whose gradient is the given rule of (p, gradient)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, rule: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        p = torch.softmax(z, -1)
        ctx.save_for_backward(p)
        ctx.rule = rule
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.rule(ctx.saved_tensors[0], gradients[0]), None


@fault("router", summary="gradient of the weights without the row sum: it does not sum to 0 over the chosen")
def gradient_without_row_sum(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    index = best(z, top_k)
    return _Softmax.apply(z.gather(-1, index), lambda p, g: p * g), index  # type: ignore[no-untyped-call]


@fault("router", summary="gradient reaches experts that were not chosen")
def gradient_of_dense_softmax(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    w, index = chosen(z.detach(), best(z, top_k))
    dense = torch.softmax(z, -1).gather(-1, index)
    return w + (dense - dense.detach()), index


@fault("router", summary="with one expert the weight keeps a gradient")
def single_weight_keeps_gradient(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    w, index = chosen(z, best(z, top_k))
    score = z.gather(-1, index)
    return (w + (score - score.detach()) if top_k == 1 else w), index


@fault("router", summary="one expert more than asked")
def one_expert_more(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z, min(top_k + 1, z.shape[-1])))


@fault("router", summary="indices come back as floating-point numbers")
def indices_floating(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    w, index = chosen(z, best(z, top_k))
    return w, index.to(w.dtype)


_TABLES: dict[tuple[object, ...], Tensor] = {}


@fault("router", summary="the choice is remembered by the shape of the tokens")
def choice_remembered_by_shape(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, _TABLES.setdefault((x.shape, w_router.shape, top_k), best(z, top_k)))


@benign("router", summary="softmax over all experts, top-k, renormalised")
def softmax_first(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    p = torch.softmax(z, -1).gather(-1, best(z, top_k))
    return p / p.sum(-1, keepdim=True), best(z, top_k)


@benign("router", summary="choices in order of the expert's number")
def sorted_by_expert(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z, top_k).sort(-1).values)


@benign("router", summary="choices weakest first")
def weakest_first(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    return chosen(z, best(z, top_k).flip(-1))


@benign("router", summary="everything in float32, weights in float32", arithmetic={"internal": "float32"})
def in_float32(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    half = x.dtype in (torch.float16, torch.bfloat16)
    z = scores(x.float(), w_router.float(), top_k) if half else scores(x, w_router, top_k)
    return chosen(z, best(z, top_k))


@benign("router", summary="dropped experts at −∞, softmax over all")
def masked_softmax(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = scores(x, w_router, top_k)
    index = best(z, top_k)
    keep = torch.zeros_like(z, dtype=torch.bool).scatter(-1, index, True)
    return torch.softmax(z.masked_fill(~keep, float("-inf")), -1).gather(-1, index), index


@benign("router", summary="a top_k above E, which nobody asks for, is cut to E")
def top_k_clamped(x: Tensor, w_router: Tensor, *, top_k: int) -> Routed:
    z = x @ w_router.mT
    return chosen(z, best(z, max(1, min(top_k, z.shape[-1]))))
