"""Experts of limited capacity by GShard's dispatch and combine: products with a mask over (token, expert, place).

Source: Lepikhin et al., "GShard", algorithm 1 and section 3.2, arXiv 2006.16668.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay
from assay.impls.grouped_moe import best, gated


@assay.implements("capacity_moe", name="gshard-dispatch", version=torch.__version__)
def dispatched(
    x: Tensor, w_router: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, top_k: int, capacity: int,
    priority: str = "token",
) -> Tensor:
    """A mask over (token, expert, place) sends tokens to their places and weighs what comes back; empty places hold zeros."""
    tokens, experts = x.flatten(0, 1), w_router.shape[0]
    (weights, chosen), room = best(tokens, w_router, top_k), min(capacity, tokens.shape[0])
    queue = F.one_hot(chosen, experts)  # (N,K,E)
    queue = queue if priority == "token" else queue.transpose(0, 1)
    place = (queue.flatten(0, 1).cumsum(0).reshape(queue.shape) - queue).masked_fill(queue == 0, room)
    place = place if priority == "token" else place.transpose(0, 1)
    held = F.one_hot(place.clamp(max=room), room + 1)[..., :room].to(x.dtype)  # (N,K,E,places), nothing beyond the last
    sent = torch.einsum("nkep,nc->epc", held, tokens)
    own = torch.stack([gated(sent[e], w_gate[e], w_up[e], w_down[e]) for e in range(experts)])
    return torch.einsum("nk,nkep,epc->nc", weights, held, own).reshape(x.shape)
