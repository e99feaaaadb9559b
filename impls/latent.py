"""Latent attention as it is run in decoding: the expansion absorbed, one key and value head of latents for all query heads.

Source: DeepSeek-AI, "DeepSeek-V2", section 2.1.2, arXiv 2405.04434.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay


@assay.implements("latent_attention", name="latent-absorbed", version=torch.__version__)
def latent_attention(
    x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
    w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
    pairing: str = "interleaved", causal: bool = False, scale: float | None = None, eps: float = 1e-6,
) -> Tensor:
    """Queries go to the latent by the key rows, attend to the latents themselves, and values come out of their means."""
    kept = w_kv_norm.shape[0]
    compressed = F.linear(x, w_kv_a)
    latent = F.rms_norm(compressed[..., :kept], (kept,), w_kv_norm, eps).unsqueeze(1)
    shared = turned(compressed[..., kept:].unsqueeze(1), positions, base, pairing)
    source = x if w_q_a is None or w_q_norm is None else F.rms_norm(F.linear(x, w_q_a), (w_q_a.shape[0],), w_q_norm, eps)
    query = F.linear(source, w_q).unflatten(-1, (num_heads, w_q.shape[0] // num_heads)).transpose(1, 2)
    own = query.shape[-1] - shared.shape[-1]
    rows = w_kv_b.unflatten(0, (num_heads, w_kv_b.shape[0] // num_heads))  # (H,N+Dv,L)
    absorbed = torch.cat([query[..., :own] @ rows[:, :own], turned(query[..., own:], positions, base, pairing)], -1)
    keys = torch.cat([latent, shared], -1)
    values = F.pad(latent, (0, shared.shape[-1]))  # as wide as the keys, for the sake of fast kernels
    mean = F.scaled_dot_product_attention(absorbed, keys.expand(-1, num_heads, -1, -1), values.expand(-1, num_heads, -1, -1),
                                          is_causal=causal, scale=query.shape[-1] ** -0.5 if scale is None else scale)
    out = mean[..., :kept] @ rows[:, own:].mT
    return F.linear(out.transpose(1, 2).flatten(2), w_o)


def turned(x: Tensor, positions: Tensor | None, base: float, pairing: str) -> Tensor:
    """(B,heads,T,R) by its positions, the angle in float32 or wider."""
    if positions is None:
        return x
    wide = torch.promote_types(x.dtype, torch.float32)
    exponents = torch.arange(0, x.shape[-1], 2, device=x.device).to(wide) / x.shape[-1]
    angle = positions.to(wide).unsqueeze(-1) * base**-exponents
    angle = angle if positions.dim() == 1 else angle.unsqueeze(1)
    cos, sin = angle.cos(), angle.sin()
    a, b = (x[..., 0::2], x[..., 1::2]) if pairing == "interleaved" else x.chunk(2, -1)
    pair = (a * cos - b * sin, a * sin + b * cos)
    return (torch.stack(pair, -1).flatten(-2) if pairing == "interleaved" else torch.cat(pair, -1)).to(x.dtype)
