"""Input of a model with learned positions: token row plus position row."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form
from assay.reference.embedding import check_ids, embedding


def input_embedding(ids: Tensor, w_token: Tensor, w_pos: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """Add the learned row of each token's position to the row of its id.

    Formula: x_t = w_token[ids_t] + w_pos[positions_t]; positions absent: t itself.

    ids: (B, T) integers
    w_token: (V, C)
    w_pos: (T_max, C)
    positions: None, (T,) or (B, T) integers
    returns: (B, T, C)

    Conventions: none.
    Raises: ValueError for an id outside 0 … V − 1 or a position outside 0 … T_max − 1 (so for T > T_max).
    Source: Gehring et al., "Convolutional Sequence to Sequence Learning", section 3.1, arXiv 1705.03122.

    >>> input_embedding(torch.tensor([[1, 1]]), torch.tensor([[1.0], [2.0]]), torch.tensor([[10.0], [20.0]])).tolist()
    [[[12.0], [22.0]]]
    """
    if positions is None:
        positions = torch.arange(ids.shape[-1], device=ids.device)
    check_ids(positions, w_pos.shape[0], "positions", "0 … T_max − 1")
    return embedding(ids, w_token) + w_pos[positions.long()]


FORMS: tuple[Form, ...] = (Form("sum of two rows", input_embedding),)
