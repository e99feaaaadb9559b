"""Multi-head latent attention: keys and values of all heads come out of one short vector a token, beside one shared rotary key."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import attention as _attention
from assay.reference.rms_norm import FORMS as NORM_FORMS
from assay.reference.rms_norm import rms_norm
from assay.reference.rotary import rotary

Norm = Callable[..., Tensor]
Attend = Callable[..., Tensor]


def latent_attention(
    x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
    w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
    pairing: str = "interleaved", causal: bool = False, scale: float | None = None, eps: float = 1e-6,
) -> Tensor:
    """Compress every token, expand it to keys and values of all heads, attend with a shared rotary key beside them, project back.

    Formula: (c, r) = x · w_kv_aᵀ; (k_h, v_h) = RMSNorm(c; w_kv_norm) · w_kv_bᵀ, head after head; (q_h, p_h) = x · w_qᵀ, head after
    head; s_h = scale · (q_h · k_hᵀ + R(p_h) · R(r)ᵀ), R the rotary embedding; y = (softmax(s_h) · v_h, side by side) · w_oᵀ.
    With w_q_a the queries are compressed too: they are expanded from RMSNorm(x · w_q_aᵀ; w_q_norm).

    Letters: L numbers of the latent, R of the rotary key, N of a head's key that is not turned, Dv of its value; R = rows of
    w_kv_a − L, N = rows of w_q / H − R, Dv = rows of w_kv_b / H − N.

    x: (B, T, C)
    w_q: (H·(N+R), C), or (H·(N+R), Lq) behind w_q_a
    w_kv_a: (L+R, C), the latent's rows first
    w_kv_norm: (L,)
    w_kv_b: (H·(N+Dv), L), each head's key rows before its value rows
    w_o: (C, H·Dv)
    w_q_a, w_q_norm: None, or (Lq, C) and (Lq,)
    positions: None (nothing is turned), or (T,) or (B, T) integers
    scale: 1/√(N+R) unless given
    returns: (B, T, C)

    Conventions: pairing, base as in `rotary`; eps of both norms.
    Raises: ValueError where the shapes do not fit, or w_q_a comes without w_q_norm.
    Source: DeepSeek-AI, "DeepSeek-V2", section 2.1, arXiv 2405.04434; "DeepSeek-V3", section 2.1.1, arXiv 2412.19437.

    >>> x, one = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]), torch.ones(1, 1)
    >>> latent_attention(x, torch.zeros(2, 2), torch.eye(2), one[0], torch.ones(2, 1), torch.ones(2, 1), num_heads=1).shape
    torch.Size([1, 2, 2])
    """
    call = _Call(num_heads, positions, base, pairing, causal, scale, eps)
    q, p, latent, r = _compressed(call, x, w_q, w_kv_a, w_kv_norm, w_q_a, w_q_norm, rms_norm)
    k, v = _expanded(call, latent, w_kv_b, q.shape[-1])
    query, key = torch.cat([q, p], -1), torch.cat([k, r.expand(*k.shape[:-1], r.shape[-1])], -1)
    return _projected(_attention.attention(query, key, v, causal=causal, scale=call.factor(query)), w_o)


@dataclass(frozen=True)
class _Call:
    heads: int
    positions: Tensor | None
    base: float
    pairing: str
    causal: bool
    scale: float | None
    eps: float

    def turned(self, x: Tensor) -> Tensor:
        """(B,heads,T,R) by its positions."""
        return x if self.positions is None else rotary(x, self.positions, base=self.base, pairing=self.pairing)

    def factor(self, query: Tensor) -> float:
        return _attention.scale_of(query, self.scale)


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight.transpose(0, 1)


def _compressed(call: _Call, x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_q_a: Tensor | None,
                w_q_norm: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (B,H,T,N) and their turned part (B,H,T,R), the normalised latent (B,T,L), the turned shared key (B,1,T,R)."""
    kept = w_kv_norm.shape[0]
    turns = w_kv_a.shape[0] - kept
    _check(call, w_q, turns, w_q_a, w_q_norm)
    source = x
    if w_q_a is not None and w_q_norm is not None:
        source = norm(_linear(x, w_q_a), w_q_norm, eps=call.eps)
    query = _split(_linear(source, w_q), call.heads)
    both = _linear(x, w_kv_a)
    latent = norm(both[..., :kept], w_kv_norm, eps=call.eps)
    own = query.shape[-1] - turns
    return query[..., :own], call.turned(query[..., own:]), latent, call.turned(both[..., kept:].unsqueeze(1))


def _expanded(call: _Call, latent: Tensor, w_kv_b: Tensor, own: int) -> tuple[Tensor, Tensor]:
    """Keys (B,H,T,N) and values (B,H,T,Dv) of every head."""
    both = _split(_linear(latent, w_kv_b), call.heads)
    return both[..., :own], both[..., own:]


def _split(x: Tensor, heads: int) -> Tensor:
    """(B,T,heads·width) to (B,heads,T,width)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def _projected(out: Tensor, w_o: Tensor) -> Tensor:
    """(B,H,T,Dv) to (B,T,C)."""
    batch, heads, length, width = out.shape
    return _linear(out.transpose(1, 2).reshape(batch, length, heads * width), w_o)


def _check(call: _Call, w_q: Tensor, turns: int, w_q_a: Tensor | None, w_q_norm: Tensor | None) -> None:
    if call.heads < 1 or w_q.shape[0] % call.heads:
        raise ValueError(f"num_heads={call.heads} must divide the {w_q.shape[0]} rows of w_q, got {call.heads}; choose a divisor")
    if turns < 1 or w_q.shape[0] // call.heads <= turns:
        raise ValueError(f"w_kv_a must have R = 1 … {w_q.shape[0] // call.heads - 1} rows more than w_kv_norm has numbers, "
                         f"got {turns}; its last rows make the shared rotary key")
    if (w_q_a is None) != (w_q_norm is None):
        raise ValueError("w_q_a must come with w_q_norm, got one of them; queries are compressed and normalised, or neither")


# --- other legitimate ways to evaluate it ----------------------------------------------------------------------------


def _form(name: str, norm: Norm, attend: Attend, additions: int) -> Form:
    """Keys and values expanded, by a form of the norm and one of the attention."""
    def forward(
        x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
        w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
        pairing: str = "interleaved", causal: bool = False, scale: float | None = None, eps: float = 1e-6,
    ) -> Tensor:
        call = _Call(num_heads, positions, base, pairing, causal, scale, eps)
        q, p, latent, r = _compressed(call, x, w_q, w_kv_a, w_kv_norm, w_q_a, w_q_norm, norm)
        k, v = _expanded(call, latent, w_kv_b, q.shape[-1])
        query, key = torch.cat([q, p], -1), torch.cat([k, r.expand(*k.shape[:-1], r.shape[-1])], -1)
        return _projected(attend(query, key, v, causal=causal, scale=call.factor(query)), w_o)

    return Form(name, forward, additions=additions)


def _absorbed(
    x: Tensor, w_q: Tensor, w_kv_a: Tensor, w_kv_norm: Tensor, w_kv_b: Tensor, w_o: Tensor, *, num_heads: int,
    w_q_a: Tensor | None = None, w_q_norm: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
    pairing: str = "interleaved", causal: bool = False, scale: float | None = None, eps: float = 1e-6,
) -> Tensor:
    """The expansion absorbed: queries are taken to the latent, the latent is attended to, and values come out of its mean."""
    call = _Call(num_heads, positions, base, pairing, causal, scale, eps)
    q, p, latent, r = _compressed(call, x, w_q, w_kv_a, w_kv_norm, w_q_a, w_q_norm, NORM_FORMS[-1].forward)
    factor = _attention.scale_of(torch.cat([q, p], -1), scale)
    rows = w_kv_b.reshape(num_heads, w_kv_b.shape[0] // num_heads, w_kv_b.shape[1])
    w_k, w_v = rows[:, : q.shape[-1]], rows[:, q.shape[-1]:]  # (H,N,L), (H,Dv,L)
    shared = latent.unsqueeze(1)
    query, key = torch.cat([q @ w_k, p], -1), torch.cat([shared, r], -1)
    mean = _attention.online_attention(query, key, shared, causal=causal, scale=factor)  # (B,H,T,L)
    return _projected(mean @ w_v.transpose(-1, -2), w_o)


_ONLINE = _attention.ONLINE_ADDITIONS
BOUND = "sampled"  # worst-case bars explode through projection, norm, projection, attention and projection
FORMS: tuple[Form, ...] = (
    Form("as written", latent_attention, additions=2),
    Form("absorbed", _absorbed, additions=_ONLINE),
    _form("cast before the weight, summed online", NORM_FORMS[1].forward, _attention.online_attention, _ONLINE),
    _form("weight before the scale, powers of two", NORM_FORMS[3].forward, _attention.base_two_attention, _ONLINE),
)
