"""A mixture of experts by sorting: tokens lie in the order of their experts, and each expert is one product over its own run.

Source: Gale et al., "MegaBlocks", section 3, arXiv 2211.15841, without its padding to blocks: no token is dropped.
"""
from __future__ import annotations

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
    tokens, experts = x.reshape(-1, x.shape[-1]), w_router.shape[0]
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k={top_k} must lie in 1 … E = {experts}, got {top_k}; choose at least one expert and at most all")
    scores = F.linear(tokens, w_router)
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :top_k]  # ties go to the lower index
    weights = scores.gather(-1, chosen).softmax(-1)
    order = torch.argsort(chosen.flatten(), stable=True)  # copies of tokens by expert: copy n·K + j is token n's j-th choice
    ends = chosen.flatten().bincount(minlength=experts).cumsum(0)
    sent = tokens[order // top_k]
    own = by_segments(sent, ends.tolist(), w_gate, w_up, w_down)
    back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=order.device))
    parts = own[back].reshape(*chosen.shape, x.shape[-1])
    out = (weights.unsqueeze(-1) * parts).sum(1)
    if shared is not None:
        out = out + gated(tokens, *shared)
    return out.reshape(x.shape)


def by_segments(sent: Tensor, ends: list[int], w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Every expert on its contiguous run of rows, which ends at ends[e]."""
    starts = [0, *ends[:-1]]
    return torch.cat([gated(sent[start:end], w_gate[e], w_up[e], w_down[e])
                      for e, (start, end) in enumerate(zip(starts, ends, strict=True)) if end > start] or [sent])


def gated(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """One expert: (silu(x · w_gateᵀ) ⊙ (x · w_upᵀ)) · w_downᵀ."""
    return F.linear(F.silu(F.linear(x, w_gate)) * F.linear(x, w_up), w_down)
