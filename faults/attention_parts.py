"""A right attention in parts, so that a planted fault swaps one part and reads in a line or two."""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.registry import fault


@dataclass(frozen=True)
class Options:
    """The keyword arguments of one call."""

    mask: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None


Attention = Callable[[Tensor, Tensor, Tensor, Options], Tensor]
INFINITY = float("inf")


def named_scale(q: Tensor, o: Options) -> float:
    """The scale asked for, or one over the root of the key width."""
    return 1.0 / math.sqrt(q.shape[-1]) if o.scale is None else o.scale


def heads(shared: Tensor, q: Tensor) -> Tensor:
    """Key or value heads repeated in blocks, one for each query head."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], dim=1)


def capped(s: Tensor, o: Options) -> Tensor:
    """Scores after the softcap."""
    return s if o.softcap is None else o.softcap * torch.tanh(s / o.softcap)


def biased(s: Tensor, o: Options) -> Tensor:
    """Scores plus the bias."""
    return s if o.bias is None else s + o.bias


def scores(q: Tensor, k: Tensor, o: Options) -> Tensor:
    """Scaled, capped, biased scores (B,H,Tq,Tk)."""
    return biased(capped((q @ heads(k, q).mT) * named_scale(q, o), o), o)


def distance(q: Tensor, k: Tensor) -> Tensor:
    """How far each key lies behind each query, the last query beside the last key (Tq,Tk)."""
    tq, tk = q.shape[-2], k.shape[-2]
    return torch.arange(tk - tq, tk, device=q.device)[:, None] - torch.arange(tk, device=q.device)[None, :]


def positional(back: Tensor, o: Options) -> Tensor:
    """What causal and window leave of a distance matrix."""
    keep = torch.ones_like(back, dtype=torch.bool)
    if o.causal or o.window is not None:
        keep = keep & (back >= 0)
    return keep if o.window is None else keep & (back < o.window)


def visible(q: Tensor, k: Tensor, o: Options) -> Tensor:
    """Which keys each query may attend to, broadcast to (B,H,Tq,Tk)."""
    keep = positional(distance(q, k), o)
    if o.mask is not None:
        keep = keep & o.mask.bool()
    if o.bias is not None:
        keep = keep & (o.bias != -INFINITY)
    return keep


def weights(s: Tensor, keep: Tensor) -> Tensor:
    """Softmax over the kept keys; a row without any gives zeros."""
    keep = keep.expand(s.shape)
    some = keep.any(-1, keepdim=True)
    s = torch.where(some, s.masked_fill(~keep, -INFINITY), torch.zeros_like(s))
    return torch.softmax(s, -1) * some


def attend(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    """The right attention."""
    return weights(scores(q, k, o), visible(q, k, o)) @ heads(v, q)


class _Tampered(torch.autograd.Function):
    """The identity forward; backward passes the gradient through `change`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradients[0]), None


def tampered(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """x itself, whose gradient is `change(gradient)`."""
    result: Tensor = _Tampered.apply(x, change)  # type: ignore[no-untyped-call]
    return result


class _Borrowed(torch.autograd.Function):
    """One function forward, the gradients of another backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, right: Callable[..., Tensor],
                other: Callable[..., Tensor]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.other = other
        return right(q, k, v)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        inputs = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.other(*inputs)
        return (*torch.autograd.grad(out, inputs, upstream[0], allow_unused=True), None, None)


def borrowed(q: Tensor, k: Tensor, v: Tensor, o: Options, other: Attention) -> Tensor:
    """The right forward with the gradients of `other`."""
    result: Tensor = _Borrowed.apply(  # type: ignore[no-untyped-call]
        q, k, v, lambda q, k, v: attend(q, k, v, o), lambda q, k, v: other(q, k, v, o))
    return result


def planted(summary: str, origin: str = "") -> Callable[[Attention], Attention]:
    """Give a fault `(q, k, v, options)` the signature of the kind, under its own name, and register it."""

    def register(wrong: Attention) -> Attention:
        def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None,
                      causal: bool = False, window: int | None = None, scale: float | None = None,
                      softcap: float | None = None) -> Tensor:
            return wrong(q, k, v, Options(mask, bias, causal, window, scale, softcap))

        attention.__name__ = attention.__qualname__ = wrong.__name__
        attention.__module__, attention.__doc__ = wrong.__module__, summary
        fault("attention", origin=origin, summary=summary)(attention)
        return wrong

    return register
