"""Memory layouts: the same values, laid out differently, between guard bands."""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from assay.hosting import bytes_of

GUARD = 64  # elements of spare storage: a multiple of every vector width, so that "contiguous" stays aligned
PADDING = 2  # columns behind each padded row: even, so that pairs may be viewed as complex numbers
SENTINEL = 0xA5  # byte pattern of integer guards: far outside every valid index

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "expanded", "head_last", "padded_rows")


@dataclass
class Placed:
    """A tensor in its layout, with the whole storage it lies in and a copy of that storage from before the call."""

    tensor: torch.Tensor
    buffer: torch.Tensor
    before: torch.Tensor
    values: tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides and offset, should the tensor be moved

    def inspect(self) -> tuple[bool, bool]:
        """Whether the values are unchanged, and whether the guard bands are (both bit for bit)."""
        if same_bits(self.buffer, self.before):
            return True, True
        with torch.no_grad():
            shape, strides, offset = self.values
            now, then = (b.as_strided(shape, strides, offset) for b in (self.buffer, self.before))
            unchanged = same_bits(now, then)
            repaired = self.buffer.clone()
            repaired.as_strided(shape, strides, offset).copy_(then) if 0 not in strides else _refill(repaired, self)
            return unchanged, same_bits(repaired, self.before)


def _refill(repaired: torch.Tensor, placed: Placed) -> None:
    """Put the values back where several elements share one memory cell (`copy_` refuses that)."""
    shape, strides, offset = placed.values
    cells = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    repaired.as_strided(cells, strides, offset).copy_(placed.before.as_strided(cells, strides, offset))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether they hold the same bytes: NaN equals itself, and 0 is not -0."""
    return torch.equal(bytes_of(one), bytes_of(other))


def place(tensor: torch.Tensor, layout: str = "contiguous", device: str = "cpu") -> Placed:
    """Copy the tensor into fresh memory of this layout on the device.

    contiguous: as usual, with spare storage behind. transposed: strides of the last two dims swapped. sliced: every
    second element of a wider last dim. offset: a storage offset of 2 beyond the guard, so that nothing is aligned, yet
    pairs may be viewed as complex numbers. expanded: stride 0 along every dim along which the values are constant.
    head_last: memory (B, T, H, D) seen as (B, H, T, D). padded_rows: the first columns of a wider tensor, as queries lie
    in what one projection gives for queries, keys and values: the last stride is 1, yet rows lie further apart. A layout
    that a tensor cannot have (too few dims, values not constant) falls back to contiguous. "contiguous" alone has no
    guard in front: its storage offset is 0, as implementations that disclaim strided inputs may take for granted.
    """
    tensor = tensor.detach()
    shape = tuple(tensor.shape)
    strides, offset = _strides(tensor, layout)
    cells = tuple(1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True))
    extent = 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(cells, strides, strict=True))
    with torch.no_grad():
        buffer = _guards(offset + extent + GUARD, tensor.dtype, device)
        target = buffer.as_strided(cells, strides, offset)
        if extent:
            target.copy_(tensor[tuple(slice(0, n) for n in cells)] if cells != shape else tensor)
        # Not a view for autograd: a view made without gradients would turn an implementation's write into an error.
        seen = torch.empty(0, dtype=tensor.dtype, device=device).set_(buffer.untyped_storage(), offset, shape, strides)
        return Placed(seen, buffer, buffer.clone(), (shape, strides, offset))


def arrange(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another memory layout, on the tensor's own device."""
    return place(tensor, layout, str(tensor.device)).tensor


def guards_intact(placed: Placed) -> bool:
    """Whether the spare storage around the tensor is as it was."""
    return placed.inspect()[1]


def _row_major(shape: tuple[int, ...]) -> list[int]:
    strides, step = [1] * len(shape), 1
    for dim in reversed(range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return strides


def _swapped(shape: tuple[int, ...], a: int, b: int) -> tuple[int, ...]:
    """Strides of `shape` when memory holds it with the dims a and b swapped."""
    order = list(range(len(shape)))
    order[a], order[b] = order[b], order[a]
    strides = _row_major(tuple(shape[i] for i in order))
    return tuple(strides[order[i]] for i in range(len(shape)))


def _strides(tensor: torch.Tensor, layout: str) -> tuple[tuple[int, ...], int]:
    """Strides and storage offset of this layout for this tensor."""
    shape, rank = tuple(tensor.shape), tensor.dim()
    if layout == "transposed" and rank >= 2:
        return _swapped(shape, rank - 2, rank - 1), GUARD
    if layout == "head_last" and rank >= 3:
        return _swapped(shape, rank - 3, rank - 2), GUARD
    if layout == "padded_rows" and rank >= 2:
        return tuple(_row_major((*shape[:-1], shape[-1] + PADDING))), GUARD
    if layout == "sliced" and rank >= 1:
        return tuple(2 * stride for stride in _row_major(shape)), GUARD
    if layout == "offset":
        return tuple(_row_major(shape)), GUARD + 2
    if layout == "expanded" and tensor.numel() > 1:
        constant = [dim for dim in range(rank) if shape[dim] > 1 and _is_constant(tensor, dim)]
        if constant:
            kept = tuple(1 if dim in constant else size for dim, size in enumerate(shape))
            return tuple(0 if dim in constant else s for dim, s in enumerate(_row_major(kept))), GUARD
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r} must be one of {', '.join(LAYOUTS)}")
    return tuple(_row_major(shape)), 0


def _is_constant(tensor: torch.Tensor, dim: int) -> bool:
    """Whether all slices along `dim` hold the same bits (NaN equals itself, -0 differs from 0)."""
    first = tensor.narrow(dim, 0, 1)
    return same_bits(tensor, first.expand_as(tensor))


def _guards(length: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Storage filled with NaN, or with a byte pattern that is no valid index; True for booleans."""
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.full((length,), math.nan, dtype=dtype if dtype.itemsize > 1 else torch.float32, device=device)
        return wide.to(dtype)
    if dtype == torch.bool:
        return torch.ones(length, dtype=dtype, device=device)
    return torch.full((length * dtype.itemsize,), SENTINEL, dtype=torch.uint8, device=device).view(dtype)
