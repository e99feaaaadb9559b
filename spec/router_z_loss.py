"""What must hold of `router_z_loss(logits, *, mask)`: X-ZL-1, X-ZL-2."""
from __future__ import annotations

import math
from dataclasses import replace

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.router_loss_cases import FAMILIES, MASKED, assert_same_for_twice_the_tokens, draw_mask
from assay.subject import Subject


class RouterZCases(Cases):
    """N tokens, E experts; masks of padding."""

    kind = "router_z_loss"
    dims = {"N": (5, 1, 2, 3, 7, 16, 33, 65), "E": (4, 2, 3, 1, 8, 16, 33)}
    flags = {"mask": ("none", "right", "holes", "left")}
    families = FAMILIES

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration if claims.claims("mask") else replace(configuration, flags={"mask": "none"})

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed = configuration.dims, configuration.seed
        logits = draw_values(configuration.family, (d["N"], d["E"]), generator(seed, "logits"), dtype)
        mask = draw_mask(configuration.flags["mask"], d["N"], generator(seed, "mask"))
        return Example(configuration, dtype, {"logits": logits} | ({} if mask is None else {"mask": mask}))


spec = Specification("router_z_loss", RouterZCases())
conduct = add_conduct(spec)


@spec.holds("X-ZL-1", kills=("not_squared", "sum_over_tokens", "mean_first", "maximum_for_log_sum", "mean_over_experts", "base_two",
                             "sum_of_squared_logits", "mask_ignored", "divided_by_all_tokens", "negated", "zeros", "centred",
                             "log_one_plus"), rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """The loss is the mean over the counted tokens of (log Σ exp z)²."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("X-ZL-1", kills=("mean_over_experts", "base_two", "maximum_for_log_sum", "centred"), rests_on=(conduct["form"],),
            given={"E": at_least(2)})
def equal_logits_give_the_logarithm_of_the_experts(loss: Subject, example: Example) -> None:
    """With every logit c the loss is (c + log E)²."""
    for constant in (0.0, 2.0, -8.0):
        expected = (constant + math.log(example.dims["E"])) ** 2
        assert loss(**example.but(logits=torch.full_like(example.logits, constant))) == expected


@spec.holds("X-ZL-1", kills=("sum_over_tokens", "divided_by_all_tokens"), rests_on=(conduct["form"],),
            given={"N": (1, 2, 3, 5, 16)})
def twice_the_tokens_give_the_same(loss: Subject, example: Example) -> None:
    """Every token twice, or as many that are not counted besides, gives the loss of the tokens once: it is a mean."""
    assert_same_for_twice_the_tokens(loss, example)


@spec.holds("X-ZL-1", kills=("last_token_left_out", "last_expert_left_out"), rests_on=(conduct["form"],), given={"N": at_least(2)})
def order_of_tokens_and_experts_does_not_matter(loss: Subject, example: Example) -> None:
    """Tokens in another order, and experts under other numbers, give the same loss."""
    order, names = example.permutation("tokens", example.dims["N"]), example.permutation("experts", example.dims["E"])
    before = loss(**example)
    assert loss(**example.but(**{name: example[name][order] for name in example})) == before
    assert loss(**example.but(logits=example.logits[:, names])) == before


@spec.holds("X-ZL-1", kills=("mask_ignored", "mask_inverted"), rests_on=(conduct["form"],), needs=("mask",), given=MASKED)
def tokens_that_are_not_counted_do_not_matter(loss: Subject, example: Example) -> None:
    """The loss is that of the counted tokens alone, whatever logits the others have."""
    keep = example.mask
    alone = example.but(logits=example.logits[keep]).without("mask")
    other = example.but(logits=torch.where(keep[:, None], example.logits, 8.0).to(example.dtype))
    assert loss(**example) == loss(**alone)
    assert loss(**other) == loss(**alone)


@spec.holds("X-ZL-1", kills=("no_shift",), rests_on=(conduct["form"],), given={"family": ("integers", "constant", "one_hot")})
def large_logits_do_not_overflow(loss: Subject, example: Example) -> None:
    """Logits of ±100 and a little more, where exp alone would overflow or vanish, have the log-sum-exp that they have."""
    for shift in (100.0, -100.0):
        moved = example.but(logits=example.logits + shift)
        assert loss(**moved) == loss.exact(**moved)


@spec.holds("X-ZL-2", kills=("gradient_halved", "gradient_detached", "gradient_to_the_largest_alone", "gradient_not_averaged",
                             "gradient_reaches_padding", "gradient_of_absolute"), rests_on=(output_is_the_formula,), gradient=True)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The logits' gradient is 2 · logsumexp(z) · softmax(z) / N for counted tokens, and 0 for others."""
    assert loss.gradients(**example)["logits"] == loss.exact_gradients(**example)["logits"]


@spec.holds("X-ZL-2", kills=("gradient_halved", "gradient_not_averaged"), rests_on=(gradient_is_the_formula,), gradient=True,
            given={"mask": "none", "family": ("integers", "normal", "positive", "constant"), "N": at_least(2)})
def gradients_of_a_token_sum_to_twice_its_log_sum(loss: Subject, example: Example) -> None:
    """Raising all logits of a token raises its log-sum-exp alike: their gradients sum to 2 · logsumexp(z) / N."""
    one = torch.ones((), dtype=example.dtype)
    found = loss.gradients(**example, upstream=(one,))["logits"]
    assert found.sum(-1) == 2 * torch.logsumexp(example.logits.double(), -1) / example.dims["N"]
