"""Sigmoid router: experts are chosen by score plus a bias that balances their load, and weighed by the score alone."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.numbers.forms import Form

PUBLISHED_FLOOR = 1e-20  # what the published code adds to the sum that normalises


def sigmoid_router(
    logits: Tensor, bias: Tensor, *, top_k: int, n_groups: int = 1, top_groups: int = 1, normalize: bool = True,
    scale: float = 1.0, indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose experts by σ(z) + bias, groups first where there are several, and weigh them by σ(z).

    Formula: s = σ(z); S = indices of the top_k largest s + bias; weights = scale · s_S / Σ s_S, or scale · s_S where `normalize`
    is false. With n_groups > 1 the experts lie in that many groups of neighbours, S is taken from the top_groups of them whose two
    largest s + bias have the largest sum.

    logits: (N, E)
    bias: (E,), never part of a weight
    top_k: experts a token; top_groups: groups that a token may go to
    indices: None, or (N, K) int64: the choice that is weighed in place of the formula's own
    returns: weights (N, K), indices (N, K) int64, best first

    Raises: ValueError where bias is not (E,), n_groups does not divide E or leaves groups of one, top_groups lies outside
    1 … n_groups, or top_k outside 1 … the experts of top_groups groups; none of these is looked at where indices are given.
    Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", sections 2.1.2 and 4.2, arXiv 2412.19437; Wang et al.,
    "Auxiliary-Loss-Free Load Balancing", section 3, arXiv 2408.15664.

    >>> weights, indices = sigmoid_router(torch.zeros(1, 4), torch.tensor([0.0, 1.0, 0.0, 2.0]), top_k=2)
    >>> weights.tolist(), indices.tolist()
    ([[0.5, 0.5]], [[3, 1]])
    """
    scores = torch.sigmoid(logits)
    indices = _chosen(scores, bias, top_k, n_groups, top_groups) if indices is None else indices
    kept = scores.gather(-1, indices)
    return (kept / kept.sum(-1, keepdim=True) if normalize else kept) * scale, indices


def _chosen(scores: Tensor, bias: Tensor, top_k: int, n_groups: int, top_groups: int) -> Tensor:
    """Indices (N,K) of the best experts, the lower index first among equals."""
    experts = scores.shape[-1]
    _check(experts, bias, top_k, n_groups, top_groups)
    corrected = (scores + bias).detach()
    if n_groups > 1:
        grouped = corrected.reshape(*corrected.shape[:-1], n_groups, experts // n_groups)
        best = grouped.sort(dim=-1, descending=True, stable=True)[0][..., :2].sum(-1)
        groups = best.sort(dim=-1, descending=True, stable=True)[1][..., :top_groups]
        open_ = torch.zeros(best.shape, dtype=torch.bool, device=scores.device).scatter(-1, groups, True)
        corrected = corrected.masked_fill(~open_.repeat_interleave(experts // n_groups, -1), float("-inf"))
    return corrected.sort(dim=-1, descending=True, stable=True)[1][..., :top_k]


def _check(experts: int, bias: Tensor, top_k: int, n_groups: int, top_groups: int) -> None:
    if tuple(bias.shape) != (experts,):
        raise ValueError(f"bias.shape={tuple(bias.shape)} must be (E,) = ({experts},), got {tuple(bias.shape)}; pass one an expert")
    if n_groups < 1 or experts % n_groups or (n_groups > 1 and experts // n_groups < 2):
        raise ValueError(f"n_groups={n_groups} must cut E = {experts} into groups of 2 or more, got {n_groups}; choose a divisor")
    if not 1 <= top_groups <= n_groups:
        raise ValueError(f"top_groups={top_groups} must lie in 1 … n_groups = {n_groups}, got {top_groups}; choose fewer groups")
    if not 1 <= top_k <= experts // n_groups * top_groups:
        raise ValueError(f"top_k={top_k} must lie in 1 … {experts // n_groups * top_groups}, got {top_k}; choose fewer experts")


# --- other legitimate ways to weigh -----------------------------------------------------------------------------------

Weigh = Callable[[Tensor, bool, float], Tensor]  # logits of the chosen, normalize, scale


def _scale_over_sum(chosen: Tensor, normalize: bool, scale: float) -> Tensor:
    """The scale is divided by the sum first."""
    kept = torch.sigmoid(chosen)
    return kept * (scale / kept.sum(-1, keepdim=True)) if normalize else kept * scale


def _scaled_first(chosen: Tensor, normalize: bool, scale: float) -> Tensor:
    """Scores scaled, then divided by their sum."""
    kept = torch.sigmoid(chosen)
    return kept * scale / kept.sum(-1, keepdim=True) if normalize else kept * scale


def _one_quotient(chosen: Tensor, normalize: bool, scale: float) -> Tensor:
    """1 / (1 + e^(−z)) as it stands."""
    kept = 1 / (1 + torch.exp(-chosen))
    return (kept / kept.sum(-1, keepdim=True) if normalize else kept) * scale


def _floored(chosen: Tensor, normalize: bool, scale: float) -> Tensor:
    """The published code's sum, which a small number keeps from zero."""
    kept = torch.sigmoid(chosen)
    return (kept / (kept.sum(-1, keepdim=True) + PUBLISHED_FLOOR) if normalize else kept) * scale


def _form(name: str, weigh: Weigh) -> Form:
    def forward(
        logits: Tensor, bias: Tensor, *, top_k: int, n_groups: int = 1, top_groups: int = 1, normalize: bool = True,
        scale: float = 1.0, indices: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if indices is None:
            indices = _chosen(torch.sigmoid(logits), bias, top_k, n_groups, top_groups)
        return weigh(logits.gather(-1, indices), normalize, scale), indices

    return Form(name, forward)


def deciders(logits: Tensor, bias: Tensor, *, n_groups: int = 1) -> tuple[Tensor, Tensor]:
    """The numbers by which implementations choose: s + bias (N,E), and sums of two of them in a group (N, groups, m, m)."""
    corrected = torch.sigmoid(logits) + bias
    grouped = corrected.reshape(*corrected.shape[:-1], n_groups, corrected.shape[-1] // n_groups)
    return corrected, grouped.unsqueeze(-1) + grouped.unsqueeze(-2)


DECIDERS: tuple[Form, ...] = (Form("score plus bias", deciders),)
FORMS: tuple[Form, ...] = (
    Form("as written", sigmoid_router),
    _form("scale over sum first", _scale_over_sum),
    _form("scaled first", _scaled_first),
    _form("sigmoid as one quotient", _one_quotient),
    _form("a small number added to the sum", _floored),
)
