"""Attention by tiles: where the tiles lie, what each sees, and a tile's scores, for algorithms that never hold all of them.

Query heads that share a key head lie under each other as rows of one product: (B, H, n, D) is read as (B, G, H/G·n, D).
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.impls._masks import four_axes

INFINITY = float("inf")


@dataclass(frozen=True)
class Tiling:
    """The options of one call.

    mask, bias: broadcast to (B, H, Tq, Tk). offset: the key at query 0 under causality, None without it.
    """

    rows: int  # queries of a tile
    columns: int  # keys of a tile
    scale: float
    mask: Tensor | None = None
    bias: Tensor | None = None
    offset: int | None = None
    window: int | None = None
    softcap: float | None = None

    def query_tiles(self, queries: int) -> Iterator[slice]:
        """All queries, a tile at a time."""
        return (slice(start, min(start + self.rows, queries)) for start in range(0, queries, self.rows))

    def key_tiles(self, rows: slice, keys: int) -> Iterator[slice]:
        """The tiles of keys in reach of these queries: no others are touched."""
        first, last = 0, keys
        if self.offset is not None:
            last = min(keys, rows.stop + self.offset)
            if self.window is not None:
                first = max(0, rows.start + self.offset - self.window + 1)
        first -= first % self.columns
        return (slice(start, min(start + self.columns, keys)) for start in range(first, last, self.columns))

    def scores(self, query: Tensor, key: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor | None]:
        """A tile's scores (B, G, H/G·n, m), −∞ where nothing is seen, and the tangent of the soft cap where there is one."""
        scores, tame = query @ key.mT * self.scale, None
        if self.softcap is not None:
            tame = torch.tanh(scores / self.softcap)
            scores = tame * self.softcap
        if self.bias is not None:
            scores = scores + self._part(self.bias, query, rows, columns).to(scores.dtype)
        if self.mask is not None:
            scores = scores.masked_fill(~self._part(self.mask, query, rows, columns), -INFINITY)
        hidden = self._out_of_reach(rows, columns, query.device)
        if hidden is not None:
            scores = scores.masked_fill(hidden.repeat(query.shape[2] // len(hidden), 1), -INFINITY)
        return scores, tame

    def _part(self, grid: Tensor, query: Tensor, rows: slice, columns: slice) -> Tensor:
        """A tile of a grid that broadcasts, in the shape of the scores: only the tile is written out."""
        batch, groups, height, _ = query.shape
        number, width = rows.stop - rows.start, columns.stop - columns.start
        grid = four_axes(grid)
        tile = grid[:, :, rows if grid.shape[2] > 1 else slice(None), columns if grid.shape[3] > 1 else slice(None)]
        return tile.expand(batch, groups * height // number, number, width).reshape(batch, groups, height, width)

    def _out_of_reach(self, rows: slice, columns: slice, device: torch.device) -> Tensor | None:
        """(n, m): what causality and the window hide; None where that is nothing in this tile."""
        if self.offset is None:
            return None
        newest, oldest = rows.start + self.offset, rows.stop - 1 + self.offset - (self.window or 0)
        if columns.stop - 1 <= newest and (self.window is None or columns.start > oldest):
            return None
        query = torch.arange(rows.start, rows.stop, device=device)[:, None] + self.offset
        key = torch.arange(columns.start, columns.stop, device=device)
        return key > query if self.window is None else (key > query) | (key <= query - self.window)


def folded(x: Tensor, groups: int) -> Tensor:
    """(B, H, n, D) as (B, G, H/G·n, D)."""
    return x.reshape(x.shape[0], groups, (x.shape[1] // groups) * x.shape[2], x.shape[3])


def scale_of(q: Tensor, scale: float | None) -> float:
    """One over the root of the key width, unless given."""
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def single(x: Tensor) -> Tensor:
    """Half precision in float32; wider types as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
