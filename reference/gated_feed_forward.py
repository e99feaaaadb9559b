"""Gated feed-forward network (GLU): an activated branch gates a linear one."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.feed_forward import ACTIVATION_FORMS, Activation, activate


def gated_feed_forward(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
) -> Tensor:
    """Multiply an activated projection of each token with a plain one, and narrow the product.

    Formula: y = (σ(x · w_gateᵀ) ⊙ (x · w_upᵀ)) · w_downᵀ.

    x: (…, C)
    w_gate, w_up: (F, C)
    w_down: (C, F)
    returns: (…, C)

    Conventions: the gate is the activated branch; activation "silu" (SwiGLU), "gelu", "gelu_tanh" or "relu".
    Raises: ValueError for an unknown activation.
    Source: Shazeer, "GLU Variants Improve Transformer", section 2, arXiv 2002.05202.

    >>> import torch
    >>> one = torch.ones(1, 1)
    >>> gated_feed_forward(torch.tensor([[-1.0], [2.0]]), one, one * 3, one, activation="relu").tolist()
    [[0.0], [12.0]]
    """
    return _gated(x, w_gate, w_up, w_down, activation, None)


def _gated(
    x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, activation: str, table: Mapping[str, Activation] | None
) -> Tensor:
    gate = activate(x @ w_gate.transpose(0, 1), activation, table)
    return (gate * (x @ w_up.transpose(0, 1))) @ w_down.transpose(0, 1)


def _with(table: Mapping[str, Activation]) -> Callable[..., Tensor]:
    def forward(
        x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu"
    ) -> Tensor:
        return _gated(x, w_gate, w_up, w_down, activation, table)

    return forward


def _has(table: Mapping[str, Activation]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda arguments: arguments.get("activation", "silu") in table


FORMS: tuple[Form, ...] = (
    Form("as written", gated_feed_forward),
    *(Form(f"activation {name}", _with(table), applies=_has(table)) for name, table in ACTIVATION_FORMS.items()),
)
