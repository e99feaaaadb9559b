"""Liger-Kernel's losses of preferences and policies, plain torch: what its layers make of a chunk's log-probabilities."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("triton", "liger_kernel")
OPTIONS: dict[str, Any] = {"dtypes": ("float32", "bfloat16", "float16"), "version": installed("liger-kernel"),
                           "url": "https://github.com/linkedin/Liger-Kernel"}


def preferred(method: str, r_chosen: Tensor, r_rejected: Tensor, **options: Any) -> Tensor:
    """The loss of this method with beta 1, scores in the place of log-probabilities; it counts the pairs by its targets."""
    loss = getattr(late(f"liger_kernel.chunked_loss.{method.lower()}_loss"), f"LigerFusedLinear{method}Function")
    pairs = r_chosen.new_empty(2 * len(r_chosen))
    out: Tensor = loss.preference_loss_fn(r_chosen, r_rejected, pairs, beta=1.0, **options)[0]
    return out


@assay.implements("preference_loss", name="liger-dpo", **OPTIONS)
def dpo(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """`LigerFusedLinearDPOFunction` without a reference model."""
    return preferred("DPO", r_chosen, r_rejected)


@assay.implements("preference_loss", name="liger-simpo", **OPTIONS)
def simpo(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """`LigerFusedLinearSimPOFunction` with a margin of 0."""
    return preferred("SimPO", r_chosen, r_rejected, gamma=0.0)


@assay.implements("preference_loss", name="liger-cpo", **OPTIONS)
def cpo(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """`LigerFusedLinearCPOFunction`."""
    return preferred("CPO", r_chosen, r_rejected)


@assay.implements("policy_loss", name="liger-grpo", conventions={"kl": "k3"}, **OPTIONS)
def grpo(logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantage: Tensor, *, clip: float, kl: float,
         mask: Tensor | None = None) -> Tensor:
    """`LigerFusedLinearGRPOFunction`, every token a sequence of its own: an advantage there belongs to a sequence."""
    loss = late("liger_kernel.chunked_loss.grpo_loss").LigerFusedLinearGRPOFunction
    tokens = [one.reshape(-1, 1) for one in (logp, logp_old, logp_ref)]
    counted = torch.ones_like(tokens[0]) if mask is None else mask.reshape(-1, 1).to(logp.dtype)
    out: Tensor = loss.ppo_loss_fn(tokens[0], counted, advantage.reshape(-1), counted, ref_per_token_logps=tokens[2],
                                   old_per_token_logps=tokens[1], epsilon_low=clip, epsilon_high=clip, beta=kl, loss_type="bnpo")[0]
    return out
