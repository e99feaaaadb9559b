"""Patching: an image as a row of flattened squares."""
from __future__ import annotations

from torch import Tensor

from assay.numbers.forms import Form


def patchify(image: Tensor, *, patch_size: int) -> Tensor:
    """Cut an image into squares, row by row, and flatten each as (row, column, channel).

    Formula: y[b, (i·Wi/P + j), (r·P + c)·Ci + k] = image[b, k, i·P + r, j·P + c].

    image: (B, Ci, Hi, Wi)
    returns: (B, N, P·P·Ci), N = (Hi/P)·(Wi/P)

    Conventions: none.
    Raises: ValueError where P is below 1 or does not divide Hi and Wi, or image is not of four axes.
    Source: Dosovitskiy et al., "An Image is Worth 16x16 Words", section 3.1, arXiv 2010.11929.

    >>> import torch
    >>> patchify(torch.arange(8.0).reshape(1, 1, 2, 4), patch_size=2).tolist()
    [[[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]]
    """
    if image.dim() != 4:
        raise ValueError(f"image.shape={tuple(image.shape)} must be (B, Ci, Hi, Wi); add the missing axes")
    batch, channels, height, width = image.shape
    if patch_size < 1:
        raise ValueError(f"patch_size={patch_size} must be at least 1, got {patch_size}; pass a positive size")
    for name, size in (("Hi", height), ("Wi", width)):
        if size % patch_size:
            raise ValueError(
                f"patch_size={patch_size} must divide the image's {name}={size}, got remainder {size % patch_size}; "
                "pad or crop the image"
            )
    rows, columns = height // patch_size, width // patch_size
    grid = image.reshape(batch, channels, rows, patch_size, columns, patch_size)  # (B, Ci, row, r, column, c)
    patches = grid.permute(0, 2, 4, 3, 5, 1)  # (B, row, column, r, c, Ci)
    return patches.reshape(batch, rows * columns, patch_size * patch_size * channels)


FORMS: tuple[Form, ...] = (Form("as written", patchify),)
