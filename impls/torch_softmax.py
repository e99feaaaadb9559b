"""torch's softmax, by function, by logarithm and as a module."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import assay

# A row of -inf alone gives NaN in all three, which is the kind's default convention.


@assay.implements("softmax", name="torch-softmax", version=torch.__version__)
def softmax(x: Tensor, *, dim: int = -1) -> Tensor:
    """The fused kernel."""
    return F.softmax(x, dim=dim)


@assay.implements("softmax", name="torch-log-softmax-exp", version=torch.__version__)
def softmax_by_logarithm(x: Tensor, *, dim: int = -1) -> Tensor:
    """The fused logarithm, taken back: one rounding of the logarithm more."""
    return F.log_softmax(x, dim=dim).exp()


@assay.implements("softmax", name="torch-nn-softmax", version=torch.__version__)
def softmax_module(x: Tensor, *, dim: int = -1) -> Tensor:
    """The module, made for the call."""
    return nn.Softmax(dim=dim)(x)
