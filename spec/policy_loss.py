"""What must hold of `policy_loss(logp, logp_old, logp_ref, advantage, *, clip, kl, mask)`: RL-2."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

# Logarithms of the ratio: multiples of 1/16, so differences are exact, and all at least 0.03 from the logarithms of 1 ± clip.
DRIFTS = (0.0, 0.0625, -0.0625, 0.3125, -0.3125, 1.0, -1.0, 2.0, -2.0)
CLIPS = (0.2, 0.5, 0.1)


class PolicyCases(Cases):
    """B rows of T tokens: ratios at 1 and on both sides of the clip, never on it; advantages of both signs; padded rows."""

    kind = "policy_loss"
    dims = {"B": (1, 2, 3, 5), "T": (3, 1, 2, 4, 5, 8, 9, 17, 33, 65)}
    flags = {"clip": CLIPS, "kl": (0.1, 0.0, 1.0), "mask": ("none", "padding", "scattered")}
    families = ("integers", "normal", "positive", "peaked", "heavy", "constant")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if configuration.flags["mask"] != "none" and not claims.claims("mask"):
            return configuration.but(mask="none")
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        shape, seed = (configuration.dims["B"], configuration.dims["T"]), configuration.seed
        flags, source = configuration.flags, generator(seed, "log-probabilities")
        old = -torch.randint(1, 48, shape, generator=source) / 16
        drift = torch.tensor(DRIFTS)[torch.randint(0, len(DRIFTS), shape, generator=source)]
        ref = old + torch.randint(-16, 17, shape, generator=source) / 16
        arguments: dict[str, Any] = {
            "logp": (old + drift).to(dtype), "logp_old": old.to(dtype), "logp_ref": ref.to(dtype),
            "advantage": draw_values(configuration.family, shape, generator(seed, "advantage"), dtype),
            "clip": flags["clip"], "kl": flags["kl"],
        }
        mask = draw_mask(flags["mask"], shape, source)
        if mask is not None:
            arguments["mask"] = mask
        return Example(configuration, dtype, arguments, {"counted": torch.ones(shape, dtype=torch.bool) if mask is None else mask})


def draw_mask(sort: str, shape: tuple[int, int], source: torch.Generator) -> torch.Tensor | None:
    """Which tokens count: all, a first part of each row, or any; the first of all always does."""
    if sort == "none":
        return None
    if sort == "padding":
        return torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1), generator=source)
    keep = torch.rand(shape, generator=source) < 0.6
    keep[0, 0] = True
    return keep


spec = Specification("policy_loss", PolicyCases())
conduct = add_conduct(spec)
SURROGATE = {"kl": 0.0}


def without_divergence(example: Example) -> Example:
    return example.but(kl=0.0)


def counted_mean(example: Example, values: torch.Tensor) -> torch.Tensor:
    """The mean over the tokens that count, in float64."""
    return values.double()[example.counted].mean()


def at_ratio(example: Example, drift: float, advantage: float) -> Example:
    """Every token at the same ratio e^drift and advantage, without the divergence."""
    return without_divergence(example.but(logp=example.logp_old + drift,
                                          advantage=torch.full_like(example.advantage, advantage)))


@spec.holds("RL-2", kills=(
    "not_clipped", "always_clipped", "optimistic", "minimum_before_advantage", "negated", "ratio_inverted", "ratio_linear",
    "ratio_to_reference", "clip_fixed", "clipped_above_only", "clip_below_reciprocal", "kl_ignored", "kl_sign_wrong", "kl_to_old",
    "kl_squared", "kl_linear", "kl_ratio_inverted", "kl_without_half", "kl_not_zero_at_equality", "sum_over_tokens",
    "mask_ignored", "mean_over_all_tokens", "kl_not_masked", "advantages_normalised"), rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """The loss is −mean(min(ρA, clip(ρ, 1−c, 1+c)·A)) + kl · mean(KL), the estimator of KL as declared."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("RL-2", kills=("gradient_stopped_outside", "gradient_through_clip", "gradient_without_ratio", "kl_detached"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The gradient of logp is −ρA where the unclipped term counts, 0 where the clip holds, plus the divergence's."""
    assert loss.gradients(**example)["logp"] == loss.exact_gradients(**example)["logp"]


@spec.holds("RL-2", kills=("kl_clamped",), rests_on=(output_is_the_formula,), given={"kl": (0.1, 1.0)})
def distant_reference_counts_in_full(loss: Subject, example: Example) -> None:
    """Tokens that the reference policy finds e¹² times likelier, or less likely, add what the estimator gives: it has no cap."""
    away = torch.where(torch.arange(example.logp.numel()) % 2 == 0, 12.0, -12.0).reshape(example.logp.shape)
    far = example.but(logp_ref=(example.logp - away).to(example.dtype))
    assert loss(**far) == loss.exact(**far)


@spec.holds("RL-2", kills=("negated", "ratio_to_reference", "sum_over_tokens", "advantages_normalised", "mask_ignored"),
            rests_on=(conduct["form"],), given=SURROGATE)
def unchanged_policy_costs_minus_the_advantage(loss: Subject, example: Example) -> None:
    """At ρ = 1 and without divergence the loss is −A, mean over the tokens that count."""
    assert loss(**example.but(logp=example.logp_old)) == -counted_mean(example, example.advantage)


@spec.holds("RL-2", kills=("negated", "gradient_without_divisor", "ratio_inverted"), rests_on=(conduct["form"],), gradient=True,
            given={**SURROGATE, "family": ("normal", "integers", "positive")})
def unchanged_policy_has_the_policy_gradient(loss: Subject, example: Example) -> None:
    """At ρ = 1 the gradient of each token is −A over the number of tokens: the plain policy gradient."""
    upstream = (torch.ones((), dtype=example.dtype),)
    found = loss.gradients(**example.but(logp=example.logp_old), upstream=upstream)["logp"]
    assert found == -(example.advantage.double() * example.counted) / float(example.counted.sum())


@spec.holds("RL-2", kills=("gradient_through_clip", "not_clipped"), rests_on=(conduct["form"],), gradient=True, given=SURROGATE)
def clipped_tokens_get_no_gradient(loss: Subject, example: Example) -> None:
    """A token past the clip on the improving side (A > 0 above it, A < 0 below) gets gradient exactly 0.

    The other side of the same ratio does get one.
    """
    for drift, sign in ((1.0, 1.0), (-1.0, -1.0)):
        held = loss.gradients(**at_ratio(example, drift, sign))["logp"].value
        free = loss.gradients(**at_ratio(example, drift, -sign))["logp"].value
        assert identical(held, 0.0, witness=bool((free != 0).any()))


@spec.holds("RL-2", kills=("always_clipped", "gradient_stopped_outside", "optimistic", "minimum_before_advantage"),
            rests_on=(conduct["form"],), gradient=True, given=SURROGATE)
def worsening_side_keeps_the_full_gradient(loss: Subject, example: Example) -> None:
    """Past the clip on the worsening side the gradient is the full −ρA over the number of tokens."""
    upstream = (torch.ones((), dtype=example.dtype),)
    share = example.counted.double() / float(example.counted.sum())
    for drift, advantage in ((1.0, -2.0), (-1.0, 2.0)):
        ratio = torch.tensor(drift, dtype=torch.float64).exp()
        assert loss.gradients(**at_ratio(example, drift, advantage), upstream=upstream)["logp"] == -ratio * advantage * share


@spec.holds("RL-2", kills=("kl_not_zero_at_equality", "kl_to_old", "ratio_to_reference"), rests_on=(conduct["form"],),
            given={"kl": 1.0})
def divergence_is_zero_at_the_reference(loss: Subject, example: Example) -> None:
    """Where logp = logp_ref the divergence costs nothing: the loss is the surrogate alone."""
    same = example.but(logp_ref=example.logp)
    assert loss(**same) == loss.exact(**without_divergence(same))


@spec.holds("RL-2", kills=("kl_ignored", "kl_sign_wrong", "kl_squared", "kl_linear", "kl_ratio_inverted", "kl_without_half",
                           "kl_not_masked"), rests_on=(conduct["form"],), given={"kl": (0.1, 1.0)})
def divergence_is_the_declared_estimator(loss: Subject, example: Example) -> None:
    """With all advantages 0, the loss is kl times the declared estimator: d, d²/2 or e^(−d) + d − 1, d = logp − logp_ref."""
    d = example.logp.double() - example.logp_ref.double()
    estimate = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) + d - 1}[loss.conventions["kl"]]
    idle = example.but(advantage=torch.zeros_like(example.advantage))
    assert loss(**idle) == float(example["kl"]) * counted_mean(example, estimate)


@spec.holds("RL-2", kills=("mask_ignored", "kl_not_masked", "advantages_normalised"), rests_on=(conduct["form"],),
            needs=("mask",), given={"mask": ("padding", "scattered"), "T": lambda size: size > 1})
def masked_tokens_do_not_matter(loss: Subject, example: Example) -> None:
    """Whatever numbers tokens outside the mask hold, with finite ratios and products, the loss is the same bit for bit."""
    seen = example.counted

    def replaced(name: str, value: float) -> torch.Tensor:
        return torch.where(seen, example[name], torch.full_like(example[name], value))

    other = example.but(logp=replaced("logp", 4.0), logp_ref=replaced("logp_ref", -4.0), advantage=replaced("advantage", 7.0),
                        logp_old=replaced("logp_old", -4.0))
    usual = loss.values(**example)
    moved = loss.values(**example.but(advantage=example.advantage + 1))
    assert identical(usual, loss.values(**other), witness=(usual, moved))


@spec.holds("RL-2", kills=("gradient_behind_mask",), rests_on=(conduct["form"],), needs=("mask",), gradient=True,
            given={"mask": ("padding", "scattered"), "T": lambda size: size > 1})
def masked_tokens_get_no_gradient(loss: Subject, example: Example) -> None:
    """Tokens outside the mask get gradient exactly 0."""
    found = loss.gradients(**example)["logp"].value
    assert identical(found[~example.counted], 0.0, witness=bool((found[example.counted] != 0).any()))


@spec.holds("RL-2", kills=("mean_over_all_tokens", "sum_over_tokens", "mask_ignored", "kl_not_masked"), rests_on=(conduct["form"],),
            needs=("mask",), given={"mask": ("padding", "scattered")})
def mask_is_the_same_as_leaving_tokens_out(loss: Subject, example: Example) -> None:
    """The loss under a mask is that of the counted tokens given alone, within the bound."""
    alone = {name: example[name][example.counted][None] for name in ("logp", "logp_old", "logp_ref", "advantage")}
    assert loss(**example) == loss(**example.without("mask").but(**alone))
