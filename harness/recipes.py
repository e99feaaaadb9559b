"""Callables described by name: the sub-layers and norms that `residual` takes, written out in plain torch operations.

Plain operations, so that the reference can be run on the same callables under the bound engine.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from assay.hosting import Recipe

Map = Callable[[torch.Tensor], torch.Tensor]


def _zero(x: torch.Tensor) -> torch.Tensor:
    return x * 0


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x * 1  # a new tensor: a sub-layer that returns its very input would look like one that is updated in place


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Map:
    """x · weightᵀ (+ bias)."""
    def apply(x: torch.Tensor) -> torch.Tensor:
        y = x @ weight.transpose(0, 1)
        return y if bias is None else y + bias
    return apply


def tanh_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Map:
    """tanh of a linear map: not linear, and bounded."""
    inner = linear(weight, bias)
    return lambda x: torch.tanh(inner(x))


def relu_mlp(w_in: torch.Tensor, w_out: torch.Tensor) -> Map:
    """relu(x · w_inᵀ) · w_outᵀ: two matrices, as a feed-forward network has."""
    return lambda x: torch.relu(x @ w_in.transpose(0, 1)) @ w_out.transpose(0, 1)


def rms_norm(weight: torch.Tensor, eps: float = 1e-6) -> Map:
    """x / sqrt(mean(x²) + eps) · weight."""
    return lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def layer_norm(weight: torch.Tensor, bias: torch.Tensor | None = None, eps: float = 1e-6) -> Map:
    """(x − mean) / sqrt(variance + eps) · weight (+ bias)."""
    def apply(x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight
        return y if bias is None else y + bias
    return apply


class Pair(tuple[Map, ...]):
    """Two callables, (before, after). Called as if it were one norm, it is the first and then the second, by turns: code that
    knows one norm and applies it on both sides is held to the same formula."""

    def __new__(cls, norms: Iterable[Map]) -> Pair:
        made = super().__new__(cls, norms)
        made._turns = itertools.cycle(made)
        return made

    _turns: Iterator[Map]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return next(self._turns)(x)


def pair(before: Map, after: Map) -> Pair:
    """Two callables, as the sandwich placement takes its norms: parameters are recipes themselves."""
    return Pair((before, after))


RECIPES: Mapping[str, Callable[..., Any]] = {
    "zero": lambda: _zero, "identity": lambda: _identity, "linear": linear, "tanh_linear": tanh_linear, "relu_mlp": relu_mlp,
    "rms_norm": rms_norm, "layer_norm": layer_norm, "pair": pair,
}


def build(recipe: Recipe) -> Any:
    """The callable (for "pair": two) that the recipe describes, over the tensors in its parameters."""
    if recipe.name not in RECIPES:
        raise ValueError(f"recipe={recipe.name!r} must be one of {', '.join(RECIPES)}")
    parts = {name: build(part) if isinstance(part, Recipe) else part for name, part in recipe.parameters.items()}
    return RECIPES[recipe.name](**parts)
