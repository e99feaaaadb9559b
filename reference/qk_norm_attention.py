"""Attention whose queries and keys are normalised first (QK-norm): scores cannot grow with their lengths."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import attention as _attention
from assay.reference.rms_norm import FORMS as NORM_FORMS
from assay.reference.rms_norm import rms_norm
from assay.reference.rotary import rotary

Window = int | tuple[int, int] | None
Norm = Callable[..., Tensor]


def qk_norm_attention(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, joint: bool = False, positions: Tensor | None = None,
    base: float = 10000.0, pairing: str = "interleaved", causal: bool = False, window: Window = None, scale: float | None = None,
    causal_alignment: str = "bottom_right",
) -> Tensor:
    """Normalise every head of every query and key, turn them by their positions, then attend.

    Formula: out = Attention(R(RMSNorm(q; w_q)), R(RMSNorm(k; w_k)), v), R the rotary embedding where positions are given; the norm
    is over the D channels of a head, or, with `joint`, over all channels of all heads of a token together.

    q: (B, H, Tq, D)
    k: (B, G, Tk, D), G divides H; head h reads group floor(h G / H)
    v: (B, G, Tk, Dv)
    w_q, w_k: (D,), shared by the heads; with `joint` (H·D,) and (G·D,), head after head
    positions: None, or (T,) or (B, T) integers for queries and keys alike (Tq = Tk)
    pairing, base: as in `rotary`; causal, window, scale: as in `attention`
    returns: (B, H, Tq, Dv)

    Raises: ValueError where G does not divide H, a weight has another shape, or positions are given where Tq ≠ Tk.
    Source: Henry et al., "Query-Key Normalization for Transformers", arXiv 2010.04245; Dehghani et al., "Scaling Vision
    Transformers to 22 Billion Parameters", section 2, arXiv 2302.05442; per head: Yang et al., "Qwen3 Technical Report", section 2,
    arXiv 2505.09388; joint: OLMo team, "2 OLMo 2 Furious", section 3.2, arXiv 2501.00656.

    >>> import torch
    >>> q, v = torch.tensor([[[[1.0, 0.0]]]]), torch.ones(1, 1, 1, 3)
    >>> qk_norm_attention(q, 1000 * q, v, torch.ones(2), torch.ones(2), eps=1e-6).flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    call = _Call(eps, joint, positions, base, pairing)
    left, right = _ready(call, q, w_q, rms_norm), _ready(call, k, w_k, rms_norm)
    if positions is not None and q.shape[2] != k.shape[2]:
        raise ValueError(f"positions={tuple(positions.shape)} must serve queries and keys alike, got Tq={q.shape[2]}, "
                         f"Tk={k.shape[2]}; leave positions out of cross-attention")
    return _attention.attention(left, right, v, causal=causal, window=window, scale=scale, causal_alignment=causal_alignment)


@dataclass(frozen=True)
class _Call:
    eps: float
    joint: bool
    positions: Tensor | None
    base: float
    pairing: str


def _ready(call: _Call, x: Tensor, weight: Tensor, norm: Norm) -> Tensor:
    """Queries or keys (B,heads,T,D), normalised and turned."""
    x = normalised(x, weight, call.eps, call.joint, norm)
    return x if call.positions is None else rotary(x, call.positions, base=call.base, pairing=call.pairing)


def normalised(x: Tensor, weight: Tensor, eps: float, joint: bool, norm: Norm = rms_norm) -> Tensor:
    """(B,heads,T,D), each head divided by its root mean square, or all heads of a token by that of them all."""
    if not joint:
        return norm(x, weight, eps=eps)
    batch, heads, length, width = x.shape
    tokens = norm(x.transpose(1, 2).reshape(batch, length, heads * width), weight, eps=eps)
    return tokens.reshape(batch, length, heads, width).transpose(1, 2)


def _form(inner: Form, norm: Form) -> Form:
    """A form of the attention behind a form of the norm."""
    def forward(
        q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *, eps: float, joint: bool = False,
        positions: Tensor | None = None, base: float = 10000.0, pairing: str = "interleaved", causal: bool = False,
        window: Window = None, scale: float | None = None, causal_alignment: str = "bottom_right",
    ) -> Tensor:
        call = _Call(eps, joint, positions, base, pairing)
        out: Tensor = inner.forward(_ready(call, q, w_q, norm.forward), _ready(call, k, w_k, norm.forward), v, causal=causal,
                                    window=window, scale=scale, causal_alignment=causal_alignment)
        return out

    return Form(f"{norm.name}, {inner.name}", forward, additions=inner.additions, usual=inner.usual)


# The forms of the norm meet those of the attention in turn: what each adds to the bar does not hang on the other.
FORMS: tuple[Form, ...] = (
    Form("as written", qk_norm_attention, additions=_attention.FORMS[0].additions),
    *(_form(_attention.FORMS[1 + place % 3], norm) for place, norm in enumerate(NORM_FORMS[1:])),
)
