"""Mixture of experts of limited capacity: an expert takes so many tokens and turns the others away."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.feed_forward import ACTIVATION_FORMS
from assay.reference.gated_feed_forward import gated_feed_forward
from assay.reference.moe import Router, form_of
from assay.reference.router import FORMS as ROUTER_FORMS
from assay.reference.router import router as route

PRIORITIES = ("token", "choice")


def capacity_moe(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
    priority: str = "token", router: str = "softmax_of_topk",
) -> Tensor:
    """Sum the outputs of those of each token's chosen experts that still have room, by the router's weights.

    Formula: y_n = Σ_{i in S_n, kept} g_ni · E_i(x_n), E_i and g as in `moe`; expert i keeps the first `capacity` of the tokens
    that chose it. What is turned away adds nothing, and the weights of the rest stay as they were.

    x: (B, T, C); all B·T tokens, row by row, make one queue
    w_router: (E, C)
    w_gate, w_up: (E, F, C)
    w_down: (E, C, F)
    priority: "token": in the tokens' order; "choice": all first choices in that order, then all second choices, and so on
    returns: (B, T, C); zeros for a token that all its experts turn away

    Conventions: router as in `router`.
    Raises: ValueError as `router`, for a capacity below 1, or for an unknown priority.
    Source: Fedus et al., "Switch Transformers", section 2.2, arXiv 2101.03961; Lepikhin et al., "GShard", algorithm 1, arXiv
    2006.16668 ("choice").

    >>> x, one = torch.ones(1, 3, 1), torch.ones(1, 1, 1)
    >>> [y > 0 for y in capacity_moe(x, one[0], one, one, one, top_k=1, capacity=2).flatten().tolist()]
    [True, True, False]
    """
    tokens = x.reshape(-1, x.shape[-1])
    weights, indices = route(tokens, w_router, top_k=top_k, router=router)
    kept = within_capacity(indices, w_router.shape[0], capacity, priority)
    out = torch.zeros_like(tokens)
    for e in range(w_router.shape[0]):
        row, slot = torch.nonzero((indices == e) & kept, as_tuple=True)
        if row.numel():
            own = gated_feed_forward(tokens[row], w_gate[e], w_up[e], w_down[e])
            out = out.index_add(0, row, weights[row, slot].unsqueeze(-1) * own)
    return out.reshape(x.shape)


def within_capacity(indices: Tensor, experts: int, capacity: int, priority: str) -> Tensor:
    """Which choices (N,K) find room: how many came before, to the same expert, is below its capacity."""
    if capacity < 1:
        raise ValueError(f"capacity={capacity} must be at least 1, got {capacity}; an expert takes one token or more")
    if priority not in PRIORITIES:
        raise ValueError(f"priority={priority!r} must be one of {PRIORITIES}, got {priority!r}; choose one of them")
    queue = indices if priority == "token" else indices.transpose(0, 1)
    chosen = torch.nn.functional.one_hot(queue.reshape(-1), experts)
    place = (chosen.cumsum(0) - chosen).gather(-1, queue.reshape(-1, 1)).reshape(queue.shape)
    return (place if priority == "token" else place.transpose(0, 1)) < capacity


def _form(name: str, routing: Router = route, applies: Callable[[Mapping[str, Any]], bool] | None = None, *,
          usual: bool = False, **parts: Any) -> Form:
    """A form of the mixture without limits, the weights of what is turned away made 0."""
    def forward(
        x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
        priority: str = "token", router: str = "softmax_of_topk",
    ) -> Tensor:
        def limited(tokens: Tensor, w_router: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
            weights, indices = routing(tokens, w_router, **options)
            return weights.masked_fill(~within_capacity(indices, w_router.shape[0], capacity, priority), 0.0), indices

        mixed = form_of(name, routing=limited, **parts).forward
        out: Tensor = mixed(x, w_router, w_gate, w_up, w_down, top_k=top_k, router=router)
        return out

    return Form(name, forward, applies=applies, usual=usual)


FORMS: tuple[Form, ...] = (
    _form("weights after the down projection"),
    _form("weights before the down projection", weighted_before=True),
    *(_form(f"activation {name}", activation=table["silu"]) for name, table in ACTIVATION_FORMS.items() if "silu" in table),
    *(_form(f"router {form.name}", form.forward, form.applies, usual=form.usual) for form in ROUTER_FORMS[1:]),
)
