"""Conventions: what correct implementations may choose, each with one default and a closed list of values."""
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from assay.contract.kinds import REQUIRED, Kind, quoted, unknown
from assay.errors import UsageError


@dataclass(frozen=True)
class Convention:
    """A choice: its values, default first, and what it is about."""

    name: str
    values: tuple[str, ...]
    summary: str


CONVENTIONS: Final[Mapping[str, Convention]] = {c.name: c for c in (
    Convention("causal_alignment", ("bottom_right", "top_left"), "the corner of the causal mask where Tq != Tk"),
    Convention("empty_row", ("zeros", "mean", "nan_row", "refused"), "what a row without any visible key gives"),
    Convention("nan_behind_mask", ("not_claimed", "ignored"), "whether NaN at masked keys stays out of the output"),
    Convention("row_dependence", ("none", "rounding"), "whether last bits of a row may depend on other rows"),
    Convention("positions", ("index", "from_mask"), "whether padded tokens are counted as positions"),
    Convention("alibi_row_shift", ("none", "per_row"), "whether rows of the bias may be shifted by a constant each"),
    Convention("router", ("softmax_of_topk", "topk_of_softmax", "sigmoid"), "how scores become the weights of experts"),
    Convention("repeatability", ("bitwise", "rounding"), "whether repeats of one call may differ in the last bits"),
    Convention("capacity", ("none", "drops"), "whether experts turn tokens away"),
    Convention("topk_ties", ("exactly_k", "all"), "what happens to logits equal to the k-th"),
    Convention("topp_boundary", ("reach", "exceed"), "whether the kept mass must reach or exceed p"),
    Convention("temperature_zero", ("refused", "greedy"), "what temperature 0 means"),
    Convention("smoothing", ("others", "all"), "whether smoothed mass goes to the other classes or to all"),
    Convention("all_ignored", ("nan", "zero", "refused"), "the mean over no counted row"),
    Convention("mlm_choice", ("bernoulli", "count"), "whether tokens are chosen one by one or as a fixed count"),
    Convention("mlm_replace", ("mask_only", "bert"), "what chosen tokens become (bert: 80/10/10)"),
    Convention("kl", ("k1", "k2", "k3"), "the estimator of the KL term"),
    Convention("bn_momentum", ("new", "old"), "which of batch and running value the momentum weighs"),
    Convention("bn_variance", ("unbiased", "biased"), "the variance that enters the running one"),
)}

_DEFAULT_OF: Final[Mapping[tuple[str, str], str]] = {("softmax", "empty_row"): "nan_row"}

# Arguments that an implementation without them has settled for good, and the values it may name (None: a number).
FIXED: Final[Mapping[str, tuple[str, ...] | None]] = {
    "pairing": ("interleaved", "half"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "norm": ("rms", "layer"),
    "placement": ("pre", "post", "sandwich", "deepnorm"),
    "ffn": ("mlp", "swiglu", "moe"),
    "eps": None,
    "base": None,
}


def defaults(kind: Kind) -> dict[str, str]:
    """Every convention of the kind with its default."""
    return {name: _DEFAULT_OF.get((kind.name, name), CONVENTIONS[name].values[0]) for name in kind.conventions}


def fixable(kind: Kind) -> tuple[str, ...]:
    """Arguments of the kind for which an implementation may name one fixed choice."""
    return tuple(name for name in FIXED if name in kind.options)


def resolve(kind: Kind, named: Mapping[str, Any], keywords: frozenset[str]) -> dict[str, Any]:
    """All conventions with a value each, and the fixed choice of every fixable argument that the signature lacks."""
    resolved: dict[str, Any] = dict(defaults(kind))
    for name, value in named.items():
        known = _known(kind, name)
        resolved[known] = _value(kind, known, value)
    for name in fixable(kind):
        if name in keywords or name in resolved:
            continue
        if kind.options[name] is REQUIRED:
            example = "1e-5" if FIXED[name] is None else repr((FIXED[name] or ("",))[0])
            raise UsageError(f"{name} is missing from the signature and {kind.name} has no default for it; accept it, "
                             f"or name the one fixed choice: conventions={{{name!r}: {example}}}")
        resolved[name] = kind.options[name]
    return resolved


def _known(kind: Kind, name: object) -> str:
    """The name, where it is a convention or fixable argument of the kind."""
    names = (*kind.conventions, *fixable(kind))
    if isinstance(name, str) and name in names:
        return name
    raise UsageError(unknown(f"convention of {kind.name}", name, names))


def _value(kind: Kind, name: str, value: object) -> Any:
    """The value, where it is one of those the convention or fixed choice may take."""
    values = CONVENTIONS[name].values if name in kind.conventions else FIXED[name]
    if values is None:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        raise UsageError(f"conventions[{name!r}] must be a positive number, got {quoted(value)}")
    if isinstance(value, str) and value in values:
        return str(value)
    raise UsageError(unknown(f"conventions[{name!r}]", value, values))
