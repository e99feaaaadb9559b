"""torch's scaled_dot_product_attention: as torch dispatches it, and pinned to one kernel.

What each does on CPU (torch 2.13, found by recording what reaches the dispatcher):

| | math | flash |
|---|---|---|
| dtypes | all four | all four |
| boolean mask, additive bias (2 or 4 axes), scale, grouped heads, gradients | yes | yes |
| value width other than D; a last stride other than 1; a mask with 3 axes | yes | "No available kernel" |
| Tq, Tk or B of 0 | zeros or nothing, no kernel runs | zeros or nothing, no kernel runs |
| row without keys, by mask, by bias or Tk = 0 | zeros, finite gradients | zeros, finite gradients |
| Tk = 0 and queries whose sum overflows | NaN (reports/findings/sdpa_no_keys.md) | the same |
| NaN or infinity behind a mask | spreads | spreads |
| `is_causal` with Tq != Tk | aligned top-left | aligned top-left |
| `is_causal` with a scale of 0 or below | right | NaN (reports/findings/sdpa_negative_scale.md) |

The memory-efficient kernel and cuDNN's are CUDA's alone: `sdpa-efficient` and `sdpa-cudnn` are pinned to them, untried as yet.
There is no softcap. Windows and bottom-right alignment are handed over as a mask, as the documentation asks.
"""
from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import assay
from assay.impls._masks import four_axes, visible
from assay.impls._modules import Kernels

NO_KERNEL = ("No available kernel", "No viable backend")  # in torch's words: not for this call, not on this device


def translated(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, causal: bool,
    window: int | tuple[int, int] | None, scale: float | None,
) -> dict[str, Any]:
    """The options of the call in torch's words: a square causal call by flag, all else by mask."""
    square = causal and mask is None and bias is None and window is None and q.shape[-2] == k.shape[-2]
    grid = None if square else visible(q, k, mask, causal, window)
    if bias is not None:
        bias = four_axes(bias)
        grid = bias if grid is None else torch.where(grid, bias, float("-inf"))
    return {"attn_mask": grid, "is_causal": square, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]}


@assay.implements("attention", name="sdpa", offers={"two_sided_window"}, version=torch.__version__)
def sdpa(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | tuple[int, int] | None = None, scale: float | None = None,
) -> Tensor:
    """Whatever kernel torch chooses."""
    return F.scaled_dot_product_attention(q, k, v, **translated(q, k, mask, bias, causal, window, scale))


@assay.implements("attention", name="sdpa-is-causal", conventions={"causal_alignment": "top_left"},
                  version=torch.__version__)
def sdpa_is_causal(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """The `is_causal` flag in every shape: query i sees the keys 0 … i, however many keys there are."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)


@assay.implements("attention", name="sdpa-math", offers={"negative_scale"}, version=torch.__version__)
def sdpa_math(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Tensor:
    """Pinned to the formula written in ATen operations."""
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, **translated(q, k, mask, bias, causal, window, scale))


def pinned(backend: SDPBackend, kernel: str, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor:
    """One kernel and no other: refused, with torch's reason, where it does not take the call or did not run."""
    with sdpa_kernel(backend), warnings.catch_warnings(record=True) as reasons, Kernels() as seen:
        warnings.simplefilter("always")
        try:
            out = F.scaled_dot_product_attention(q, k, v, **options)
        except RuntimeError as error:
            if not any(words in str(error) for words in NO_KERNEL):
                raise
            why = str(reasons[-1].message).split(" (Triggered")[0] if reasons else str(error)
            raise NotImplementedError(f"{kernel}: {why}") from error
    if not seen.ran(f"_scaled_dot_product_{kernel}_attention"):
        raise NotImplementedError(f"{kernel}: no {kernel} kernel ran for q={tuple(q.shape)}, k={tuple(k.shape)}")
    return out


@assay.implements("attention", name="sdpa-flash", lacks={"value_width", "empty", "strided"}, version=torch.__version__)
def sdpa_flash(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Tensor:
    """Pinned to the flash kernel."""
    return pinned(SDPBackend.FLASH_ATTENTION, "flash", q, k, v, translated(q, k, mask, bias, causal, window, scale))


@assay.implements("attention", name="sdpa-efficient", lacks={"gqa", "empty", "strided"}, devices=("cuda",),
                  version=torch.__version__)
def sdpa_efficient(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Tensor:
    """Pinned to the memory-efficient kernel, which torch has on CUDA alone and for as many key heads as query heads."""
    return pinned(SDPBackend.EFFICIENT_ATTENTION, "efficient", q, k, v, translated(q, k, mask, bias, causal, window, scale))


@assay.implements("attention", name="sdpa-cudnn", dtypes=("bfloat16", "float16"), lacks={"empty", "strided"}, devices=("cuda",),
                  version=torch.__version__)
def sdpa_cudnn(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None,
) -> Tensor:
    """Pinned to cuDNN's kernel, which is CUDA's and takes half precision alone."""
    return pinned(SDPBackend.CUDNN_ATTENTION, "cudnn", q, k, v, translated(q, k, mask, bias, causal, window, scale))
