"""What a query may see, as the libraries want it: one boolean grid instead of mask, causal and window."""
from __future__ import annotations

from torch import Tensor, arange, finfo, where


def visible(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, window: int | tuple[int, int] | None) -> Tensor | None:
    """The grid of what each query sees, with four axes that broadcast to (B,H,Tq,Tk); None where all is seen."""
    keep = None if mask is None else four_axes(mask)
    if causal or window is not None:
        query = arange(q.shape[-2], device=q.device)[:, None] + (k.shape[-2] - q.shape[-2])
        key = arange(k.shape[-2], device=q.device)[None, :]
        left, right = window if isinstance(window, tuple) else (window and window - 1, 0)
        band = key <= query + (0 if causal else right)
        if left is not None:
            band = band & (key >= query - left)
        keep = four_axes(band) if keep is None else keep & band
    return keep


def four_axes(grid: Tensor) -> Tensor:
    """The same grid with leading axes of length 1, since some kernels count the axes before they broadcast."""
    return grid[(None,) * (4 - grid.dim())]


def lowest(grid: Tensor | None, like: Tensor) -> Tensor | None:
    """What Hugging Face adds to scores: the type's lowest number where a key is hidden, so that a row without keys is a mean."""
    return None if grid is None else where(grid, like.new_zeros(()), finfo(like.dtype).min)
