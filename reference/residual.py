"""Residual connections: where the norm stands around a sub-layer."""
from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from assay.numbers.forms import Form

Map = Callable[[Tensor], Tensor]
PLACEMENTS = ("pre", "post", "sandwich", "deepnorm")


def residual(
    x: Tensor, sublayer: Map, norm: Map | tuple[Map, Map], *, placement: str, alpha: float = 1.0
) -> Tensor:
    """Add a sub-layer's output to its input, with the norm where the placement puts it.

    Formula: pre: x + f(norm(x)); post: norm(x + f(x)); sandwich: x + after(f(before(x))), norm = (before, after);
    deepnorm: norm(alpha·x + f(x)).

    x: (…, C)
    sublayer, norm: callables (…, C) → (…, C); for sandwich, norm is a pair of them
    returns: (…, C)

    Conventions: alpha counts for deepnorm alone.
    Raises: ValueError for an unknown placement, or a norm that is not a pair for sandwich or is one elsewhere.
    Source: Xiong et al., "On Layer Normalization in the Transformer Architecture", arXiv 2002.04745; Ding et al.,
    "CogView", section 2.4 (sandwich), arXiv 2105.13290; Wang et al., "DeepNet", section 2, arXiv 2203.00555.

    >>> import torch
    >>> x = torch.tensor([1.0, 2.0])
    >>> residual(x, lambda t: t * 10, lambda t: t + 1, placement="pre").tolist()
    [21.0, 32.0]
    >>> residual(x, lambda t: t * 10, lambda t: t + 1, placement="post").tolist()
    [12.0, 23.0]
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement={placement!r} must be one of {PLACEMENTS}, got {placement!r}; choose one of them")
    pair = isinstance(norm, (tuple, list))
    if pair != (placement == "sandwich") or (pair and len(cast("tuple[Map, Map]", norm)) != 2):
        rule = "a pair (before, after)" if placement == "sandwich" else "one callable"
        raise ValueError(f"norm={norm!r} must be {rule} for placement {placement!r}, got {norm!r}; pass {rule}")
    if placement == "sandwich":
        before, after = cast("tuple[Map, Map]", norm)
        return x + after(sublayer(before(x)))
    single = cast("Map", norm)
    if placement == "pre":
        return x + sublayer(single(x))
    if placement == "post":
        return single(x + sublayer(x))
    return single(alpha * x + sublayer(x))


FORMS: tuple[Form, ...] = (Form("as written", residual),)
