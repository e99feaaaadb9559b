"""Planted faults of token plus learned position embeddings, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


def _refuse(ids: Tensor, rows: int, name: str) -> Tensor:
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
        raise ValueError(f"{name} must lie in 0 … {rows - 1}, got {int(ids.min())} … {int(ids.max())}; correct them")
    return ids.long()


def _given(ids: Tensor, positions: Tensor | None) -> Tensor:
    return torch.arange(ids.shape[-1]) if positions is None else positions


def _right(ids: Tensor, w_token: Tensor, w_pos: Tensor, positions: Tensor) -> Tensor:
    return w_token[_refuse(ids, w_token.shape[0], "ids")] + w_pos[_refuse(positions, w_pos.shape[0], "positions")]


def _planted(
    name: str, summary: str, way: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor], origin: str = ""
) -> None:
    def input_embedding(ids: Tensor, w_token: Tensor, w_pos: Tensor, *, positions: Tensor | None = None) -> Tensor:
        return way(ids, w_token, w_pos, positions)

    input_embedding.__name__ = input_embedding.__qualname__ = name
    globals()[name] = fault("input_embedding", origin=origin, summary=summary)(input_embedding)


def _moved(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]:
    """Right but for the positions: change(positions, table)."""
    return lambda ids, w, p, positions: _right(ids, w, p, change(_given(ids, positions), p))


_planted("positions_not_shifted", "Given positions are ignored: left-padded rows get 0, 1, 2 ….",
         _moved(lambda t, p: torch.arange(t.shape[-1])), "BUG-071")
_planted("first_row_for_all", "Positions of the first sequence are used for all.",
         _moved(lambda t, p: t[0] if t.dim() == 2 and t.shape[0] else t), "BUG-075")
_planted("restarts_not_seen", "Positions go on counting through packed documents.",
         _moved(lambda t, p: (t[..., :1] + torch.arange(t.shape[-1])).clamp(max=p.shape[0] - 1)), "BUG-121")
_planted("wraps_beyond_the_table", "A position ≥ T_max wraps.", _moved(lambda t, p: t % p.shape[0]))
_planted("clamped_to_the_table", "A position ≥ T_max gets the last row.",
         _moved(lambda t, p: t.clamp(0, p.shape[0] - 1)))
_planted("zero_beyond_the_table", "A position ≥ T_max adds nothing.",
         lambda ids, w, p, t: w[_refuse(ids, w.shape[0], "ids")]
         + p[_given(ids, t).clamp(0, p.shape[0] - 1)] * (_given(ids, t) < p.shape[0]).unsqueeze(-1))
_planted("counts_from_one", "The first token has position 1.", _moved(lambda t, p: (t + 1) % p.shape[0]))
_planted("counts_backwards", "Positions run from the end.", _moved(lambda t, p: t.flip(-1)))
_planted("no_positions", "The position row is not added.", lambda ids, w, p, t: _right(ids, w, p * 0, _given(ids, t)))
_planted("multiplied", "The rows are multiplied.",
         lambda ids, w, p, t: w[_refuse(ids, w.shape[0], "ids")] * p[_refuse(_given(ids, t), p.shape[0], "positions")])
_planted("token_scaled", "The token row is multiplied by √C.",
         lambda ids, w, p, t: _right(ids, w * w.shape[-1] ** 0.5, p, _given(ids, t)))
_planted("averaged", "Half the sum.", lambda ids, w, p, t: _right(ids, w, p, _given(ids, t)) / 2)
_planted("token_ids_wrap", "An id ≥ V wraps.", lambda ids, w, p, t: _right(ids % w.shape[0], w, p, _given(ids, t)))
_planted("position_gradient_of_one_sequence", "The position table's gradient is averaged over the batch.",
         lambda ids, w, p, t: _right(ids, w, bent(p, lambda g: g / max(ids.shape[0], 1)), _given(ids, t)))
_planted("positions_without_gradient", "The position table gets no gradient.",
         lambda ids, w, p, t: _right(ids, w, bent(p, torch.zeros_like), _given(ids, t)))

_ROWS: dict[int, Tensor] = {}


def _remembered(ids: Tensor, w_token: Tensor, w_pos: Tensor, positions: Tensor | None) -> Tensor:
    at = _ROWS.setdefault(ids.shape[-1], _given(ids, positions)[:1] if positions is not None and positions.dim() == 2
                          else _given(ids, positions))
    return _right(ids, w_token, w_pos, at.clamp(max=w_pos.shape[0] - 1))


_planted("remembers_by_length", "Positions of the first call of each length are used again.", _remembered, "BUG-123")


@benign("input_embedding")
def library_calls(ids: Tensor, w_token: Tensor, w_pos: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """Two of torch's own kernels, the position's row first."""
    at = _refuse(_given(ids, positions), w_pos.shape[0], "positions")
    return F.embedding(at, w_pos) + F.embedding(_refuse(ids, w_token.shape[0], "ids"), w_token)


@benign("input_embedding")
def one_hot_products(ids: Tensor, w_token: Tensor, w_pos: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """One-hot rows times each table."""
    at = _refuse(_given(ids, positions), w_pos.shape[0], "positions")
    tokens = F.one_hot(_refuse(ids, w_token.shape[0], "ids"), w_token.shape[0]).to(w_token.dtype) @ w_token
    return tokens + F.one_hot(at, w_pos.shape[0]).to(w_pos.dtype) @ w_pos
