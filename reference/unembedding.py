"""Unembedding: final norm, then one dot product per word."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.layer_norm import FORMS as LAYER_FORMS
from assay.reference.rms_norm import FORMS as RMS_FORMS

NORMS = ("rms", "layer", None)


def unembedding(
    h: Tensor, w_norm: Tensor | None, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None,
    norm: str | None = "rms",
) -> Tensor:
    """Score every word of the vocabulary by its dot product with the normalised state.

    Formula: logits = FinalNorm(h) · w_outᵀ; norm None (post-norm models): logits = h · w_outᵀ.

    h: (…, C)
    w_norm: (C,); unused where norm is None
    w_out: (V, C)
    b_norm: None or (C,), for the layer norm alone
    returns: (…, V)

    Conventions: norm "rms", "layer" or None.
    Raises: ValueError for an unknown norm, for a b_norm beside another norm than "layer", for shapes that do not fit.
    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", section 2.3 (the final norm); Vaswani
    et al., section 3.4, arXiv 1706.03762.

    >>> h, w_out = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> unembedding(h, torch.ones(2), w_out, eps=0.0, norm=None).tolist()
    [[3.0, 4.0, 7.0]]
    """
    _check(w_norm, b_norm, norm)
    if norm is None:
        return _scores(h, w_out)
    form = RMS_FORMS[0] if norm == "rms" else LAYER_FORMS[0]
    return _scores(_normalised(form, norm, h, w_norm, b_norm, eps), w_out)


def _scores(state: Tensor, w_out: Tensor) -> Tensor:
    """state · w_outᵀ for a state of any number of axes, one too."""
    rows = state.reshape(-1, state.shape[-1]) @ w_out.transpose(0, 1)
    return rows.reshape(*state.shape[:-1], w_out.shape[0])


def _back(upstream: Tensor, w_out: Tensor) -> Tensor:
    """upstream · w_out likewise."""
    return (upstream.reshape(-1, w_out.shape[0]) @ w_out).reshape(*upstream.shape[:-1], w_out.shape[1])


def _check(w_norm: Tensor | None, b_norm: Tensor | None, norm: str | None) -> None:
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r} must be one of {NORMS}, got {norm!r}; choose one of them")
    if b_norm is not None and norm != "layer":
        raise ValueError(f"b_norm=tensor must be None for norm={norm!r}, got a tensor; drop it or pass norm='layer'")
    if norm is not None and w_norm is None:
        raise ValueError(f"w_norm=None must be a tensor (C,) for norm={norm!r}, got None; pass it or norm=None")


def _parameters(norm: str, w_norm: Tensor, b_norm: Tensor | None) -> dict[str, Tensor]:
    if norm == "rms":
        return {"weight": w_norm}
    return {"weight": w_norm, "bias": torch.zeros_like(w_norm) if b_norm is None else b_norm}


def _normalised(
    form: Form, norm: str, h: Tensor, w_norm: Tensor | None, b_norm: Tensor | None, eps: float
) -> Tensor:
    """The state after the final norm, evaluated in the norm's given form."""
    assert w_norm is not None  # _check has refused it
    normalised: Tensor = form.forward(h, **_parameters(norm, w_norm, b_norm), eps=eps)
    return normalised


def _on(norm: str, form: Form) -> Form:
    """The unembedding on top of one form of its norm, gradients included."""

    def forward(
        h: Tensor, w_norm: Tensor | None, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None,
        norm: str | None = norm,
    ) -> Tensor:
        assert norm is not None  # the form applies to its own norm only
        return _scores(_normalised(form, norm, h, w_norm, b_norm, eps), w_out)

    def backward(
        upstream: Tensor, wrt: Sequence[str], *, h: Tensor, w_norm: Tensor, w_out: Tensor, eps: float,
        b_norm: Tensor | None = None, norm: str = norm,
    ) -> Mapping[str, Tensor]:
        assert form.backward is not None  # passed on below only where the norm's form has one
        parameters = _parameters(norm, w_norm, b_norm)
        inner = form.backward(_back(upstream, w_out), ("x", *parameters), x=h, eps=eps, **parameters)
        normalised = _normalised(form, norm, h, w_norm, b_norm, eps)
        over_tokens = upstream.reshape(-1, w_out.shape[0]).transpose(0, 1) @ normalised.reshape(-1, h.shape[-1])
        named = {"h": inner["x"], "w_norm": inner["weight"], "b_norm": inner.get("bias"), "w_out": over_tokens}
        return {name: gradient for name in wrt if (gradient := named[name]) is not None}

    def applies(arguments: Mapping[str, Any]) -> bool:
        return bool(arguments.get("norm", "rms") == norm)

    return Form(
        f"{norm}: {form.name}", forward, backward=None if form.backward is None else backward,
        additions=form.additions, applies=applies, usual=form.usual,
    )


FORMS: tuple[Form, ...] = (
    Form("norm, then matrix product", unembedding),
    *(_on("rms", form) for form in RMS_FORMS[1:]), *(_on("layer", form) for form in LAYER_FORMS[1:]),
)
