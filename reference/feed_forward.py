"""Feed-forward network: two linear maps with an activation between them, on each token alone."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.numbers.forms import Form

Activation = Callable[[Tensor], Tensor]


def feed_forward(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Widen each token, apply the activation, and narrow it again.

    Formula: y = σ(x · w_inᵀ + b_in) · w_outᵀ + b_out.

    x: (…, C)
    w_in: (F, C)
    b_in: (F,) or None
    w_out: (C, F)
    b_out: (C,) or None
    returns: (…, C)

    Conventions: activation "relu", "gelu" (exact, by erf), "gelu_tanh" or "silu".
    Raises: ValueError for an unknown activation.
    Source: Vaswani et al., "Attention Is All You Need", section 3.3, arXiv 1706.03762; Hendrycks, Gimpel, "Gaussian
    Error Linear Units", section 2, arXiv 1606.08415.

    >>> one = torch.ones(1, 1)
    >>> feed_forward(torch.tensor([[-2.0], [3.0]]), one, None, one * 2, torch.ones(1), activation="relu").tolist()
    [[1.0], [7.0]]
    """
    return _linear(activate(_linear(x, w_in, b_in), activation), w_out, b_out)


def activate(x: Tensor, activation: str, table: Mapping[str, Activation] | None = None) -> Tensor:
    """The activation of that name, out of ACTIVATIONS or another table of the same names."""
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation={activation!r} must be one of {tuple(ACTIVATIONS)}, got {activation!r}; choose one of them"
        )
    return (ACTIVATIONS if table is None else table)[activation](x)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = x @ weight.transpose(0, 1)
    return product if bias is None else product + bias


def bias_among_terms(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The bias as one more term of the sum, as kernels do that start their accumulator from it."""
    if bias is None:
        return x @ weight.transpose(0, 1)
    one = torch.ones_like(x[..., :1])
    return torch.cat((x, one), -1) @ torch.cat((weight, bias.unsqueeze(-1)), -1).transpose(0, 1)


def _sigmoid(x: Tensor) -> Tensor:
    """1/(1 + e^−x) for x ≥ 0 and e^x/(1 + e^x) below: neither exponential overflows."""
    e = torch.exp(-x.abs())
    return torch.where(x >= 0, torch.ones_like(e), e) / (1 + e)


def gelu(x: Tensor) -> Tensor:
    """½·x·(1 + erf(x/√2))."""
    return 0.5 * x * (1 + torch.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Tensor) -> Tensor:
    """½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


def silu(x: Tensor) -> Tensor:
    """x·sigmoid(x)."""
    return x * torch.sigmoid(x)


def _gelu_phi(x: Tensor) -> Tensor:
    """x·Φ(x), Φ(x) = ½·(1 + erf(x/√2)), with a division inside."""
    return x * (0.5 * (1 + torch.erf(x / math.sqrt(2))))


def _gelu_tanh_factored(x: Tensor) -> Tensor:
    """The inner polynomial as √(2/π)·x·(1 + 0.044715·x²), the rest as x·(½ + ½·tanh)."""
    return x * (0.5 + 0.5 * torch.tanh(x * math.sqrt(2 / math.pi) * (1 + 0.044715 * (x * x))))


def _gelu_tanh_logistic(x: Tensor) -> Tensor:
    """x·sigmoid(2y), since ½·(1 + tanh y) = sigmoid(2y)."""
    return x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x)))


def _silu_quotient(x: Tensor) -> Tensor:
    """x / (1 + e^−x)."""
    return x * _sigmoid(x)


def _silu_tanh(x: Tensor) -> Tensor:
    """½·x·(1 + tanh(x/2))."""
    return 0.5 * x * (1 + torch.tanh(0.5 * x))


ACTIVATIONS: Mapping[str, Activation] = {"relu": torch.relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
ACTIVATION_FORMS: Mapping[str, Mapping[str, Activation]] = {
    "x times the distribution": {"gelu": _gelu_phi, "gelu_tanh": _gelu_tanh_logistic, "silu": _silu_quotient},
    "factored": {"gelu": lambda x: x * (0.5 + 0.5 * torch.erf(x * math.sqrt(0.5))), "gelu_tanh": _gelu_tanh_factored,
                 "silu": _silu_tanh},
}


def _with(table: Mapping[str, Activation]) -> Callable[..., Tensor]:
    def forward(
        x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
    ) -> Tensor:
        return _linear(activate(_linear(x, w_in, b_in), activation, table), w_out, b_out)

    return forward


def _bias_first(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Both biases summed with the products, in any order."""
    return bias_among_terms(activate(bias_among_terms(x, w_in, b_in), activation, ACTIVATIONS), w_out, b_out)


def _has(table: Mapping[str, Activation]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda arguments: arguments["activation"] in table


FORMS: tuple[Form, ...] = (
    Form("as written", feed_forward),
    Form("biases among the terms", _bias_first, usual=True, applies=lambda arguments: arguments["b_in"] is not None
         or arguments["b_out"] is not None),
    *(Form(f"activation {name}", _with(table), applies=_has(table)) for name, table in ACTIVATION_FORMS.items()),
)
