"""Planted faults of multi-head latent attention: right outputs, wrong gradients."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from assay.faults.latent_attention import Call, latent, mixed, parts, planted, split, turned
from assay.registry import fault


@planted(fault, "no gradient reaches the latent's weights")
def norm_weight_detached(c: Call) -> Tensor:
    return mixed(replace(c, w_kv_norm=c.w_kv_norm.detach())) + 0 * c.w_kv_norm.clamp(-1, 1).sum()


@planted(fault, "the latent's root mean square is taken for a constant in backward")
def root_detached(c: Call) -> Tensor:
    raw = latent(c)[0]
    return mixed(c, parts(c, raw / torch.sqrt(raw.square().mean(-1, keepdim=True) + c.eps).detach() * c.w_kv_norm))


@planted(fault, "the shared key gets the gradient of the first head alone")
def rotary_key_gradient_of_one_head(c: Call) -> Tensor:
    m = parts(c)
    first = (torch.arange(c.heads) == 0)[:, None, None]
    return mixed(c, replace(m, r=torch.where(first, m.r, m.r.detach())))


@planted(fault, "no gradient goes through the values")
def values_detached(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, v=m.v.detach() + 0 * m.k[..., :1].clamp(-1, 1)))


@planted(fault, "no gradient goes through the rotary key")
def rotary_key_detached(c: Call) -> Tensor:
    m = parts(c)
    return mixed(c, replace(m, r=m.r.detach()))


@planted(fault, "the rotary key's gradient is not turned back")
def rotary_gradient_not_turned_back(c: Call) -> Tensor:
    m, plain = parts(c), latent(c)[1].expand(-1, c.heads, -1, -1)
    return mixed(c, replace(m, r=m.r.detach() + plain - plain.detach()))


@planted(fault, "tokens get no gradient through their queries")
def query_input_detached(c: Call) -> Tensor:
    m, other = parts(c), parts(replace(c, x=c.x.detach()))
    return mixed(c, replace(m, q=other.q, p=other.p))


@planted(fault, "the queries' norm gets no gradient")
def query_norm_weight_detached(c: Call) -> Tensor:
    if c.w_q_norm is None:
        return mixed(c)
    return mixed(replace(c, w_q_norm=c.w_q_norm.detach())) + 0 * c.w_q_norm.clamp(-1, 1).sum()


@planted(fault, "the queries' compression gets the gradient as if nothing were normalised")
def query_root_detached(c: Call) -> Tensor:
    if c.w_q_a is None or c.w_q_norm is None:
        return mixed(c)
    raw = c.x @ c.w_q_a.mT
    source = raw / torch.sqrt(raw.square().mean(-1, keepdim=True) + c.eps).detach() * c.w_q_norm
    q = split(source @ c.w_q.mT, c.heads)
    return mixed(c, replace(parts(c), q=q[..., : c.own], p=turned(c, q[..., c.own:])))


@planted(fault, "the expansion's gradient is that of the keys alone")
def expansion_gradient_of_keys_alone(c: Call) -> Tensor:
    return mixed(c, replace(parts(c), v=parts(replace(c, w_kv_b=c.w_kv_b.detach())).v))


@planted(fault, "weights' gradients are those of the first sample alone")
def weight_gradient_of_one_sample(c: Call) -> Tensor:
    first = (torch.arange(c.x.shape[0]) == 0)[:, None, None]
    fixed = replace(c, w_q=c.w_q.detach(), w_kv_a=c.w_kv_a.detach(), w_kv_b=c.w_kv_b.detach(), w_o=c.w_o.detach())
    return torch.where(first, mixed(c), mixed(fixed))
