"""A residual added and the sum normalised in one, in plain PyTorch: one Function with a backward written by hand.

What is kept for the gradients is the sum as it was stored, which is a result anyway, and one number a row: left to autograd, the
norm keeps its own copies. Half precision is turned into float32 once, and the norm is that of the sum before it is rounded.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._tiles import single


class AddNorm(torch.autograd.Function):
    """y = s·r·weight and s = x + residual, r the reciprocal root of each row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        full = single(x) + single(residual)
        root = torch.rsqrt(full.square().mean(-1, keepdim=True) + eps)
        summed, y = full.to(x.dtype), (full * root).mul_(single(weight)).to(x.dtype)
        ctx.save_for_backward(summed, root, weight)
        return y, summed

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, of_y: Tensor, of_sum: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        summed, root, weight = ctx.saved_tensors
        normal, g = single(summed) * root, single(of_y)
        of_weight = (g * normal).reshape(-1, weight.shape[0]).sum(0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        h = g * single(weight)
        through = normal.mul_((h * normal).mean(-1, keepdim=True)).neg_().add_(h).mul_(root)
        both = through.add_(single(of_sum)).to(summed.dtype)
        return both, both, of_weight, None


@assay.implements("add_rms_norm", name="fused-add-rms-norm", arithmetic={"internal": "float32"}, version=torch.__version__)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Both gradients, that of the sum and what comes through the norm, are added before they are rounded."""
    y, summed = AddNorm.apply(x, residual, weight, eps)
    return y, summed
