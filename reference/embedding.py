"""Token embedding: a row of the table for every id."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Pick the row of the table that each id names; the same as one-hot vectors times the table.

    Formula: y_t = weight[ids_t].

    ids: (…) integers
    weight: (V, C)
    returns: (…, C)

    Conventions: none; there is no padding id.
    Raises: ValueError for an id outside 0 … V − 1 (a negative id does not count from the end).
    Source: Vaswani et al., "Attention Is All You Need", section 3.4, arXiv 1706.03762 (without its factor √C).

    >>> embedding(torch.tensor([2, 0]), torch.tensor([[1.0], [2.0], [3.0]])).tolist()
    [[3.0], [1.0]]
    """
    check_ids(ids, weight.shape[0], "ids", "0 … V − 1")
    return weight[ids.long()]


def check_ids(ids: Tensor, rows: int, name: str, rule: str) -> None:
    """Refuse whatever is not a row of a table of that many rows."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name}.dtype={ids.dtype} must be an integer type, got {ids.dtype}; convert to torch.int64")
    if ids.numel() == 0:
        return
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= rows:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{name}={wrong} must lie in {rule} (0 … {rows - 1}), got {wrong}; use a larger table or correct the {name}"
        )


FORMS: tuple[Form, ...] = (Form("row selection", embedding),)
