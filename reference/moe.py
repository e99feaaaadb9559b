"""Mixture of experts: every token through its few experts, weighted by the router."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import gated_feed_forward as _gated
from assay.reference.router import FORMS as ROUTER_FORMS
from assay.reference.router import router as route

CAPACITIES = ("none", "drops")
Expert = Callable[..., Tensor]
Router = Callable[..., tuple[Tensor, Tensor]]
Shared = tuple[Tensor, Tensor, Tensor]


def moe(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int,
    shared: Shared | None = None,
    router: str = "softmax_of_topk", capacity: str = "none",
) -> Tensor:
    """Sum the outputs of each token's chosen experts by the router's weights, plus a shared expert where there is one.

    Formula: y = Σ_{i in S} g_i · E_i(x) + E_shared(x), E_i(x) = (silu(x · w_gate_iᵀ) ⊙ (x · w_up_iᵀ)) · w_down_iᵀ, g
    and S as
    the router gives them.

    x: (B, T, C)
    w_router: (E, C)
    w_gate, w_up: (E, F, C)
    w_down: (E, C, F)
    shared: None or (w_gate, w_up, w_down) of one more expert, added once and unweighted
    returns: (B, T, C)

    Conventions: router as in `router`; capacity "none": no token is ever dropped (how many "drops" drops is each
    implementation's own, so the formula is that of the tokens that it keeps).
    Raises: ValueError as `router`, or for an unknown capacity.
    Source: Jiang et al., "Mixtral of Experts", section 2.1, arXiv 2401.04088; Dai et al., "DeepSeekMoE", section 3.2
    (shared
    experts), arXiv 2401.06066.

    >>> x, one = torch.ones(1, 1, 1), torch.ones(2, 1, 1)
    >>> moe(x, torch.tensor([[0.0], [1.0]]), one, one, torch.tensor([[[1.0]], [[2.0]]]), top_k=1).shape
    torch.Size([1, 1, 1])
    """
    return _mixed(x, w_router, w_gate, w_up, w_down, top_k, shared, router, capacity, _gated.gated_feed_forward, _weight_last)


def _mixed(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, top_k: int, shared: Shared | None,
    router: str, capacity: str, silu_gated: Expert, weighted: Callable[..., Tensor], routing: Router = route,
) -> Tensor:
    """The mixture over a form of the expert, a way to apply the router's weights, and a form of the router."""
    if capacity not in CAPACITIES:
        raise ValueError(f"capacity={capacity!r} must be one of {CAPACITIES}, got {capacity!r}; choose one of them")
    tokens = x.reshape(-1, x.shape[-1])
    weights, indices = routing(tokens, w_router, top_k=top_k, router=router)
    out = torch.zeros_like(tokens)
    for e in range(w_router.shape[0]):
        row, slot = torch.nonzero(indices == e, as_tuple=True)
        if row.numel() == 0:
            continue
        g, inputs = weights[row, slot].unsqueeze(-1), tokens[row]
        out = out.index_add(0, row, weighted(silu_gated, inputs, w_gate[e], w_up[e], w_down[e], g))
    if shared is not None:
        out = out + silu_gated(tokens, *shared)
    return out.reshape(x.shape)


def _weight_last(expert: Expert, x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, g: Tensor) -> Tensor:
    """g · E(x)."""
    return g * expert(x, w_gate, w_up, w_down)


def _weight_first(expert: Expert, x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, g: Tensor) -> Tensor:
    """(g ⊙ hidden) · w_downᵀ: the weights multiply before the down projection."""
    hidden = expert(x, w_gate, w_up, torch.eye(w_gate.shape[0], dtype=x.dtype, device=x.device))
    return (g * hidden) @ w_down.transpose(0, 1)


def _form(
    name: str, expert: Expert, weighted: Callable[..., Tensor], routing: Router = route,
    applies: Callable[[Mapping[str, Any]], bool] | None = None,
) -> Form:
    def forward(
        x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int,
        shared: Shared | None = None, router: str = "softmax_of_topk", capacity: str = "none",
    ) -> Tensor:
        return _mixed(x, w_router, w_gate, w_up, w_down, top_k, shared, router, capacity, expert, weighted, routing)

    return Form(name, forward, applies=applies)


_EXPERTS = [form for form in _gated.FORMS if form.applies is None or form.applies({"activation": "silu"})]
FORMS: tuple[Form, ...] = (
    Form("weights after the down projection", moe),
    _form("weights before the down projection", _gated.gated_feed_forward, _weight_first),
    *(_form(f"expert {form.name}", form.forward, _weight_last) for form in _EXPERTS[1:]),
    *(_form(f"router {form.name}", _gated.gated_feed_forward, _weight_last, form.forward, form.applies)
      for form in ROUTER_FORMS[1:]),
)
