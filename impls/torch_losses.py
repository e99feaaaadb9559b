"""torch's losses."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import assay

# torch spreads the smoothed mass over all classes, the target among them: `smoothing` is `all`.
# With every target ignored, the mean is 0/0, so NaN: the kind's default.


@assay.implements("cross_entropy", name="torch-cross-entropy", conventions={"smoothing": "all"},
                  version=torch.__version__)
def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """The function."""
    return F.cross_entropy(
        logits, targets, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction
    )


@assay.implements("cross_entropy", name="torch-nn-cross-entropy", conventions={"smoothing": "all"},
                  version=torch.__version__)
def cross_entropy_module(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """The module."""
    loss = nn.CrossEntropyLoss(ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction)
    out: Tensor = loss(logits, targets)
    return out


@assay.implements("cross_entropy", name="torch-nll", version=torch.__version__)
def cross_entropy_by_nll(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """log_softmax, then the negative logarithm of the target."""
    return F.nll_loss(F.log_softmax(logits, dim=-1), targets, ignore_index=ignore_index, reduction=reduction)


@assay.implements("preference_loss", name="torch-logsigmoid", version=torch.__version__)
def preference_loss(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """The fused logarithm of the sigmoid."""
    return -F.logsigmoid(r_chosen - r_rejected).mean()


@assay.implements("preference_loss", name="torch-bce-with-logits", version=torch.__version__)
def preference_by_cross_entropy(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """Binary cross-entropy of the margin against "the chosen one is better"."""
    margin = r_chosen - r_rejected
    return F.binary_cross_entropy_with_logits(margin, torch.ones_like(margin))


@assay.implements("preference_loss", name="torch-softplus", version=torch.__version__)
def preference_by_softplus(r_chosen: Tensor, r_rejected: Tensor) -> Tensor:
    """Softplus of the negated margin."""
    # Beyond the threshold the function is the identity, exp(-threshold) off: the default of 20 shows in float64.
    return F.softplus(r_rejected - r_chosen, threshold=40.0).mean()
