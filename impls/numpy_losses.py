"""Cross-entropy in NumPy, the backward written out by hand."""
from __future__ import annotations

from typing import Any

import numpy as np

import assay
from assay.impls.numpy_attention import ORACLE
from assay.impls.numpy_bridge import Array, bridged


def smoothed_targets(targets: Array, counted: Array, size: int, epsilon: float) -> Array:
    """q (N,V): 1 − ε at the target, ε/(V − 1) at each other id; rows that do not count hold zeros."""
    q = np.full((len(targets), size), epsilon / (size - 1) if epsilon else 0.0)
    q[np.arange(len(targets)), np.where(counted, targets, 0)] = 1 - epsilon
    return np.asarray(np.where(counted[:, None], q, 0.0))


def check(targets: Array, size: int, epsilon: float, reduction: str) -> None:
    """Targets are ids, and smoothing leaves the target the larger share where there is another id at all."""
    if ((targets < 0) | (targets >= size)).any():
        raise ValueError(f"targets must lie in 0 … {size - 1} or be ignore_index, got {targets.min()} … {targets.max()}; "
                         "correct them")
    if not 0 <= epsilon < 1 or (epsilon and size == 1):
        raise ValueError(f"label_smoothing={epsilon} must lie in 0 ≤ ε < 1 (0 where V = 1), got {epsilon}, V={size}; lower it")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction={reduction!r} must be mean, sum or none, got {reduction!r}; choose one of them")


def cross_entropy(
    logits: Array, targets: Array, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> tuple[Array, Any]:
    """l_n = −Σ_j q_nj·log p_nj, log p = z − max − log Σ exp(z − max); summed, or averaged over the rows that count."""
    counted = targets != ignore_index
    check(targets[counted], logits.shape[-1], label_smoothing, reduction)
    q = smoothed_targets(targets, counted, logits.shape[-1], label_smoothing)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    rows = -np.where(q == 0, 0.0, q * log_p).sum(axis=-1)
    count = np.float64(counted.sum())
    loss = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / count}[reduction]  # over no row: 0/0
    return np.asarray(loss), (np.exp(log_p), q, counted, count if reduction == "mean" else 1.0)


def cross_entropy_backward(saved: Any, dl: Array) -> dict[str, Array]:
    """dz = (p − q)·dl, over the same mean: the softmax less the (smoothed) target; nothing for rows that do not count."""
    p, q, counted, count = saved
    return {"logits": np.where(counted[:, None], (p - q) * dl[..., None] / count, 0.0)}


numpy_cross_entropy = assay.implements("cross_entropy", name="numpy-cross-entropy", **ORACLE)(
    bridged(cross_entropy, cross_entropy_backward, inside="float64"))
