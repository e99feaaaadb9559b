"""Planted faults of residual connections, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from assay.faults.planting import packed
from assay.registry import benign, fault

Map = Callable[[Tensor], Tensor]
NOT_EXPRESSIBLE = {
    "BUG-154": "a block's second sub-layer adds the block's input; the kind holds one sub-layer only",
}


def _right(
    x: Tensor, f: Map, norm: Map | tuple[Map, Map], placement: str, alpha: float, skip: Tensor | None = None
) -> Tensor:
    added = x if skip is None else skip
    if placement == "sandwich":
        before, after = cast(tuple[Map, Map], norm)
        return added + after(f(before(x)))
    one = cast(Map, norm)
    if placement == "pre":
        return added + f(one(x))
    return one((alpha * added if placement == "deepnorm" else added) + f(x))


def _planted(
    name: str, summary: str, way: Callable[[Tensor, Map, Map | tuple[Map, Map], str, float], Tensor], origin: str = ""
) -> None:
    def residual(
        x: Tensor, sublayer: Map, norm: Map | tuple[Map, Map], *, placement: str, alpha: float = 1.0
    ) -> Tensor:
        return way(x, sublayer, norm, placement, alpha)

    residual.__name__ = residual.__qualname__ = name
    globals()[name] = fault("residual", origin=origin, summary=summary)(residual)


def _only(
    placement: str, way: Callable[[Tensor, Map, Map, float], Tensor]
) -> Callable[[Tensor, Map, Map | tuple[Map, Map], str, float], Tensor]:
    """Wrong for one placement, right for the others."""
    return lambda x, f, norm, p, alpha: (
        way(x, f, cast(Map, norm), alpha) if p == placement else _right(x, f, norm, p, alpha)
    )


def _in_place(x: Tensor, f: Map, norm: Map | tuple[Map, Map], placement: str, alpha: float) -> Tensor:
    y = _right(x, f, norm, placement, alpha)
    with torch.no_grad():
        x.detach().copy_(y)
    return y


def _sandwich(way: Callable[[Tensor, Map, Map, Map], Tensor]) -> Callable[[Tensor, Map, Map, float], Tensor]:
    return lambda x, f, norm, alpha: way(x, f, *cast(tuple[Map, Map], norm))


_planted("deepnorm_alpha_on_the_branch", "Alpha multiplies the branch, and the norm is unused.",
         _only("deepnorm", lambda x, f, norm, a: x + a * f(x)), "BUG-152")
_planted("post_without_norm", "Post-norm skips its norm.", _only("post", lambda x, f, norm, a: x + f(x)), "BUG-156")
_planted("branch_alone", "The input is not added.",
         lambda x, f, norm, p, a: _right(x, f, norm, p, a, skip=torch.zeros_like(x)))
_planted("added_twice", "The input is added twice.", lambda x, f, norm, p, a: _right(x, f, norm, p, a, skip=x + x))
_planted("post_for_pre", "Pre-norm normalises the sum.", _only("pre", lambda x, f, norm, a: norm(x + f(x))))
_planted("pre_for_post", "Post-norm normalises the branch's input.",
         _only("post", lambda x, f, norm, a: x + f(norm(x))))
_planted("pre_adds_the_normalised", "The normalised input is added instead of the input.",
         _only("pre", lambda x, f, norm, a: norm(x) + f(norm(x))))
_planted("pre_without_norm", "Pre-norm forgets its norm.", _only("pre", lambda x, f, norm, a: x + f(x)))
_planted("post_normalises_the_branch", "Post-norm normalises the branch, not the sum.",
         _only("post", lambda x, f, norm, a: x + norm(f(x))))
_planted("deepnorm_alpha_ignored", "DeepNorm without its alpha.",
         _only("deepnorm", lambda x, f, norm, a: norm(x + f(x))))
_planted("deepnorm_alpha_inside", "Alpha scales what the sub-layer reads, too.",
         _only("deepnorm", lambda x, f, norm, a: norm(a * x + f(a * x))))
_planted("deepnorm_alpha_on_both", "Alpha multiplies the sum, which the norm undoes.",
         _only("deepnorm", lambda x, f, norm, a: norm(a * (x + f(x)))))
_planted("deepnorm_as_pre_norm", "DeepNorm normalises the branch's input.",
         _only("deepnorm", lambda x, f, norm, a: a * x + f(norm(x))))
_planted("sandwich_norms_swapped", "The norms of the pair change places.",
         _only("sandwich", _sandwich(lambda x, f, before, after: x + before(f(after(x))))))
_planted("sandwich_normalises_the_sum", "The second norm takes the sum.",
         _only("sandwich", _sandwich(lambda x, f, before, after: after(x + f(before(x))))))
_planted("sandwich_without_the_second", "The second norm is left out.",
         _only("sandwich", _sandwich(lambda x, f, before, after: x + f(before(x)))))
_planted("skip_without_gradient", "The gradient does not flow through the skip.",
         lambda x, f, norm, p, a: _right(x, f, norm, p, a, skip=x.detach()))
_planted("branch_without_gradient", "The gradient does not flow through the sub-layer.",
         lambda x, f, norm, p, a: _right(x, lambda t: f(t.detach()), norm, p, a))
_planted("reads_as_contiguous", "Strides of the input are ignored.",
         lambda x, f, norm, p, a: _right(packed(x), f, norm, p, a), "BUG-095")
_planted("adds_in_place", "The sum is written over the input.", _in_place)


@benign("residual")
def branch_first(
    x: Tensor, sublayer: Map, norm: Map | tuple[Map, Map], *, placement: str, alpha: float = 1.0
) -> Tensor:
    """The branch comes first in the sum."""
    if placement == "deepnorm":
        return cast(Map, norm)(torch.add(sublayer(x), x, alpha=alpha) if alpha == 1 else sublayer(x) + x * alpha)
    if placement == "post":
        return cast(Map, norm)(sublayer(x) + x)
    if placement == "pre":
        return sublayer(cast(Map, norm)(x)) + x
    before, after = cast(tuple[Map, Map], norm)
    return after(sublayer(before(x))) + x


@benign("residual")
def on_a_copy(
    x: Tensor, sublayer: Map, norm: Map | tuple[Map, Map], *, placement: str, alpha: float = 1.0
) -> Tensor:
    """Works on a contiguous copy of the input."""
    return _right(x.contiguous().clone(), sublayer, norm, placement, alpha)
