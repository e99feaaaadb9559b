"""torch's normalisations: functions, modules, and GroupNorm with one group, which is LayerNorm by another route."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import assay
from assay.impls._modules import bare, run


@assay.implements("layer_norm", name="torch-layer-norm", version=torch.__version__)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The fused kernel."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


@assay.implements("layer_norm", name="torch-nn-layer-norm", version=torch.__version__)
def layer_norm_module(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """The module."""
    out: Tensor = run(bare(nn.LayerNorm, x.shape[-1], eps=eps), {"weight": weight, "bias": bias}, x)
    return out


@assay.implements("layer_norm", name="torch-group-norm", version=torch.__version__)
def layer_norm_by_group(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """GroupNorm of one group: the same numbers as x * a + b, so rounded elsewhere."""
    rows = x.reshape(-1, x.shape[-1])
    return F.group_norm(rows, 1, weight, bias, eps).reshape(x.shape)


@assay.implements("rms_norm", name="torch-rms-norm", version=torch.__version__)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The function."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


@assay.implements("rms_norm", name="torch-nn-rms-norm", version=torch.__version__)
def rms_norm_module(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """The module."""
    out: Tensor = run(bare(nn.RMSNorm, x.shape[-1], eps=eps), {"weight": weight}, x)
    return out


@assay.implements("add_rms_norm", name="torch-add-rms-norm", version=torch.__version__)
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """An addition, and then the function: what fused kernels take the place of."""
    summed = x + residual
    return F.rms_norm(summed, (x.shape[-1],), weight, eps), summed


@assay.implements("batch_norm", name="torch-batch-norm", version=torch.__version__)
def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The function, which updates the running statistics where they lie: it gets copies."""
    refuse_one_row(x, training)
    mean, var = running_mean.clone(), running_var.clone()
    y = F.batch_norm(x, mean, var, weight, bias, training=training, momentum=momentum, eps=eps)
    return y, mean, var


@assay.implements("batch_norm", name="torch-nn-batch-norm", version=torch.__version__)
def batch_norm_module(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, *, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The module, its running statistics being copies of those given."""
    refuse_one_row(x, training)
    module = bare(nn.BatchNorm1d, x.shape[-1], eps=eps, momentum=momentum).train(training)
    buffers = {"running_mean": running_mean.clone(), "running_var": running_var.clone()}
    y = run(module, {"weight": weight, "bias": bias, **buffers}, x)
    return y, buffers["running_mean"], buffers["running_var"]


def refuse_one_row(x: Tensor, training: bool) -> None:
    """torch raises ValueError for a variance over fewer than two rows: that shape is not implemented there."""
    if training and x.shape[0] < 2:
        raise NotImplementedError(f"x={tuple(x.shape)} must have 2 rows or more in training")
