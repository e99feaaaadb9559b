"""Planted faults of patching, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from assay.faults.planting import bent, packed
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


def _refuse(image: Tensor, size: int) -> None:
    if image.shape[-1] % size or image.shape[-2] % size:
        raise ValueError(f"patch_size={size} must divide the image's {tuple(image.shape[-2:])}; pad or crop the image")


def _cut(image: Tensor, size: int, order: str = "b i j r c k", rows: int | None = None) -> Tensor:
    """Cut into (B, rows, columns, r, c, channel) and lay out in the given order: two axes of patches, three within."""
    batch, channels, height, width = image.shape
    rows = height // size if rows is None else rows
    columns = width // size if rows == height // size else (height // size) * (width // size) // max(rows, 1)
    grid = image.reshape(batch, channels, rows, size, columns, size)
    axes = [{"b": 0, "k": 1, "i": 2, "r": 3, "j": 4, "c": 5}[letter] for letter in order.split()]
    return grid.permute(axes).reshape(batch, rows * columns, size * size * channels)


def _planted(
    name: str, summary: str, way: Callable[[Tensor, int], Tensor], origin: str = "", *, refuses: bool = True
) -> None:
    def patchify(image: Tensor, *, patch_size: int) -> Tensor:
        if refuses:
            _refuse(image, patch_size)
        return way(image, patch_size)

    patchify.__name__ = patchify.__qualname__ = name
    globals()[name] = fault("patchify", origin=origin, summary=summary)(patchify)


def _square_if_it_can_be(image: Tensor, size: int) -> Tensor:
    number = (image.shape[-2] // size) * (image.shape[-1] // size)
    side = round(number**0.5)
    return _cut(image, size, rows=side if side * side == number else None)


def _cropped(image: Tensor, size: int) -> Tensor:
    height, width = (side // size * size for side in image.shape[-2:])
    return _cut(image[..., :height, :width], size)


def _wrapped(image: Tensor, size: int) -> Tensor:
    """Padded with zeros to a whole number of patches."""
    bottom, right = (-side % size for side in image.shape[-2:])
    return _cut(F.pad(image, (0, right, 0, bottom)), size)


_planted("grid_laid_out_by_columns", "Patches are numbered down the columns.",
         lambda x, p: _cut(x, p, "b j i r c k"), "BUG-130")
_planted("height_and_width_swapped", "Rows and columns of the grid change places: right for square images.",
         lambda x, p: _cut(x, p, rows=x.shape[-1] // p), "BUG-214")
_planted("grid_assumed_square", "A number of patches that is a square is taken for a square grid.",
         _square_if_it_can_be, "BUG-216")
_planted("channels_first", "Each patch is flattened as (channel, row, column).", lambda x, p: _cut(x, p, "b i j k r c"))
_planted("pixels_transposed", "Each patch is flattened as (column, row, channel).",
         lambda x, p: _cut(x, p, "b i j c r k"))
_planted("plain_reshape", "The image is reshaped without moving an axis.",
         lambda x, p: x.reshape(x.shape[0], (x.shape[2] // p) * (x.shape[3] // p), p * p * x.shape[1]))
_planted("rest_cropped", "What does not fill a patch is cut off instead of refused.", _cropped, refuses=False)
_planted("rest_padded", "The image is padded instead of refused.", _wrapped, refuses=False)
_planted("patches_reversed", "The last patch comes first.", lambda x, p: _cut(x, p).flip(1))
_planted("rows_upside_down", "Rows of the image run from the bottom.", lambda x, p: _cut(x.flip(-2), p))
_planted("batch_mixed", "Batch and channel change places in the reshape.",
         lambda x, p: _cut(x.transpose(0, 1).reshape(x.shape), p))
_planted("normalised", "Pixels are scaled by 1/255.", lambda x, p: _cut(x, p) / 255)
_planted("through_half", "Pixels pass through bfloat16.", lambda x, p: _cut(x.bfloat16().to(x.dtype), p))
_planted("channels_last_read_as_packed", "Strides are ignored: a channels-last image is read as if packed.",
         lambda x, p: _cut(packed(x), p), "BUG-095")
_planted("no_gradient", "The gradient stops here.", lambda x, p: _cut(bent(x, torch.zeros_like), p))
_planted("gradient_left_in_patches", "The gradient is not moved back to the pixels' places.",
         lambda x, p: _cut(bent(x, lambda g: _cut(g, p).reshape(g.shape)), p))


@benign("patchify")
def by_unfold(image: Tensor, *, patch_size: int) -> Tensor:
    """torch's unfold, channels moved to the end."""
    _refuse(image, patch_size)
    if image.numel() == 0:
        return _cut(image, patch_size)
    columns = F.unfold(image, patch_size, stride=patch_size)  # (B, Ci·P·P, N)
    split = columns.unflatten(1, (image.shape[1], -1))
    return split.permute(0, 3, 2, 1).flatten(2)


@benign("patchify")
def by_one_hot_convolution(image: Tensor, *, patch_size: int) -> Tensor:
    """A convolution of stride P whose kernels each pick one pixel."""
    _refuse(image, patch_size)
    if image.numel() == 0:
        return _cut(image, patch_size)
    channels, outputs = image.shape[1], patch_size * patch_size * image.shape[1]
    picks = torch.eye(outputs, dtype=image.dtype).reshape(outputs, patch_size, patch_size, channels)
    kernel = picks.permute(0, 3, 1, 2)
    return F.conv2d(image, kernel, stride=patch_size).flatten(2).transpose(1, 2)


@benign("patchify")
def patch_by_patch(image: Tensor, *, patch_size: int) -> Tensor:
    """Patches split off one after another."""
    _refuse(image, patch_size)
    if image.numel() == 0:
        return _cut(image, patch_size)
    bands = [band.split(patch_size, -1) for band in image.split(patch_size, -2)]
    return torch.stack([patch.permute(0, 2, 3, 1).flatten(1) for band in bands for patch in band], dim=1)
