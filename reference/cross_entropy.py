"""Cross-entropy of logits against target ids, with ignored rows and label smoothing."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from assay.numbers.bound import freely_chosen, precision
from assay.numbers.forms import Form

REDUCTIONS = ("mean", "sum", "none")
Score = Callable[[Tensor, Tensor, float, str], Tensor]


def cross_entropy(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean",
    smoothing: str = "others", all_ignored: str = "nan",
) -> Tensor:
    """Minus the log-probability of each target, summed or averaged over the rows that count.

    Formula: l_n = −Σ_j q_j · log softmax(logits_n)_j; q is 1 at the target; with ε = label_smoothing it is 1 − ε at
    the target
    and ε/(V−1) at each other id. mean: Σ l_n / number of counted rows.

    logits: (N, V)
    targets: (N,) integers, 0 … V−1 or ignore_index
    returns: a scalar, or (N,) for reduction "none" (zeros at ignored rows)

    Conventions: smoothing "others" (above) or "all" (ε/V at every id, the target's on top of 1 − ε); all_ignored: the
    mean over
    no row is "nan", "zero" or "refused".
    Raises: ValueError for a target outside 0 … V−1 that is not ignore_index, ε outside 0 ≤ ε < 1, ε > 0 where V = 1, an
    unknown reduction or convention, and no counted row where that is refused.
    Source: Szegedy et al., "Rethinking the Inception Architecture", section 7, arXiv 1512.00567; Vaswani et al.,
    section 5.4,
    arXiv 1706.03762.

    >>> loss = cross_entropy(torch.zeros(2, 4), torch.tensor([1, -100]))
    >>> round(float(torch.exp(loss)), 4)
    4.0
    """
    return _loss(logits, targets, ignore_index, label_smoothing, reduction, smoothing, all_ignored, _shift_first)


def _loss(logits: Tensor, targets: Tensor, ignore_index: int, epsilon: float, reduction: str, smoothing: str,
          all_ignored: str, score: Score) -> Tensor:
    """The loss over one way to score rows."""
    counted = targets != ignore_index
    _check(logits, targets[counted], epsilon, reduction, smoothing, all_ignored)
    known = torch.where(counted, targets, torch.zeros_like(targets)).long()
    rows = score(logits, known.unsqueeze(-1), epsilon, smoothing)
    return reduce_rows(torch.where(counted, rows, torch.zeros_like(rows)), counted, reduction, all_ignored)


def reduce_rows(rows: Tensor, counted: Tensor, reduction: str, all_ignored: str) -> Tensor:
    """Sum, mean over the counted rows, or the rows themselves; rows that do not count hold zeros."""
    if reduction == "none":
        return rows
    total, count = rows.sum(), int(counted.sum())
    if reduction == "sum":
        return total
    if count == 0 and all_ignored == "refused":
        raise ValueError("targets=all ignored must leave a row to average over, got none; leave the batch out")
    return total if count == 0 and all_ignored == "zero" else total / count


def _check(logits: Tensor, targets: Tensor, epsilon: float, reduction: str, smoothing: str, all_ignored: str) -> None:
    size = logits.shape[-1]
    if targets.numel() and (int(targets.min()) < 0 or int(targets.max()) >= size):
        wrong = int(targets.min()) if int(targets.min()) < 0 else int(targets.max())
        raise ValueError(f"targets={wrong} must lie in 0 … {size - 1} or be ignore_index, got {wrong}; correct the target")
    if not 0 <= epsilon < 1 or (epsilon > 0 and size == 1 and smoothing == "others"):
        raise ValueError(f"label_smoothing={epsilon} must lie in 0 ≤ ε < 1 (0 where V = 1), got {epsilon} with V={size}; lower it")
    for name, value, values in (("reduction", reduction, REDUCTIONS), ("smoothing", smoothing, ("others", "all")),
                                ("all_ignored", all_ignored, ("nan", "zero", "refused"))):
        if value not in values:
            raise ValueError(f"{name}={value!r} must be one of {values}, got {value!r}; choose one of them")


def smoothing_masses(epsilon: float, size: int, smoothing: str) -> tuple[float, float]:
    """What each id gets, and what the target gets on top of it."""
    each = epsilon / (size - 1) if smoothing == "others" else epsilon / size
    return each, 1 - epsilon - each if smoothing == "others" else 1 - epsilon


def _shifted(logits: Tensor) -> tuple[Tensor, Tensor]:
    """z − max(z) and the logarithm of its exponentials' sum."""
    shifted = logits - freely_chosen(logits.amax(-1, keepdim=True))
    return shifted, torch.log(torch.exp(shifted).sum(-1, keepdim=True))


def _shift_first(logits: Tensor, target: Tensor, epsilon: float, smoothing: str) -> Tensor:
    """log Σ exp(z − m) − (z_y − m), plus the others' share."""
    shifted, log_sum = _shifted(logits)
    nll = (log_sum - shifted.gather(-1, target)).squeeze(-1)
    if epsilon == 0:
        return nll
    each, extra = smoothing_masses(epsilon, logits.shape[-1], smoothing)
    return extra * nll + each * (log_sum - shifted).sum(-1)


def _logsumexp_minus_target(logits: Tensor, target: Tensor, epsilon: float, smoothing: str) -> Tensor:
    """(m + log Σ exp(z − m)) − z_y: the maximum is added back before the target is subtracted."""
    whole = torch.logsumexp(logits, -1, keepdim=True)  # its gradient is taken from the rounded sum, exp(z − whole)
    nll = (whole - logits.gather(-1, target)).squeeze(-1)
    if epsilon == 0:
        return nll
    each, extra = smoothing_masses(epsilon, logits.shape[-1], smoothing)
    return extra * nll + each * (logits.shape[-1] * whole.squeeze(-1) - logits.sum(-1))


def _log_softmax_gathered(logits: Tensor, target: Tensor, epsilon: float, smoothing: str) -> Tensor:
    """log-probabilities of all ids, rounded, then gathered; smoothing by their mean."""
    log_p = torch.log_softmax(logits, -1)  # its gradient is taken from the rounded log-probabilities
    nll = -log_p.gather(-1, target).squeeze(-1)
    if epsilon == 0:
        return nll
    size = logits.shape[-1]
    mean = -(log_p.sum(-1) / size)
    if smoothing == "all":
        return (1 - epsilon) * nll + epsilon * mean
    each = epsilon / (size - 1)
    return (1 - epsilon - each) * nll + (each * size) * mean


def _against_distribution(logits: Tensor, target: Tensor, epsilon: float, smoothing: str) -> Tensor:
    """−Σ q · log p with the smoothed target written out."""
    shifted, log_sum = _shifted(logits)
    each, extra = smoothing_masses(epsilon, logits.shape[-1], smoothing) if epsilon else (0.0, 1.0)
    q = torch.full_like(logits.detach(), each).scatter(-1, target, each + extra)
    terms = q * (log_sum - shifted)
    return torch.where(q == 0, torch.zeros_like(terms), terms).sum(-1)


def _form(name: str, score: Score, *, usual: bool) -> Form:
    def forward(
        logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
        reduction: str = "mean", smoothing: str = "others", all_ignored: str = "nan",
    ) -> Tensor:
        return _loss(logits, targets, ignore_index, label_smoothing, reduction, smoothing, all_ignored, score)

    return Form(name, forward, usual=usual)


def _part_by_part(
    logits: Tensor, targets: Tensor, *, ignore_index: int = -100, label_smoothing: float = 0.0,
    reduction: str = "mean", smoothing: str = "others", all_ignored: str = "nan",
) -> Tensor:
    """The targets' share and the smoothed share are each reduced over the rows, partial sums stored in the internal type."""
    counted = targets != ignore_index
    _check(logits, targets[counted], label_smoothing, reduction, smoothing, all_ignored)
    known = torch.where(counted, targets, torch.zeros_like(targets)).long()
    log_p = torch.log_softmax(logits, -1)
    nll = -log_p.gather(-1, known.unsqueeze(-1)).squeeze(-1)
    nll = torch.where(counted, nll, torch.zeros_like(nll))
    with precision("spilled"):
        plain = reduce_rows(nll, counted, reduction, all_ignored)
    if label_smoothing == 0:
        return plain
    spread = torch.where(counted, -log_p.sum(-1), torch.zeros_like(nll))
    with precision("spilled"):
        whole = reduce_rows(spread, counted, reduction, all_ignored)
    each, extra = smoothing_masses(label_smoothing, logits.shape[-1], smoothing)
    return extra * plain + each * whole


SCORES: tuple[tuple[str, Score], ...] = (
    ("maximum added back, target subtracted", _logsumexp_minus_target),
    ("log-probabilities rounded, then gathered", _log_softmax_gathered),
    ("against the smoothed distribution", _against_distribution),
)
FORMS: tuple[Form, ...] = (
    Form("shifted first", cross_entropy),
    *(_form(name, score, usual=score is _logsumexp_minus_target) for name, score in SCORES),
    Form("shares reduced one by one", _part_by_part),
)
