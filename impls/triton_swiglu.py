"""SwiGLU with the activation and the product in one Triton kernel, between torch's matrix products."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

import assay
from assay.impls._triton import FAST, INTERPRETED, VERSION, kernel, launches, on_cuda, staged, supported, tiles

if TYPE_CHECKING:
    import triton.language as tl

REQUIRES = ("triton",)


@kernel
def gate_up(gate, up, hidden, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """hidden = silu(gate) ⊙ up."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + at, mask=at < elements, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < elements, other=0.0).to(tl.float32)
    tl.store(hidden + at, (g / (1.0 + tl.exp(-g)) * u).to(hidden.dtype.element_ty), mask=at < elements)


@kernel
def gate_up_backward(gate, up, upstream, of_gate, of_up, elements, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """∂gate = g·u·σ·(1 + gate·(1 − σ)), ∂up = g·silu(gate)."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(gate + at, mask=at < elements, other=0.0).to(tl.float32)
    u = tl.load(up + at, mask=at < elements, other=0.0).to(tl.float32)
    g = tl.load(upstream + at, mask=at < elements, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-z))
    tl.store(of_gate + at, (g * u * share * (1.0 + z * (1.0 - share))).to(of_gate.dtype.element_ty), mask=at < elements)
    tl.store(of_up + at, (g * z * share).to(of_up.dtype.element_ty), mask=at < elements)


def block(x: Tensor) -> int:
    """Elements of a program."""
    return 1024 if on_cuda(x) else 2048


@launches(gate_up)
def forward(gate: Tensor, up: Tensor) -> Tensor:
    """The hidden units."""
    z, u = (staged(one).contiguous() for one in (gate, up))
    hidden = torch.empty_like(z)
    gate_up[(tiles(z.numel(), block(z)),)](z, u, hidden, z.numel(), BLOCK=block(z), num_warps=4)
    return hidden.to(gate.dtype)


@launches(gate_up_backward)
def backward(gate: Tensor, up: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    """Out of the two products, the sigmoid taken again."""
    z, u, g = (staged(one).contiguous() for one in (gate, up, upstream))
    of_gate, of_up = torch.empty_like(z), torch.empty_like(z)
    gate_up_backward[(tiles(z.numel(), block(z)),)](z, u, g, of_gate, of_up, z.numel(), BLOCK=block(z), num_warps=4)
    return of_gate.to(gate.dtype), of_up.to(up.dtype)


class GateUp(torch.autograd.Function):
    """Forward and backward, joined for autograd."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return forward(gate, up)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return backward(gate, up, upstream)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) ⊙ up, with gradients."""
    hidden: Tensor = GateUp.apply(gate, up)
    return hidden


@assay.implements("gated_feed_forward", name="triton-swiglu", conventions={"activation": "silu"}, arithmetic=FAST,
                  version=VERSION, deep=INTERPRETED)
def swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """SiLU alone."""
    supported(x)
    return F.linear(gated(F.linear(x, w_gate), F.linear(x, w_up)), w_down)
