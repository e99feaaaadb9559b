"""A right multi-head attention in parts, so that a planted fault swaps one part and reads in a line or two."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, attend
from assay.faults.planting import planter
from assay.registry import fault


@dataclass(frozen=True)
class Call:
    """One call."""

    x: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor
    w_o: Tensor
    heads: int
    groups: int
    context: Tensor | None
    values: Tensor | None
    key_mask: Tensor | None
    mask: Tensor | None
    causal: bool
    window: int | None
    b_q: Tensor | None
    b_k: Tensor | None
    b_v: Tensor | None
    b_o: Tensor | None
    w_gate: Tensor | None
    positions: Tensor | None
    base: float

    @property
    def source(self) -> Tensor:
        """Where keys come from."""
        return self.x if self.context is None else self.context

    def joined(self) -> Tensor | None:
        """Both masks as one."""
        keys = None if self.key_mask is None else self.key_mask.bool()[:, None, None, :]
        if self.mask is None:
            return keys
        pairs = (self.mask if self.mask.dim() == 3 else self.mask[None]).bool()[:, None]
        return pairs if keys is None else keys & pairs


Way = Callable[[Call], Tensor]


def linear(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """x·wᵀ + b."""
    return x @ w.mT if b is None else x @ w.mT + b


def split(x: Tensor, heads: int) -> Tensor:
    """(B,T,heads·D) to (B,heads,T,D)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def merge(x: Tensor) -> Tensor:
    """(B,H,T,D) to (B,T,H·D)."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def turned(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary, interleaved."""
    d = x.shape[-1]
    rates = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
    angle = positions.double()[..., None] * rates
    angle = angle[:, None] if angle.dim() == 3 else angle
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def projected(c: Call) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys, values by head, turned where positions are given."""
    q = split(linear(c.x, c.w_q, c.b_q), c.heads)
    k = split(linear(c.source, c.w_k, c.b_k), c.groups)
    v = split(linear(c.source if c.values is None else c.values, c.w_v, c.b_v), c.groups)
    if c.positions is None:
        return q, k, v
    return turned(q, c.positions, c.base), turned(k, c.positions, c.base), v


def by_heads(c: Call) -> Tensor:
    """Attention of every head (B,H,T,Dv)."""
    q, k, v = projected(c)
    return attend(q, k, v, Options(mask=c.joined(), causal=c.causal, window=c.window))


def closed(c: Call, merged: Tensor) -> Tensor:
    """Gate and output projection."""
    if c.w_gate is not None:
        merged = merged * torch.sigmoid(c.x @ c.w_gate.mT)
    return linear(merged, c.w_o, c.b_o)


def right(c: Call) -> Tensor:
    """The right multi-head attention."""
    return closed(c, merge(by_heads(c)))


def refuse(c: Call) -> None:
    """What the statements say is refused."""
    tq, tk = c.x.shape[1], c.source.shape[1]
    if c.w_q.shape[0] % c.heads or c.heads % c.groups:
        raise ValueError(f"num_heads={c.heads} must divide the rows of w_q and be a multiple of {c.groups}; choose another")
    if c.mask is not None and tuple(c.mask.shape) not in ((tq, tk), (c.x.shape[0], tq, tk)):
        raise ValueError(f"mask.shape={tuple(c.mask.shape)} must be {(tq, tk)} with or without the batch; use key_mask for keys")
    if c.key_mask is not None and tuple(c.key_mask.shape) != (c.x.shape[0], tk):
        raise ValueError(f"key_mask.shape={tuple(c.key_mask.shape)} must be {(c.x.shape[0], tk)}; use mask for pairs")


def planted(mark: Callable[..., Any], summary: str, origin: str = "", *, refuses: bool = True,
            **options: Any) -> Callable[[Way], Way]:
    """Give a way to attend the signature of the kind, under its own name, and register it."""
    def signed(wrong: Way) -> Callable[..., Tensor]:
        def multi_head_attention(
            x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int,
            num_kv_heads: int | None = None, context: Tensor | None = None, values: Tensor | None = None,
            key_mask: Tensor | None = None, mask: Tensor | None = None, causal: bool = False, window: int | None = None,
            b_q: Tensor | None = None, b_k: Tensor | None = None, b_v: Tensor | None = None, b_o: Tensor | None = None,
            w_gate: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
        ) -> Tensor:
            c = Call(x, w_q, w_k, w_v, w_o, num_heads, num_kv_heads or num_heads, context, values, key_mask, mask, causal,
                     window, b_q, b_k, b_v, b_o, w_gate, positions, base)
            if refuses:
                refuse(c)
            return wrong(c)

        return multi_head_attention

    extra = {"origin": origin} if mark is fault else {}
    return planter("multi_head_attention", signed)(mark, summary, **extra, **options)
