"""A mixture of experts by sorting: tokens lie in the order of their experts, and each expert is one product over its own run.

Source: Gale et al., "MegaBlocks", section 3, arXiv 2211.15841, without its padding to blocks: no token is dropped.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

import assay

Shared = tuple[Tensor, Tensor, Tensor]


@assay.implements("moe", name="grouped-moe", version=torch.__version__)
def grouped_moe(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, shared: Shared | None = None,
) -> Tensor:
    """Sort, segment, weigh, and add up by token; experts without a token do nothing."""
    return routed(x, w_router, (w_gate, w_up, w_down), top_k, shared, lambda sent, ends, *w: by_segments(sent, ends.tolist(), *w))


def routed(x: Tensor, w_router: Tensor, experts: Shared, top_k: int, shared: Shared | None,
           run: Callable[..., Tensor]) -> Tensor:
    """The mixture, given how all experts are run on rows in their order: run(rows, ends, w_gate, w_up, w_down)."""
    tokens, number = x.reshape(-1, x.shape[-1]), w_router.shape[0]
    weights, chosen = best(tokens, w_router, top_k)
    order = torch.argsort(chosen.flatten(), stable=True)  # copies of tokens by expert: copy n·K + j is token n's j-th choice
    ends = chosen.flatten().bincount(minlength=number).cumsum(0)
    own = run(tokens[order // top_k], ends, *experts)
    back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    parts = own[back].reshape(*chosen.shape, x.shape[-1])
    out = (weights.unsqueeze(-1) * parts).sum(1)
    if shared is not None:
        out = out + gated(tokens, *shared)
    return out.reshape(x.shape)


def best(tokens: Tensor, w_router: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """(N,K) weights of the best experts of each token, and which they are; ties go to the lower index."""
    number = len(w_router)
    if not 1 <= top_k <= number:
        raise ValueError(f"top_k={top_k} must lie in 1 … E = {number}, got {top_k}; choose at least one expert and at most all")
    scores = F.linear(tokens, w_router)
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :top_k]
    return scores.gather(-1, chosen).softmax(-1), chosen


def by_segments(sent: Tensor, ends: list[int], w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Every expert on its contiguous run of rows, which ends at ends[e]."""
    starts = [0, *ends[:-1]]
    return torch.cat([gated(sent[start:end], w_gate[e], w_up[e], w_down[e])
                      for e, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start] or [sent])


def gated(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """One expert: (silu(x · w_gateᵀ) ⊙ (x · w_upᵀ)) · w_downᵀ."""
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)
