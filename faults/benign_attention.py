"""Legitimate ways to compute attention: none of them may ever fail."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from assay.registry import benign

Way = Callable[..., torch.Tensor]
Inner = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (masked scores, values) -> output
LOG2E = 1.0 / math.log(2.0)


def _open(q: torch.Tensor, k: torch.Tensor, mask: Any, bias: Any, causal: bool, window: Any) -> torch.Tensor:
    row = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
    column = torch.arange(k.shape[-2])[None, :]
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    if causal:
        seen = seen & (column <= row)
    if window is not None:
        left, right = window if isinstance(window, tuple) else (window - 1, 0)
        seen = seen & (column >= row - left) & (column <= row + right)
    if mask is not None:
        seen = seen & mask
    return seen if bias is None else seen & (bias != -math.inf)


def _shared(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.repeat_interleave(heads // x.shape[1], 1)


def _factor(q: torch.Tensor, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else scale


def _scores(
    q: torch.Tensor,
    k: torch.Tensor,
    seen: torch.Tensor,
    bias: Any,
    scale: float | None,
    softcap: float | None,
    both: bool,
) -> torch.Tensor:
    factor = _factor(q, scale)
    root = abs(factor) ** 0.5
    left, right, after = (q * math.copysign(root, factor), k * root, 1.0) if both else (q, k, factor)
    s = (left @ right.transpose(-1, -2)) * after
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.masked_fill(bias == -math.inf, 0.0).to(s.dtype)
    return s.masked_fill(~seen, -math.inf)


def _whole(
    inner: Inner,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    inside: str = "input",
    both: bool = False,
    order: str = "forward",
) -> torch.Tensor:
    """Scores in the type `inside`, then the way at hand; rows that see no key give zeros."""
    dtype = q.dtype
    wide = {"input": dtype, "float32": torch.promote_types(torch.float32, dtype), "float64": torch.float64}[inside]
    keys, values, queries = _shared(k, q.shape[1]).to(wide), _shared(v, q.shape[1]).to(wide), q.to(wide)
    if not k.shape[-2]:  # no keys: sums over nothing
        return ((queries @ keys.transpose(-1, -2)) @ values).to(dtype)
    seen = _open(q, k, mask, bias, causal, window)
    empty = ~seen.any(-1, keepdim=True)
    s = _scores(queries, keys, seen | empty, bias, scale, softcap, both)
    if order != "forward":
        n = k.shape[-2]
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(n))
        places = torch.arange(n).flip(0) if order == "reversed" else drawn
        s, values = s[..., places], values[..., places, :]
    return inner(s, values).to(dtype).masked_fill(empty, 0.0)


def _fused(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.softmax(s, -1) @ v


def _written(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)) @ v


def _unnormalised(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    e = (s - s.amax(-1, keepdim=True)).exp()
    return (e @ v) / e.sum(-1, keepdim=True)


def _base_two(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    e = ((s - s.amax(-1, keepdim=True)) * LOG2E).exp2()
    return (e @ v) * e.sum(-1, keepdim=True).reciprocal()


def _logarithm(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(s, -1).exp() @ v


def _products(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (F.softmax(s, -1).unsqueeze(-1) * v.unsqueeze(-3)).sum(-2)


def _single_softmax(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.softmax(s, -1, dtype=torch.promote_types(torch.float32, s.dtype)).to(v.dtype) @ v


def _rounded_weights(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Exponentials rounded for the product, summed before they are."""
    z = s.to(torch.promote_types(torch.float32, s.dtype))
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e.to(s.dtype) @ v).to(z.dtype) / e.sum(-1, keepdim=True)


def _tiled(size: int) -> Inner:
    def inner(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Online softmax over tiles of keys, sums in float32 or wider."""
        wide = torch.promote_types(torch.float32, s.dtype)
        top = s.new_full((*s.shape[:-1], 1), -math.inf, dtype=wide)
        total, out = torch.zeros_like(top), torch.zeros_like(top)
        for tile, values in zip(s.to(wide).split(size, -1), v.split(size, -2), strict=True):
            higher = torch.maximum(top, tile.amax(-1, keepdim=True)).detach()
            safe = higher.masked_fill(higher == -math.inf, 0.0)
            kept, e = (top - safe).exp(), (tile - safe).exp()
            total = total * kept + e.sum(-1, keepdim=True)
            out = out * kept + (e.to(v.dtype) @ values).to(wide)
            top = higher
        return out / total

    return inner


def _split(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two halves of the keys, each normalised, merged by their log-sum-exps."""
    z, half = s.to(torch.promote_types(torch.float32, s.dtype)), s.shape[-1] // 2
    sums, parts = [], []
    for scores, values in ((z[..., :half], v[..., :half, :]), (z[..., half:], v[..., half:, :])):
        blind = (scores == -math.inf).all(-1, keepdim=True)
        lse = scores.masked_fill(blind, 0.0).logsumexp(-1, keepdim=True)
        parts.append((scores - lse).exp() @ values.to(z.dtype))
        sums.append(lse.masked_fill(blind, -math.inf))
    joint = torch.cat(sums, -1).logsumexp(-1, keepdim=True)
    return parts[0] * (sums[0] - joint).exp() + parts[1] * (sums[1] - joint).exp()


class _Flash(torch.autograd.Function):
    """Weights recomputed from the log-sum-exp; D = rowsum(dO O) with the stored output."""

    @staticmethod
    def forward(ctx, s, v):  # type: ignore[no-untyped-def]
        lse = s.float().logsumexp(-1, keepdim=True) if s.dtype != torch.float64 else s.logsumexp(-1, keepdim=True)
        out = ((s - lse).exp() @ v.to(lse.dtype)).to(s.dtype)
        ctx.save_for_backward(s, v, lse, out)
        return out

    @staticmethod
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        s, v, lse, out = ctx.saved_tensors
        p = (s - lse).exp().to(s.dtype)
        inner = (upstream * out).sum(-1, keepdim=True)
        slopes = p * (upstream @ v.transpose(-1, -2) - inner)
        return slopes, p.transpose(-1, -2) @ upstream


def _flash(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return _Flash.apply(s, v)  # type: ignore[no-any-return, no-untyped-call]


def _sdpa(
    backend: SDPBackend | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: Any = None,
    bias: Any = None,
    causal: bool = False,
    window: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """torch's scaled_dot_product_attention, through one backend or whichever it picks."""
    if softcap is not None:
        raise NotImplementedError("softcap")
    seen = _open(q, k, mask, bias, causal, window)
    added: Any = None if bool(seen.all()) and bias is None else seen
    if bias is not None:
        added = bias.masked_fill(~seen, -math.inf)
    keys, values = _shared(k, q.shape[1]), _shared(v, q.shape[1])
    if added is not None and added.dim() == 3:
        added = added.unsqueeze(0)
    flash = backend is SDPBackend.FLASH_ATTENTION
    if flash and (v.shape[-1] != q.shape[-1] or q.numel() == 0 or not bool(seen.any(-1).all())):
        raise NotImplementedError("flash attention on the CPU wants equal widths and no empty rows")
    with sdpa_kernel([backend] if backend is not None else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        # flash attention takes no strides in the last dimension
        out = F.scaled_dot_product_attention(
            q.contiguous(), keys.contiguous(), values.contiguous(), attn_mask=added, scale=scale)
    return out.masked_fill(~seen.any(-1, keepdim=True), 0.0)


_way = functools.partial
BENIGN: dict[str, Way] = {
    "fused_softmax": _way(_whole, _fused),
    "written_out": _way(_whole, _written),
    "written_out_in_float32": _way(_whole, _written, inside="float32"),
    "float64_inside": _way(_whole, _fused, inside="float64"),
    "softmax_in_float32": _way(_whole, _single_softmax),
    "unnormalised": _way(_whole, _unnormalised),
    "unnormalised_in_float32": _way(_whole, _unnormalised, inside="float32"),
    "base_two": _way(_whole, _base_two),
    "base_two_in_float32": _way(_whole, _base_two, inside="float32"),
    "through_logarithm": _way(_whole, _logarithm, inside="float32"),
    "products_written_out": _way(_whole, _products),
    "rounded_weights": _way(_whole, _rounded_weights),
    "scaled_on_both_sides": _way(_whole, _fused, both=True),
    "reversed_keys": _way(_whole, _fused, order="reversed"),
    "shuffled_keys": _way(_whole, _written, order="shuffled"),
    "tiles_of_1": _way(_whole, _tiled(1), inside="float32"),
    "tiles_of_3": _way(_whole, _tiled(3)),
    "tiles_of_16_reversed": _way(_whole, _tiled(16), order="reversed"),
    "tiles_of_64": _way(_whole, _tiled(64), inside="float32", both=True),
    "split_and_merged": _way(_whole, _split),
    "flash_backward": _way(_whole, _flash),
    "sdpa_math": _way(_sdpa, SDPBackend.MATH),
    "sdpa_flash": _way(_sdpa, SDPBackend.FLASH_ATTENTION),
    "sdpa_default": _way(_sdpa, None),
}


def _plant(name: str, way: Way) -> None:
    """Register a way under its name, with the signature of the kind."""

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        return way(q, k, v, mask=mask, bias=bias, causal=causal, window=window, scale=scale, softcap=softcap)

    attention.__name__ = attention.__qualname__ = name
    benign("attention", summary=name.replace("_", " "))(attention)


for _name, _evaluated in BENIGN.items():
    _plant(_name, _evaluated)
