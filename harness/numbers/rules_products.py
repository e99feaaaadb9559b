"""Matrix products: propagated bars, one rounding per product, gamma_n of the accumulation format, one internal
rounding."""

from __future__ import annotations

import math
from typing import Any

import torch

from assay.numbers.arithmetic import Model
from assay.numbers.bound import DOUBLE_U, Bounded, current, parts, plus, rounded, rule

aten = torch.ops.aten


def _grid(value: torch.Tensor) -> float:
    """The largest power of two that divides every entry (0.0 if there is none within 52 bits of the largest)."""
    top = float(value.abs().max())
    if top == 0.0:
        return 1.0
    if not math.isfinite(top):
        return 0.0
    unit = math.ldexp(1.0, math.frexp(top)[1] - 52)
    scaled = value / unit
    if not bool((scaled == scaled.round()).all()):
        return 0.0
    whole = scaled.to(torch.int64)
    lowest = (whole & -whole).masked_fill(whole == 0, 2**62).min()
    return unit * float(lowest)


def _sums_exactly(lv: torch.Tensor, rv: torch.Tensor, reach: torch.Tensor, model: Model) -> bool:
    """Whether products and partial sums are integers on one grid, small enough for the product and the sum formats."""
    # Random numbers fail here at once: most of their bits are in use.
    sample = lv.flatten()[:1]
    unit = abs(float(sample)) if sample.numel() else 0.0
    if unit and math.frexp(unit)[0] * 2**14 % 1 and model.internal.precision <= 24:
        return False
    grid = _grid(lv) * _grid(rv)
    if grid == 0.0:
        return False
    largest = float(lv.abs().max()) * float(rv.abs().max())
    fits = largest <= grid * 2.0**model.internal.precision
    return fits and float(reach.max()) <= grid * 2.0**model.accumulate.precision


def _selects(value: torch.Tensor, bar: Any) -> bool:
    """Whether a factor is exact and holds only 0 and +-1: multiplying by it does not round."""
    if bar is not None:
        return False
    flat = value.flatten()
    if flat.numel() == 0 or float(flat[0]) not in (0.0, 1.0, -1.0):
        return False
    size = value.abs()
    return bool(((size == 0) | (size == 1)).all())


def product(left: Any, right: Any) -> Bounded:
    """Matrix product of (batches of) bounded matrices."""
    (lv, le), (rv, re) = parts(left), parts(right)
    model = current().model
    value = lv @ rv
    la, ra = lv.abs(), rv.abs()
    lr, rr = plus(la, le), plus(ra, re)
    reach = lr @ rr
    if value.numel() == 0 or lv.shape[-1] == 0:
        return Bounded(value, None)
    if le is None and re is None and not model.product_extra and _sums_exactly(lv, rv, reach, model):
        return rounded(value, None, lambda: True)
    bar = None if le is None else le @ ra
    bar = plus(bar, None if re is None else lr @ re)
    terms, per_product = lv.shape[-1], model.internal.u
    if _selects(rv, re):
        per_product, terms = 0.0, int((ra != 0).sum(-2).max())
    elif _selects(lv, le):
        per_product, terms = 0.0, int((la != 0).sum(-1).max())
    gamma = model.gamma(terms - 1)
    relative = (1.0 + gamma) * (1.0 + per_product + model.product_extra) - 1.0 + 2.0 * (terms + 1) * DOUBLE_U
    added = plus(bar, reach * relative)
    if per_product:  # every product may be stored, and so underflow
        added = added + reach.sign() * (terms * model.internal.underflow)
    if not bool(reach.max() <= model.internal.largest):
        current().left_range |= bool((reach.isfinite() & (reach > model.internal.largest)).any())
    return rounded(value, added)


@rule(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def _matmul(func: Any, left: Any, right: Any) -> Any:
    if right.dim() == 1:
        column = product(left.unsqueeze(0) if left.dim() == 1 else left, right.unsqueeze(-1))
        return column.squeeze(-1).squeeze(-1) if left.dim() == 1 else column.squeeze(-1)
    return product(left, right)


@rule(aten.addmm.default, aten.baddbmm.default)
def _addmm(func: Any, bias: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    multiplied = product(left, right)
    return (multiplied if alpha == 1 else multiplied * alpha) + (bias if beta == 1 else bias * beta)
