"""Patches by einops, whose pattern is the definition."""
from __future__ import annotations

from einops import rearrange
from torch import Tensor

import assay
from assay.impls._modules import installed

REQUIRES = ("einops",)


@assay.implements("patchify", name="einops", version=installed("einops"), url="https://github.com/arogozhnikov/einops")
def patchify(image: Tensor, *, patch_size: int) -> Tensor:
    """(row, column, channel) within each patch, patches row by row."""
    return rearrange(image, "b c (h p) (w q) -> b (h w) (p q c)", p=patch_size, q=patch_size)
