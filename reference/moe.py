"""Mixture of experts: every token through its few experts, weighted by the router."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.bound import precision
from assay.numbers.forms import Form
from assay.reference.feed_forward import ACTIVATION_FORMS, ACTIVATIONS, Activation
from assay.reference.gated_feed_forward import gated_feed_forward
from assay.reference.router import FORMS as ROUTER_FORMS
from assay.reference.router import router as route

CAPACITIES = ("none", "drops")
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
    if capacity not in CAPACITIES:
        raise ValueError(f"capacity={capacity!r} must be one of {CAPACITIES}, got {capacity!r}; choose one of them")
    tokens = x.reshape(-1, x.shape[-1])
    weights, indices = route(tokens, w_router, top_k=top_k, router=router)
    out = torch.zeros_like(tokens)
    for e in range(w_router.shape[0]):
        row, slot = torch.nonzero(indices == e, as_tuple=True)
        if row.numel():
            own = gated_feed_forward(tokens[row], w_gate[e], w_up[e], w_down[e])
            out = out.index_add(0, row, weights[row, slot].unsqueeze(-1) * own)
    if shared is not None:
        out = out + gated_feed_forward(tokens, *shared)
    return out.reshape(x.shape)


# The forms compute every expert at once for every token and take the chosen ones: few operations for the bound engine.
def form_of(
    name: str, *, activation: Activation = ACTIVATIONS["silu"], routing: Router = route, weighted_before: bool = False,
    applies: Callable[[Mapping[str, Any]], bool] | None = None, usual: bool = False,
) -> Form:
    """The mixture by a form of the activation, a form of the router, and a place for the weights."""
    def forward(
        x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int,
        shared: Shared | None = None, router: str = "softmax_of_topk", capacity: str = "none",
    ) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        weights, indices = routing(tokens, w_router, top_k=top_k, router=router)
        hidden = _hidden(tokens, w_gate, w_up, activation)  # (E,N,F)
        if weighted_before:
            by_expert = torch.zeros_like(hidden[..., 0].transpose(0, 1)).scatter(-1, indices, weights)
            hidden = by_expert.transpose(0, 1).unsqueeze(-1) * hidden
        every = (hidden @ w_down.transpose(-2, -1)).transpose(0, 1)  # (N,E,C)
        own = every.gather(1, indices.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
        parts = own if weighted_before else weights.unsqueeze(-1) * own
        if shared is not None:
            alone = _hidden(tokens, shared[0], shared[1], activation) @ shared[2].transpose(0, 1)
            parts = torch.cat([parts, alone.unsqueeze(1)], 1)
        with precision("spilled"):  # experts one after another add to a sum in the stored type
            return parts.sum(1).reshape(x.shape)

    return Form(name, forward, applies=applies, usual=usual)


def _hidden(tokens: Tensor, w_gate: Tensor, w_up: Tensor, activation: Activation) -> Tensor:
    """silu(tokens · w_gateᵀ) ⊙ (tokens · w_upᵀ), of one expert or of all."""
    return activation(tokens @ w_gate.transpose(-2, -1)) * (tokens @ w_up.transpose(-2, -1))


FORMS: tuple[Form, ...] = (
    form_of("weights after the down projection"),
    form_of("weights before the down projection", weighted_before=True),
    *(form_of(f"activation {name}", activation=table["silu"]) for name, table in ACTIVATION_FORMS.items() if "silu" in table),
    *(form_of(f"router {form.name}", routing=form.forward, applies=form.applies, usual=form.usual) for form in ROUTER_FORMS[1:]),
)
