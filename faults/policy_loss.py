"""Planted faults of the policy loss, and unusual ways that are right."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.faults.planting import planter
from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}


@dataclass(frozen=True)
class Call:
    """One call."""

    logp: Tensor
    old: Tensor
    ref: Tensor
    a: Tensor
    clip: float
    kl: float
    mask: Tensor | None

    @property
    def ratio(self) -> Tensor:
        return torch.exp(self.logp - self.old)

    @property
    def held(self) -> Tensor:
        """The clipped ratio."""
        return self.ratio.clamp(1 - self.clip, 1 + self.clip)

    def mean(self, x: Tensor) -> Tensor:
        """Over the tokens that count."""
        if self.mask is None:
            return x.mean()
        return torch.where(self.mask.bool(), x, torch.zeros_like(x)).sum() / self.mask.bool().sum()

    def pessimistic(self) -> Tensor:
        """min(ρA, clip(ρ)A)."""
        return torch.minimum(self.ratio * self.a, self.held * self.a)


Loss = Callable[[Call], Tensor]


def total(c: Call, surrogate: Tensor | None = None, divergence: Tensor | None = None) -> Tensor:
    """The loss, with parts of it replaced."""
    s = c.pessimistic() if surrogate is None else surrogate
    return -c.mean(s) + c.kl * c.mean(c.logp - c.ref if divergence is None else divergence)


def signed(wrong: Loss) -> Callable[..., Tensor]:
    """A way with the signature of the kind."""
    def policy_loss(logp: Tensor, logp_old: Tensor, logp_ref: Tensor, advantage: Tensor, *, clip: float, kl: float,
                    mask: Tensor | None = None) -> Tensor:
        return wrong(Call(logp, logp_old, logp_ref, advantage, clip, kl, mask))

    return policy_loss


planted = planter("policy_loss", signed)


@planted(fault, summary="not clipped")
def not_clipped(c: Call) -> Tensor:
    return total(c, c.ratio * c.a)


@planted(fault, summary="always clipped: also on the worsening side")
def always_clipped(c: Call) -> Tensor:
    return total(c, c.held * c.a)


@planted(fault, summary="the larger of the two: optimistic")
def optimistic(c: Call) -> Tensor:
    return total(c, torch.maximum(c.ratio * c.a, c.held * c.a))


@planted(fault, summary="the smaller ratio before the advantage: wrong for negative advantages")
def minimum_before_advantage(c: Call) -> Tensor:
    return total(c, torch.minimum(c.ratio, c.held) * c.a)


@planted(fault, summary="a loss to maximise")
def negated(c: Call) -> Tensor:
    return -total(c)


@planted(fault, summary="the ratio turned over")
def ratio_inverted(c: Call) -> Tensor:
    ratio = torch.exp(c.old - c.logp)
    return total(c, torch.minimum(ratio * c.a, ratio.clamp(1 - c.clip, 1 + c.clip) * c.a))


@planted(fault, summary="the ratio without the exponential")
def ratio_linear(c: Call) -> Tensor:
    ratio = 1 + c.logp - c.old
    return total(c, torch.minimum(ratio * c.a, ratio.clamp(1 - c.clip, 1 + c.clip) * c.a))


@planted(fault, summary="the ratio against the reference policy in place of the old one")
def ratio_to_reference(c: Call) -> Tensor:
    ratio = torch.exp(c.logp - c.ref)
    return total(c, torch.minimum(ratio * c.a, ratio.clamp(1 - c.clip, 1 + c.clip) * c.a))


@planted(fault, summary="clipped at 0.2 whatever clip says")
def clip_fixed(c: Call) -> Tensor:
    return total(c, torch.minimum(c.ratio * c.a, c.ratio.clamp(0.8, 1.2) * c.a))


@planted(fault, summary="clipped from above only")
def clipped_above_only(c: Call) -> Tensor:
    return total(c, torch.minimum(c.ratio * c.a, c.ratio.clamp(max=1 + c.clip) * c.a))


@planted(fault, summary="clipped at 1/(1+clip) below")
def clip_below_reciprocal(c: Call) -> Tensor:
    return total(c, torch.minimum(c.ratio * c.a, c.ratio.clamp(1 / (1 + c.clip), 1 + c.clip) * c.a))


@planted(fault, summary="no KL term")
def kl_ignored(c: Call) -> Tensor:
    return total(c, divergence=c.logp * 0)


@planted(fault, summary="the KL term's sign wrong")
def kl_sign_wrong(c: Call) -> Tensor:
    return total(c, divergence=c.ref - c.logp)


@planted(fault, summary="KL against the old policy in place of the reference")
def kl_to_old(c: Call) -> Tensor:
    return total(c, divergence=c.logp - c.old)


@planted(fault, summary="the estimator k2 where k1 is declared")
def kl_squared(c: Call) -> Tensor:
    return total(c, divergence=(c.logp - c.ref) ** 2 / 2)


@planted(fault, summary="the divergence is held between -10 and 10")
def kl_clamped(c: Call) -> Tensor:
    return total(c, divergence=(c.logp - c.ref).clamp(-10, 10))


@planted(fault, summary="the estimator k1 where k3 is declared", conventions={"kl": "k3"})
def kl_linear(c: Call) -> Tensor:
    return total(c)


@planted(fault, summary="k3 with the ratio turned over", conventions={"kl": "k3"})
def kl_ratio_inverted(c: Call) -> Tensor:
    d = c.logp - c.ref
    return total(c, divergence=torch.exp(d) - d - 1)


@planted(fault, summary="k2 without the half", conventions={"kl": "k2"})
def kl_without_half(c: Call) -> Tensor:
    return total(c, divergence=(c.logp - c.ref) ** 2)


@planted(fault, summary="k3 without its −1: not 0 where both policies agree", conventions={"kl": "k3"})
def kl_not_zero_at_equality(c: Call) -> Tensor:
    d = c.logp - c.ref
    return total(c, divergence=torch.exp(-d) + d)


@planted(fault, summary="the sum over tokens")
def sum_over_tokens(c: Call) -> Tensor:
    count = c.logp.numel() if c.mask is None else c.mask.bool().sum()
    return total(c) * count


@planted(fault, summary="the mask is ignored")
def mask_ignored(c: Call) -> Tensor:
    return total(Call(c.logp, c.old, c.ref, c.a, c.clip, c.kl, None))


@planted(fault, summary="masked tokens count as zeros in the mean")
def mean_over_all_tokens(c: Call) -> Tensor:
    return total(c) if c.mask is None or not bool(c.mask.any()) else total(c) * (c.mask.bool().sum() / c.mask.numel())


@planted(fault, summary="the mask reaches the surrogate but not the KL term")
def kl_not_masked(c: Call) -> Tensor:
    return -c.mean(c.pessimistic()) + c.kl * (c.logp - c.ref).mean()


@planted(fault, summary="advantages normalised inside")
def advantages_normalised(c: Call) -> Tensor:
    a = (c.a - c.a.mean()) / (c.a.std(unbiased=False) + 1e-6)
    return total(Call(c.logp, c.old, c.ref, a, c.clip, c.kl, c.mask))


@planted(fault, summary="clipping stops the gradient on both sides whatever the advantage")
def gradient_stopped_outside(c: Call) -> Tensor:
    inside = (c.ratio >= 1 - c.clip) & (c.ratio <= 1 + c.clip)
    s = c.pessimistic()
    return total(c, torch.where(inside, s, s.detach()))


@planted(fault, summary="the gradient flows through clipped tokens")
def gradient_through_clip(c: Call) -> Tensor:
    s, free = c.pessimistic(), c.ratio * c.a
    return total(c, s.detach() + (free - free.detach()))


@planted(fault, summary="the gradient is that of A·logp, without the ratio")
def gradient_without_ratio(c: Call) -> Tensor:
    s = c.pessimistic()
    open_ = (c.ratio * c.a <= c.held * c.a).to(s.dtype)
    plain = c.a * c.logp * open_
    return total(c, s.detach() + (plain - plain.detach()))


@planted(fault, summary="the gradient is not divided by the number of tokens")
def gradient_without_divisor(c: Call) -> Tensor:
    loss, count = total(c), c.logp.numel() if c.mask is None else int(c.mask.bool().sum())
    return loss.detach() + count * (loss - loss.detach())


@planted(fault, summary="tokens behind the mask get a gradient")
def gradient_behind_mask(c: Call) -> Tensor:
    whole = total(Call(c.logp, c.old, c.ref, c.a, c.clip, c.kl, None))
    return total(c).detach() + whole - whole.detach()


@planted(fault, summary="the KL term is detached")
def kl_detached(c: Call) -> Tensor:
    return total(c, divergence=(c.logp - c.ref).detach())


@planted(benign, summary="the maximum of the two negated surrogates")
def maximum_of_negatives(c: Call) -> Tensor:
    return c.mean(torch.maximum(-c.a * c.ratio, -c.a * c.held)) + c.kl * c.mean(c.logp - c.ref)


@planted(benign, summary="one mean over the whole")
def one_mean(c: Call) -> Tensor:
    return c.mean(c.kl * (c.logp - c.ref) - c.pessimistic())


@planted(benign, summary="the clip chosen by the advantage's sign")
def clip_by_sign(c: Call) -> Tensor:
    bound = torch.where(c.a > 0, torch.full_like(c.a, 1 + c.clip), torch.full_like(c.a, 1 - c.clip))
    past = torch.where(c.a > 0, c.ratio > bound, c.ratio < bound)
    return total(c, torch.where(past, bound, c.ratio) * c.a)


@planted(benign, summary="k3 as declared", conventions={"kl": "k3"})
def unbiased_estimator(c: Call) -> Tensor:
    r = c.ref - c.logp
    return total(c, divergence=torch.expm1(r) - r)
