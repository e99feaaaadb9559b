"""Liger-Kernel: norms, rotary embedding, gated products, softmax and cross-entropy; compiled on CUDA, interpreted on the CPU.

Where a function writes over what it was given, it gets a copy (reports/findings/liger_in_place.md), or is told not to.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.function import once_differentiable

import assay
from assay.impls import _liger
from assay.impls._modules import installed
from assay.impls._triton import FAST, INTERPRETED

REQUIRES = ("triton", "liger_kernel")
OPTIONS: dict[str, Any] = {"dtypes": ("float32", "bfloat16", "float16"), "version": installed("liger-kernel"), "deep": INTERPRETED,
                           "url": "https://github.com/linkedin/Liger-Kernel"}
SINGLE = {"internal": "float32"}


@_disable_dynamo  # torch's compiler would trace the interpreter
def apply(file: str, name: str, *arguments: Any) -> Any:
    """Liger's autograd function of that name."""
    _liger.supported(*(one for one in arguments if isinstance(one, Tensor) and one.is_floating_point()))
    return _liger.function(file, name).apply(*arguments)


@assay.implements("rms_norm", name="liger-rms-norm", **OPTIONS)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`LigerRMSNormFunction` as for Llama: rounded before the weight."""
    return apply("rms_norm", "LigerRMSNormFunction", x, weight, eps, 0.0, "llama", False)


@assay.implements("rms_norm", name="liger-rms-norm-gemma", arithmetic=SINGLE, **OPTIONS)
def rms_norm_gemma(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`LigerRMSNormFunction` as for Gemma: float32 throughout; the offset, 1 there, is 0."""
    return apply("rms_norm", "LigerRMSNormFunction", x, weight, eps, 0.0, "gemma", False)


@assay.implements("add_rms_norm", name="liger-add-rms-norm", **OPTIONS)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """`LigerFusedAddRMSNormFunction` as for Llama."""
    y, summed = apply("fused_add_rms_norm", "LigerFusedAddRMSNormFunction", x, residual, weight, eps, 0.0, "llama", False)
    return y, summed


@assay.implements("layer_norm", name="liger-layer-norm", arithmetic=SINGLE, **OPTIONS)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`LigerLayerNormFunction`: float32 throughout."""
    return apply("layer_norm", "LigerLayerNormFunction", x, weight, bias, eps)


class Laid(torch.autograd.Function):
    """A copy of (B,H,T,D) whose memory is (B,T,H,D) with the steps that belong to it, of the gradient too.

    The rotation writes over both (reports/findings/liger_in_place.md), and goes by the step from token to token, which says nothing
    where there is one token (reports/findings/liger_rotary_one_token.md).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return laid(x)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        return laid(upstream)


def laid(x: Tensor) -> Tensor:
    """Tokens before heads in memory."""
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


@assay.implements("rotary", name="liger-rotary", conventions={"pairing": "half"}, offers={"negative_positions"}, **OPTIONS)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """`LigerRopeFunction` on queries and keys, which are the same here; float32 tables of cosines and sines."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    frequencies = base ** -(torch.arange(0, width, 2, device=x.device, dtype=torch.float32) / width)
    angles = torch.atleast_2d(positions).float()[..., None] * frequencies
    angles = torch.cat([angles, angles], -1)
    out: Tensor = Laid.apply(apply("rope", "LigerRopeFunction", Laid.apply(x), laid(x.detach()), angles.cos(), angles.sin())[0])
    return out


@assay.implements("gated_feed_forward", name="liger-swiglu", conventions={"activation": "silu"}, arithmetic=FAST, **OPTIONS)
def swiglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """`LigerSiLUMulFunction` between torch's products."""
    hidden = apply("swiglu", "LigerSiLUMulFunction", F.linear(x, w_gate), F.linear(x, w_up))
    return F.linear(hidden, w_down)


@assay.implements("gated_feed_forward", name="liger-geglu", conventions={"activation": "gelu_tanh"}, **OPTIONS)
def geglu(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """`LigerGELUMulFunction` between torch's products."""
    return F.linear(apply("geglu", "LigerGELUMulFunction", F.linear(x, w_gate), F.linear(x, w_up)), w_down)


@assay.implements("softmax", name="liger-softmax", arithmetic={**FAST, "accumulate": "input"}, **OPTIONS)
def softmax(x: Tensor, *, dim: int = -1) -> Tensor:
    """`LigerSoftmaxFunction` along the last axis, in the type of the input throughout."""
    out: Tensor = apply("softmax", "LigerSoftmaxFunction", x.movedim(dim, -1))
    return out.movedim(-1, dim)


# The mean over no counted row is 0, not 0/0; over no row at all its check of the targets raises.
@assay.implements("cross_entropy", name="liger-cross-entropy", conventions={"smoothing": "all", "all_ignored": "zero"},
                  arithmetic=FAST, lacks={"empty"}, **OPTIONS)
def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                  reduction: str = "mean") -> Tensor:
    """`LigerCrossEntropyFunction` on rows in memory: others get a wrong gradient (findings/liger_cross_entropy_strides.md)."""
    rows = logits.clone(memory_format=torch.contiguous_format)
    return apply("cross_entropy", "LigerCrossEntropyFunction", rows, targets, None, ignore_index, 0.0, label_smoothing,
                 reduction)[0]


@assay.implements("cross_entropy", name="liger-linear-cross-entropy", conventions={"smoothing": "all", "all_ignored": "zero"},
                  arithmetic=FAST, lacks={"empty"}, limits={"V": range(1, 70)}, **OPTIONS)
def linear_cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
                         reduction: str = "mean") -> Tensor:
    """`LigerFusedLinearCrossEntropyFunction`: logits as hidden states, the identity as the weight: exact products."""
    identity = torch.eye(logits.shape[1], dtype=logits.dtype, device=logits.device)
    return apply("fused_linear_cross_entropy", "LigerFusedLinearCrossEntropyFunction", logits, identity, targets, None, None,
                 ignore_index, 0.0, label_smoothing, reduction)[0]
