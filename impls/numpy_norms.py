"""Layer and root-mean-square normalisation in NumPy, the backward written out by hand."""
from __future__ import annotations

from typing import Any

import numpy as np

import assay
from assay.impls.numpy_attention import ORACLE
from assay.impls.numpy_bridge import Array, bridged


def mean(x: Array) -> Array:
    """Over the features, which stay as an axis of length 1."""
    return np.asarray(x.mean(axis=-1, keepdims=True))


def over_tokens(x: Array) -> Array:
    """Summed over everything but the features: (…,C) to (C,)."""
    return np.asarray(x.sum(axis=tuple(range(x.ndim - 1))))


def layer_norm(x: Array, weight: Array, bias: Array, *, eps: float) -> tuple[Array, Any]:
    """y = x̂ ⊙ weight + bias, x̂ = (x − μ)·r, r = 1/√(σ² + eps), σ² = mean((x − μ)²)."""
    centred = x - mean(x)
    r = 1 / np.sqrt(mean(centred * centred) + eps)
    normalised = centred * r
    return normalised * weight + bias, (normalised, r, weight)


def layer_norm_backward(saved: Any, dy: Array) -> dict[str, Array]:
    """dx = r·(h − mean(h) − x̂·mean(h ⊙ x̂)), h = dy ⊙ weight: what h says about shift and scale of the token is taken out."""
    normalised, r, weight = saved
    h = dy * weight
    return {"x": r * (h - mean(h) - normalised * mean(h * normalised)), "weight": over_tokens(dy * normalised),
            "bias": over_tokens(dy)}


def rms_norm(x: Array, weight: Array, *, eps: float) -> tuple[Array, Any]:
    """y = x̂ ⊙ weight, x̂ = x·r, r = 1/√(mean(x²) + eps)."""
    r = 1 / np.sqrt(mean(x * x) + eps)
    normalised = x * r
    return normalised * weight, (normalised, r, weight)


def rms_norm_backward(saved: Any, dy: Array) -> dict[str, Array]:
    """dx = r·(h − x̂·mean(h ⊙ x̂)), h = dy ⊙ weight."""
    normalised, r, weight = saved
    h = dy * weight
    return {"x": r * (h - normalised * mean(h * normalised)), "weight": over_tokens(dy * normalised)}


numpy_layer_norm = assay.implements("layer_norm", name="numpy-layer-norm", **ORACLE)(
    bridged(layer_norm, layer_norm_backward, inside="float64"))
numpy_rms_norm = assay.implements("rms_norm", name="numpy-rms-norm", **ORACLE)(
    bridged(rms_norm, rms_norm_backward, inside="float64"))
