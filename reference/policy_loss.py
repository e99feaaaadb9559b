"""Policy loss: clipped policy gradient with a KL term towards a reference policy."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form

ESTIMATORS = ("k1", "k2", "k3")
CONVENTION_KEYWORDS = {"kl": "kl_estimator"}  # the convention's name is taken by the weight of the term


def policy_loss(
    logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantage: Tensor, *, clip: float, kl: float,
    mask: Tensor | None = None, kl_estimator: str = "k1",
) -> Tensor:
    """Minus the clipped surrogate, plus kl times an estimate of the divergence from the reference policy, mean over tokens.

    Formula: ρ = exp(logp − logp_old); L = −mean(min(ρ·A, clip(ρ, 1−clip, 1+clip)·A)) + kl · mean(KL).
    With d = logp − logp_ref: KL = d (k1), d²/2 (k2), e^(−d) + d − 1 (k3).

    logp, logp_old, logp_ref, advantage: same shape, one number a token
    mask: None or that shape, True = the token counts
    returns: a scalar to minimise

    Conventions: kl_estimator (the convention `kl`) "k1", "k2" or "k3"; gradients reach logp alone where the caller
    asks for them.
    Raises: ValueError where clip < 0, shapes differ, or the estimator is unknown.
    Source: Schulman et al., "Proximal Policy Optimization Algorithms", section 3, arXiv 1707.06347; Shao et al.,
    "DeepSeekMath",
    section 4.1 (k3), arXiv 2402.03300.

    >>> zero = torch.zeros(2)
    >>> float(policy_loss(zero, zero, zero, torch.tensor([1.0, 3.0]), clip=0.2, kl=0.1))
    -2.0
    """
    _check(logp, (logp_old, logp_ref, advantage, mask), clip, kl_estimator)
    surrogate = _surrogate(logp, logp_old, advantage, clip)
    return -_mean(surrogate, mask) + kl * _mean(_divergence(logp - logp_ref, kl_estimator), mask)


def _surrogate(logp: Tensor, logp_old: Tensor, advantage: Tensor, clip: float) -> Tensor:
    ratio = torch.exp(logp - logp_old)
    free, held = ratio * advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * advantage
    return torch.where(free <= held, free, held)


def _divergence(d: Tensor, estimator: str) -> Tensor:
    if estimator == "k1":
        return d
    return d * d / 2 if estimator == "k2" else torch.exp(-d) + d - 1


def _mean(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.sum() / torch.full((), x.numel(), dtype=x.dtype, device=x.device)
    counted = mask.bool()
    count = torch.full((), int(counted.sum()), dtype=x.dtype, device=x.device)
    return torch.where(counted, x, torch.zeros_like(x)).sum() / count


def _check(logp: Tensor, others: tuple[Tensor | None, ...], clip: float, estimator: str) -> None:
    if not clip >= 0:
        raise ValueError(f"clip={clip} must be at least 0, got {clip}; 0.2 is usual")
    for other in others:
        if other is not None and other.shape != logp.shape:
            raise ValueError(f"shape={tuple(other.shape)} must be {tuple(logp.shape)} as of logp, got {tuple(other.shape)}; "
                             "pass one number a token")
    if estimator not in ESTIMATORS:
        raise ValueError(f"kl_estimator={estimator!r} must be one of {ESTIMATORS}, got {estimator!r}; choose one of them")


def _one_mean(
    logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantage: Tensor, *, clip: float, kl: float,
    mask: Tensor | None = None, kl_estimator: str = "k1",
) -> Tensor:
    """Surrogate and divergence added token by token, then one mean."""
    _check(logp, (logp_old, logp_ref, advantage, mask), clip, kl_estimator)
    return _mean(kl * _divergence(logp - logp_ref, kl_estimator) - _surrogate(logp, logp_old, advantage, clip), mask)


def _estimator_from_reference(
    logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantage: Tensor, *, clip: float, kl: float,
    mask: Tensor | None = None, kl_estimator: str = "k1",
) -> Tensor:
    """The estimator k3 as (e^r − 1) − r with r = logp_ref − logp."""
    _check(logp, (logp_old, logp_ref, advantage, mask), clip, kl_estimator)
    r = logp_ref - logp
    return -_mean(_surrogate(logp, logp_old, advantage, clip), mask) + kl * _mean((torch.exp(r) - 1) - r, mask)


FORMS: tuple[Form, ...] = (
    Form("two means", policy_loss),
    Form("one mean", _one_mean),
    Form("k3 through its ratio", _estimator_from_reference, applies=lambda a: a.get("kl_estimator") == "k3"),
)
