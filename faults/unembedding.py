"""Planted faults of the final norm and output projection, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed, wide
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {"BUG-211": "tied matrices are two kinds' weights; a training step on a model shows it"}

Way = Callable[[Tensor, Tensor, Tensor, float, "Tensor | None", "str | None"], Tensor]


def _normalised(h: Tensor, w_norm: Tensor, eps: float, b_norm: Tensor | None, norm: str | None) -> Tensor:
    if norm is None:
        return h
    x = wide(h)
    if norm == "layer":
        return F.layer_norm(x, x.shape[-1:], wide(w_norm), None if b_norm is None else wide(b_norm), eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * wide(w_norm)


def _right(h: Tensor, w_norm: Tensor, w_out: Tensor, eps: float, b_norm: Tensor | None, norm: str | None) -> Tensor:
    return (wide(_normalised(h, w_norm, eps, b_norm, norm)) @ wide(w_out).T).to(h.dtype)


def _planted(name: str, summary: str, way: Way, origin: str = "") -> None:
    def unembedding(
        h: Tensor, w_norm: Tensor, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None, norm: str | None = "rms"
    ) -> Tensor:
        return way(h, w_norm, w_out, eps, b_norm, norm)

    unembedding.__name__ = unembedding.__qualname__ = name
    globals()[name] = fault("unembedding", origin=origin, summary=summary)(unembedding)


def _cosine(h: Tensor, w: Tensor, out: Tensor, eps: float, b: Tensor | None, norm: str | None) -> Tensor:
    return _right(h, w, out / out.norm(dim=-1, keepdim=True), eps, b, norm)


def _tail(h: Tensor, w: Tensor, out: Tensor, eps: float, b: Tensor | None, norm: str | None) -> Tensor:
    logits = _right(h, w, out, eps, b, norm)
    whole = logits.shape[-1] // 4 * 4
    return torch.cat((logits[..., :whole], logits[..., whole:] * 0), dim=-1)


def _state_rounded(h: Tensor, w: Tensor, out: Tensor, eps: float, b: Tensor | None, norm: str | None) -> Tensor:
    """Products in bfloat16 whatever the input's type."""
    return (_normalised(h, w, eps, b, norm).bfloat16() @ out.bfloat16().T).to(h.dtype)


_planted("without_final_norm", "The final norm is left out.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, None, None))
_planted("norm_that_nobody_asked_for", "A norm is applied where there is none.",
         lambda h, w, out, e, b, n: _right(h, w if n else torch.ones_like(h[0]) if h.dim() == 1
                                           else torch.ones(h.shape[-1], dtype=h.dtype), out, e, b, n or "rms"))
_planted("other_norm", "RMS and layer norm change places.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, b if n == "rms" else None,
                                           {"rms": "layer", "layer": "rms"}.get(n or "")))
_planted("norm_bias_left_out", "The layer norm's bias is not added.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, None, n))
_planted("norm_weight_left_out", "The norm's weight is not applied.",
         lambda h, w, out, e, b, n: _right(h, torch.ones_like(w) if n else w, out, e, b, n))
_planted("epsilon_ignored", "Always 1e-6.", lambda h, w, out, e, b, n: _right(h, w, out, 1e-6, b, n))
_planted("norm_after_projection", "The logits are normalised, not the state.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, b, None) if n is None else
         _normalised(_right(h * w, w, out, e, b, None), torch.ones_like(out[:, 0]), e, None, n).to(h.dtype))
_planted("cosine_for_dot_product", "Rows of the table are brought to length 1.", _cosine)
_planted("scaled_by_the_width", "Logits are divided by √C.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, b, n) / h.shape[-1] ** 0.5)
_planted("probabilities", "Softmax is applied already.",
         lambda h, w, out, e, b, n: torch.softmax(_right(h, w, out, e, b, n), dim=-1))
_planted("words_reversed", "The vocabulary runs backwards.",
         lambda h, w, out, e, b, n: _right(h, w, out.flip(0), e, b, n))
_planted("last_words_unscored", "Words beyond the last multiple of 4 get 0.", _tail)
_planted("products_in_bfloat16", "The product is taken in bfloat16.", _state_rounded)
_planted("table_read_as_packed", "A tied table that is a view is read as if packed.",
         lambda h, w, out, e, b, n: _right(h, w, packed(out), e, b, n), "BUG-095")
_planted("table_without_gradient", "The table gets no gradient.",
         lambda h, w, out, e, b, n: _right(h, w, bent(out, torch.zeros_like), e, b, n))
_planted("gradient_past_the_norm", "The gradient goes round the final norm.",
         lambda h, w, out, e, b, n: _right(h, w, out, e, b, n).detach()
         + (wide(h) @ wide(out).T - (wide(h) @ wide(out).T).detach()).to(h.dtype))
_planted("tokens_mixed", "A trace of the mean over tokens is added.",
         lambda h, w, out, e, b, n: _right(h if h.dim() == 1 else h + h.mean(-2, keepdim=True) / 8, w, out, e, b, n))


@benign("unembedding")
def linear_in_the_input_type(
    h: Tensor, w_norm: Tensor, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None, norm: str | None = "rms"
) -> Tensor:
    """The normalised state is rounded to the input's type before the product."""
    return F.linear(_normalised(h, w_norm, eps, b_norm, norm).to(h.dtype), w_out)


@benign("unembedding")
def words_in_chunks(
    h: Tensor, w_norm: Tensor, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None, norm: str | None = "rms"
) -> Tensor:
    """The vocabulary in chunks of 7 words."""
    state = _normalised(h, w_norm, eps, b_norm, norm).to(h.dtype)
    return torch.cat([state @ chunk.T for chunk in w_out.split(7)], dim=-1)


@benign("unembedding")
def in_double(
    h: Tensor, w_norm: Tensor, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None, norm: str | None = "rms"
) -> Tensor:
    """Everything in float64, rounded once."""
    bias = None if b_norm is None else b_norm.double()
    weight = w_norm if norm is None else w_norm.double()
    return _right(h.double(), weight, w_out.double(), eps, bias, norm).to(h.dtype)
