"""Planted faults of attention: masks and biases that broadcast."""
from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from assay.faults.attention_parts import Options, attend, planted


def _first(given: Tensor | None, axis: int, other: int) -> Tensor | None:
    """The first slice along an axis of a mask that has entries along it, and none along the other."""
    if given is None or given.dim() != 4 or given.shape[other] != 1:
        return given
    return given.narrow(axis, 0, 1) if given.shape[axis] > 1 else given


@planted("a mask (1,H,…) is read as its first head's")
def mask_by_head_read_as_first_head(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, mask=_first(o.mask, 1, 0)))


@planted("a mask (B,1,…) is read as its first sample's")
def mask_by_sample_read_as_first_sample(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, mask=_first(o.mask, 0, 1)))


@planted("a mask (H,Tq,Tk) is read as its first head's")
def three_axes_read_as_one(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    mask = o.mask[:1] if o.mask is not None and o.mask.dim() == 3 else o.mask
    return attend(q, k, v, replace(o, mask=mask))


@planted("a bias (1,H,…) is read as its first head's")
def bias_by_head_read_as_first_head(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, bias=_first(o.bias, 1, 0)))


@planted("a bias (B,1,…) is read as its first sample's")
def bias_by_sample_read_as_first_sample(q: Tensor, k: Tensor, v: Tensor, o: Options) -> Tensor:
    return attend(q, k, v, replace(o, bias=_first(o.bias, 0, 1)))
