"""Planted faults of token embeddings, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed
from assay.registry import benign, fault

NOT_EXPRESSIBLE = {
    "BUG-207": "the contract's embedding has no padding id and no initialisation",
    "BUG-211": "tied matrices are two kinds' weights; a training step on a model shows it",
}


def _refuse(ids: Tensor, rows: int) -> Tensor:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise ValueError(f"ids must lie in 0 … {rows - 1}, got {int(ids.min())} … {int(ids.max())}; correct the ids")
    return ids.long()


def _planted(name: str, summary: str, way: Callable[[Tensor, Tensor], Tensor], origin: str = "") -> None:
    def embedding(ids: Tensor, weight: Tensor) -> Tensor:
        return way(ids, weight)

    embedding.__name__ = embedding.__qualname__ = name
    globals()[name] = fault("embedding", origin=origin, summary=summary)(embedding)


def _right(ids: Tensor, weight: Tensor) -> Tensor:
    return weight[_refuse(ids, weight.shape[0])]


def _of_weight(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda ids, weight: _right(ids, change(ids, weight))


def _seen(ids: Tensor, weight: Tensor) -> Tensor:
    """How often each row is used, (V, 1)."""
    return torch.bincount(ids.flatten().long(), minlength=weight.shape[0]).unsqueeze(-1).to(weight.dtype)


_planted("whole_table_zeroed", "weight[None] = 0 for an absent padding id zeroes everything.",
         _of_weight(lambda ids, w: torch.zeros_like(w)), "BUG-208")
_planted("negative_ids_wrap", "A negative id counts from the end.",
         lambda ids, w: w[torch.where(ids < 0, ids, _refuse(ids.clamp(min=0), w.shape[0])).long()])
_planted("large_ids_wrap", "Ids wrap at V.", lambda ids, w: w[ids.long() % w.shape[0]])
_planted("large_ids_clamped", "Ids beyond the table get its last row.",
         lambda ids, w: w[ids.long().clamp(0, w.shape[0] - 1)])
_planted("first_row_is_padding", "Id 0 embeds to 0.", lambda ids, w: _right(ids, w) * (ids != 0).unsqueeze(-1))
_planted("off_by_one", "The next row is taken.", lambda ids, w: w[(_refuse(ids, w.shape[0]) + 1) % w.shape[0]])
_planted("scaled_by_the_width", "Rows are multiplied by √C.", lambda ids, w: _right(ids, w) * w.shape[-1] ** 0.5)
_planted("ids_in_half", "Ids pass through a bfloat16 tensor.",
         lambda ids, w: _right(_refuse(ids, w.shape[0]).bfloat16().long().clamp(max=w.shape[0] - 1), w))
_planted("table_read_transposed", "A table that is a transposed view is read as if packed.",
         _of_weight(lambda ids, w: packed(w)), "BUG-095")
_planted("ids_read_as_packed", "Sliced ids are read as if contiguous.", lambda ids, w: _right(packed(ids), w))
_planted("last_use_wins", "The gradient of a row is that of its last use instead of the sum.",
         lambda ids, w: _last_use(ids, w))
_planted("gradient_averaged", "The gradient of a row is divided by how often it was used.",
         _of_weight(lambda ids, w: bent(w, lambda g: g / _seen(ids, w).clamp(min=1))))
_planted("gradient_everywhere", "Unused rows get a gradient too.",
         _of_weight(lambda ids, w: bent(w, lambda g: torch.where(_seen(ids, w) > 0, g, g.mean(0)))))
_planted("no_gradient_to_row_zero", "Row 0 is taken for padding in the backward.",
         _of_weight(lambda ids, w: bent(w, lambda g: torch.cat((g[:1] * 0, g[1:])))))
_planted("weight_without_gradient", "The table gets no gradient.", _of_weight(lambda ids, w: bent(w, torch.zeros_like)))
_planted("mixed_with_neighbours", "Rows are averaged with those of the token before.",
         lambda ids, w: (_right(ids, w) + _right(ids.roll(1, -1), w)) / 2)


def _last_use(ids: Tensor, weight: Tensor) -> Tensor:
    flat = _refuse(ids, weight.shape[0]).flatten()
    places = torch.arange(flat.numel())
    last = torch.zeros(weight.shape[0], dtype=torch.long).index_put((flat,), places)
    counts = (last[flat] == places).reshape(*ids.shape, 1)
    return bent(_right(ids, weight), lambda g: g * counts)


@benign("embedding")
def library_call(ids: Tensor, weight: Tensor) -> Tensor:
    """torch's own kernel, after a check of the ids."""
    return F.embedding(_refuse(ids, weight.shape[0]), weight)


@benign("embedding")
def one_hot_product(ids: Tensor, weight: Tensor) -> Tensor:
    """One-hot rows times the table."""
    return F.one_hot(_refuse(ids, weight.shape[0]), weight.shape[0]).to(weight.dtype) @ weight


@benign("embedding")
def by_index_select(ids: Tensor, weight: Tensor) -> Tensor:
    """Rows selected flat, then shaped."""
    return weight.index_select(0, _refuse(ids, weight.shape[0]).flatten()).reshape(*ids.shape, weight.shape[-1])
