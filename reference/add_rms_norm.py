"""A residual added, and the sum normalised: one step of a pre-norm stack, as fused kernels take it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from assay.numbers.bound import stored
from assay.numbers.forms import Form
from assay.reference import rms_norm


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """Add the residual, and give the sum's normalisation beside the sum itself, which is the next step's residual.

    Formula: s = x + residual; y_i = s_i / √(mean(s²) + eps) · weight_i.

    x: (…, C), what a sub-layer gave
    residual: (…, C), as x: what it was given
    weight: (C,)
    returns: y (…, C); s (…, C), in the inputs' type or wider

    Conventions: the weight multiplies as it is (an offset form 1 + g passes 1 + g here).
    Raises: ValueError where residual is not shaped as x, or weight is not (C,).
    Source: Zhang, Sennrich, "Root Mean Square Layer Normalization", section 4, arXiv 1910.07467; that y and s come back
    together is the call of the fused kernels of vLLM, Liger-Kernel and FlashAttention (prenorm).

    >>> import torch
    >>> x, residual = torch.tensor([[1.0, 4.0, 2.0, 1.0]]), torch.tensor([[2.0, 0.0, 3.0, -1.0]])
    >>> [one.tolist() for one in add_rms_norm(x.double(), residual.double(), torch.ones(4).double(), eps=12.5)]
    [[[0.6, 0.8, 1.0, 0.0]], [[3.0, 4.0, 5.0, 0.0]]]
    """
    summed = _sum(x, residual)
    return rms_norm.rms_norm(summed, weight, eps=eps), summed


def _sum(x: Tensor, residual: Tensor) -> Tensor:
    if residual.shape != x.shape:
        raise ValueError(f"residual.shape={tuple(residual.shape)} must be that of x, {tuple(x.shape)}; pass a number for each of x")
    return x + residual


def _of_the_stored_sum(norm: Form) -> Form:
    """The sum goes to memory in its own type, and what is read there is normalised; the gradient of that is stored before the
    sum's own is added to it. Where kernels keep the sum in registers, neither is rounded twice."""
    def forward(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        summed = _sum(x, residual)
        normalised: Tensor = norm.forward(stored(summed), weight, eps=eps)
        return normalised, summed

    def backward(
        upstream: Sequence[Tensor], wrt: Sequence[str], *, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> Mapping[str, Tensor]:
        assert norm.backward is not None
        of_y, of_sum = upstream
        found = norm.backward(of_y, ("x", "weight"), x=stored(x + residual), weight=weight, eps=eps)
        both = stored(found["x"]) + of_sum
        gradients = {"x": both, "residual": both, "weight": found["weight"]}
        return {name: gradients[name] for name in wrt}

    return Form(f"sum as stored, {norm.name}", forward, backward if norm.backward else None, usual=norm.usual)


FORMS: tuple[Form, ...] = (Form("as written", add_rms_norm), *map(_of_the_stored_sum, rms_norm.FORMS))
