"""Multi-head attention: projections, heads, attention, output projection."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference import attention as _attention
from assay.reference.feed_forward import bias_among_terms
from assay.reference.rotary import rotary

Attend = Callable[..., Tensor]


def multi_head_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, num_kv_heads: int | None = None,
    context: Tensor | None = None, values: Tensor | None = None, key_mask: Tensor | None = None,
    mask: Tensor | None = None,
    causal: bool = False, window: int | tuple[int, int] | None = None, b_q: Tensor | None = None, b_k: Tensor | None = None,
    b_v: Tensor | None = None, b_o: Tensor | None = None, w_gate: Tensor | None = None, positions: Tensor | None = None,
    base: float = 10000.0, causal_alignment: str = "bottom_right", empty_row: str = "zeros",
) -> Tensor:
    """Project tokens to heads, attend in each head, and project the heads' outputs, side by side, back.

    Formula: y = ((head_1, …, head_H) ⊙ σ(x · w_gateᵀ)) · w_oᵀ + b_o, head_h = Attention(x·W_h^Q, context·W_g^K,
    values·W_g^V),
    g = ⌊h·G/H⌋; without w_gate the factor is 1.

    x: (B, Tq, C)
    w_q: (H·D, C)
    w_k: (G·D, C)
    w_v: (G·Dv, C)
    w_o: (C, H·Dv)
    context: None (self-attention) or (B, Tk, C): where keys, and values unless given, come from
    values: None or (B, Tk, C)
    key_mask: None or (B, Tk) bool, True = real
    mask: None or (Tq, Tk) or (B, Tq, Tk) bool, True = may attend
    b_q, b_k, b_v, b_o: None or one number for each row of the weight
    w_gate: None or (H·Dv, C)
    positions: None, or (T,) or (B, T) integers: rotary (interleaved) turns queries and keys
    returns: (B, Tq, C)

    Conventions: masks combine by logical and; causal_alignment as `attention`; a row without keys gives zeros before
    w_o.
    Raises: ValueError where H does not divide the rows of w_q, G does not divide H or the rows of w_k and w_v, a mask
    has another
    shape, or positions are given where Tq ≠ Tk.
    Source: Vaswani et al., "Attention Is All You Need", section 3.2.2, arXiv 1706.03762; Ainslie et al., "GQA",
    section 2.2,
    arXiv 2305.13245; Qiu et al., "Gated Attention for Large Language Models", section 2.2, arXiv 2505.06708.

    >>> x, one = torch.tensor([[[2.0], [4.0]]]), torch.ones(1, 1)
    >>> multi_head_attention(x, one * 0, one, one, one, num_heads=1).flatten().tolist()
    [3.0, 3.0]
    """
    call = _Call(num_heads, num_kv_heads or num_heads, causal, window, base, causal_alignment, empty_row)
    return _heads_mixed(call, _attention.attention, (x, w_q, w_k, w_v, w_o), context, values, key_mask, mask,
                        (b_q, b_k, b_v, b_o), w_gate, positions)


@dataclass(frozen=True)
class _Call:
    heads: int
    groups: int
    causal: bool
    window: int | tuple[int, int] | None
    base: float
    alignment: str
    empty_row: str
    bias_joins: bool = False  # whether a bias is one more term of its sum


def _heads_mixed(call: _Call, attend: Attend, tensors: tuple[Tensor, ...], context: Tensor | None, values: Tensor | None,
                 key_mask: Tensor | None, mask: Tensor | None, biases: tuple[Tensor | None, ...], w_gate: Tensor | None,
                 positions: Tensor | None) -> Tensor:
    """The formula over one form of the attention."""
    x, w_q, w_k, w_v, w_o = tensors
    _check(call, x, w_q, w_k, w_v)
    source = x if context is None else context
    q = _split(_linear(x, w_q, biases[0], call.bias_joins), call.heads)
    k = _split(_linear(source, w_k, biases[1], call.bias_joins), call.groups)
    v = _split(_linear(source if values is None else values, w_v, biases[2], call.bias_joins), call.groups)
    if positions is not None:
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"positions={tuple(positions.shape)} must serve queries and keys alike, got Tq={q.shape[2]}, "
                             f"Tk={k.shape[2]}; leave positions out of cross-attention")
        q, k = rotary(q, positions, base=call.base), rotary(k, positions, base=call.base)
    heads = attend(q, k, v, mask=joined_mask(key_mask, mask, x.shape[0], q.shape[2], k.shape[2]), causal=call.causal,
                   window=call.window, causal_alignment=call.alignment, empty_row=call.empty_row)
    merged = heads.transpose(1, 2).reshape(*x.shape[:2], heads.shape[1] * heads.shape[3])
    if w_gate is not None:
        merged = merged * torch.sigmoid(_linear(x, w_gate, None))
    return _linear(merged, w_o, biases[3], call.bias_joins)


def joined_mask(key_mask: Tensor | None, mask: Tensor | None, batch: int, tq: int, tk: int) -> Tensor | None:
    """Both masks as one, broadcast to (B,H,Tq,Tk)."""
    if key_mask is not None and tuple(key_mask.shape) != (batch, tk):
        raise ValueError(f"key_mask.shape={tuple(key_mask.shape)} must be (B, Tk) = {(batch, tk)}, got {tuple(key_mask.shape)}; "
                         "a mask over queries and keys goes into mask")
    if mask is not None and tuple(mask.shape) not in ((tq, tk), (batch, tq, tk)):
        raise ValueError(f"mask.shape={tuple(mask.shape)} must be (Tq, Tk) = {(tq, tk)} or {(batch, tq, tk)}, "
                         f"got {tuple(mask.shape)}; a mask over keys alone goes into key_mask")
    keys = None if key_mask is None else key_mask.bool()[:, None, None, :]
    pairs = None if mask is None else mask.bool().unsqueeze(-3)  # (1,Tq,Tk) or (B,1,Tq,Tk)
    if keys is None or pairs is None:
        return keys if pairs is None else pairs
    return keys & pairs


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, bias_joins: bool = False) -> Tensor:
    if bias_joins:
        return bias_among_terms(x, weight, bias)
    product = x @ weight.transpose(0, 1)
    return product if bias is None else product + bias


def _split(x: Tensor, heads: int) -> Tensor:
    """(B,T,heads·width) to (B,heads,T,width)."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1 if x.numel() else x.shape[2] // heads).transpose(1, 2)


def _check(call: _Call, x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> None:
    heads, groups = call.heads, call.groups
    if heads < 1 or w_q.shape[0] % heads:
        raise ValueError(f"num_heads={heads} must divide the {w_q.shape[0]} rows of w_q, got {heads}; choose a divisor")
    if groups < 1 or heads % groups:
        raise ValueError(f"num_kv_heads={groups} must divide num_heads={heads}, got {groups}; choose a divisor")
    if w_k.shape[0] != groups * (w_q.shape[0] // heads) or w_v.shape[0] % groups:
        raise ValueError(f"w_k.shape={tuple(w_k.shape)} must have G·D = {groups * (w_q.shape[0] // heads)} rows (w_v: a "
                         f"multiple of {groups}), got {w_k.shape[0]} and {w_v.shape[0]}; pass one block of rows a key/value head")
    if x.shape[-1] != w_q.shape[1]:
        raise ValueError(f"x.shape={tuple(x.shape)} must end in C = {w_q.shape[1]}, got {x.shape[-1]}; pass weights that fit")


def _form(inner: Form) -> Form:
    def forward(
        x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, *, num_heads: int, num_kv_heads: int | None = None,
        context: Tensor | None = None, values: Tensor | None = None, key_mask: Tensor | None = None,
        mask: Tensor | None = None, causal: bool = False, window: int | tuple[int, int] | None = None,
        b_q: Tensor | None = None, b_k: Tensor | None = None, b_v: Tensor | None = None, b_o: Tensor | None = None,
        w_gate: Tensor | None = None, positions: Tensor | None = None, base: float = 10000.0,
        causal_alignment: str = "bottom_right", empty_row: str = "zeros",
    ) -> Tensor:
        call = _Call(num_heads, num_kv_heads or num_heads, causal, window, base, causal_alignment, empty_row, bias_joins=True)
        return _heads_mixed(call, inner.forward, (x, w_q, w_k, w_v, w_o), context, values, key_mask, mask,
                            (b_q, b_k, b_v, b_o), w_gate, positions)

    return Form(inner.name, forward, additions=inner.additions, usual=inner.usual)


_PLAIN = [form for form in _attention.FORMS[1:] if form.applies is None or form.applies({"causal": False})]
FORMS: tuple[Form, ...] = (
    Form("head by head", multi_head_attention, additions=_attention.FORMS[0].additions), *(_form(inner) for inner in _PLAIN),
)
