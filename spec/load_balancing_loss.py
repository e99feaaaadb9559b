"""What must hold of `load_balancing_loss(logits, indices, *, mask)`: X-LBL-1, X-LBL-2."""
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


class LoadBalancingCases(Cases):
    """N tokens, E experts, K of them a token: those of the largest logits (as a router takes them), or any; masks of padding."""

    kind = "load_balancing_loss"
    dims = {"N": (5, 1, 2, 3, 7, 16, 33, 65), "E": (4, 2, 3, 1, 8, 16, 33), "K": (2, 1, 3, 4)}
    flags = {"indices": ("best", "any"), "mask": ("none", "right", "holes", "left")}
    families = FAMILIES

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        mask = configuration.flags["mask"] if claims.claims("mask") else "none"
        return replace(configuration, flags={**configuration.flags, "mask": mask},
                       dims={**configuration.dims, "K": min(configuration.dims["K"], configuration.dims["E"])})

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        logits = draw_values(configuration.family, (d["N"], d["E"]), generator(seed, "logits"), dtype)
        ranks = logits.double()
        if flags["indices"] == "any":
            ranks = torch.rand(ranks.shape, generator=generator(seed, "indices"), dtype=torch.float64)
        indices = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : d["K"]].contiguous()
        mask = draw_mask(flags["mask"], d["N"], generator(seed, "mask"))
        return Example(configuration, dtype, {"logits": logits, "indices": indices} | ({} if mask is None else {"mask": mask}))


spec = Specification("load_balancing_loss", LoadBalancingCases())
conduct = add_conduct(spec)


@spec.holds("X-LBL-1", kills=(
    "sum_over_tokens", "softmax_over_tokens", "probabilities_of_the_chosen", "divided_by_top_k", "experts_left_out",
    "experts_squared", "first_choice_alone_counted", "mask_ignored", "mask_ignored_in_the_counts",
    "mask_ignored_in_the_probabilities", "divided_by_all_tokens", "probabilities_twice", "counts_twice", "raw_logits", "negated",
    "zeros"), rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """The loss is E · Σ f·P, f the share of tokens and P the mean probability of each expert, over the counted tokens."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("X-LBL-1", kills=("divided_by_top_k", "experts_left_out", "experts_squared", "probabilities_twice", "sum_over_tokens",
                              "first_choice_alone_counted"), rests_on=(conduct["form"],))
def even_probabilities_give_the_number_of_choices(loss: Subject, example: Example) -> None:
    """With equal logits the loss is K, whichever experts are chosen."""
    assert loss(**example.but(logits=torch.zeros_like(example.logits))) == float(example.indices.shape[1])


@spec.holds("X-LBL-1", kills=("experts_left_out", "softmax_over_tokens", "counts_twice"), rests_on=(conduct["form"],),
            given={"K": 1, "E": at_least(2)})
def one_sure_expert_gives_the_number_of_experts(loss: Subject, example: Example) -> None:
    """With every token sent to one expert that has all the probability the loss is E, and next to 0 where it gets none.

    Any other expert has at most e^−64 of the probability, and the loss is E times that where all tokens are counted for it.
    """
    experts, above = example.dims["E"], 64.0
    logits = torch.zeros_like(example.logits)
    logits[:, 0] = above
    sure = example.but(logits=logits, indices=torch.zeros_like(example.indices))
    assert loss(**sure) == float(experts)
    assert loss(**sure.but(indices=torch.ones_like(example.indices))) <= experts * math.exp(-above)


@spec.holds("X-LBL-1", kills=("sum_over_tokens", "divided_by_all_tokens"), rests_on=(conduct["form"],),
            given={"N": (1, 2, 3, 5, 16)})
def twice_the_tokens_give_the_same(loss: Subject, example: Example) -> None:
    """Every token twice, or as many that are not counted besides, gives the loss of the tokens once: it is of means."""
    assert_same_for_twice_the_tokens(loss, example)


@spec.holds("X-LBL-1", kills=("last_token_left_out", "last_expert_left_out"), rests_on=(conduct["form"],), given={"N": at_least(2)})
def order_of_tokens_and_experts_does_not_matter(loss: Subject, example: Example) -> None:
    """Tokens in another order, and experts under other numbers, give the same loss."""
    order, names = example.permutation("tokens", example.dims["N"]), example.permutation("experts", example.dims["E"])
    moved = example.but(**{name: example[name][order] for name in example})
    renamed = example.but(logits=example.logits[:, names], indices=torch.argsort(names)[example.indices])
    before = loss(**example)
    assert loss(**moved) == before
    assert loss(**renamed) == before


@spec.holds("X-LBL-1", kills=("mask_ignored", "mask_ignored_in_the_counts", "mask_ignored_in_the_probabilities", "mask_inverted"),
            rests_on=(conduct["form"],), needs=("mask",), given=MASKED)
def tokens_that_are_not_counted_do_not_matter(loss: Subject, example: Example) -> None:
    """The loss is that of the counted tokens alone; other logits and experts of the others change nothing."""
    keep = example.mask
    alone = example.but(logits=example.logits[keep], indices=example.indices[keep]).without("mask")
    logits = torch.where(keep[:, None], example.logits, 8 * torch.eye(example.dims["E"])[0]).to(example.dtype)
    first = torch.arange(example.indices.shape[1]).expand(example.indices.shape)
    other = example.but(logits=logits, indices=torch.where(keep[:, None], example.indices, first))
    assert loss(**example) == loss(**alone)
    assert loss(**other) == loss(**alone)


@spec.holds("X-LBL-1", kills=("raw_logits", "no_shift"), rests_on=(conduct["form"],),
            given={"family": ("integers", "constant", "one_hot")})
def shifting_logits_changes_nothing(loss: Subject, example: Example) -> None:
    """A number added to all logits of a token, also one where exp alone would overflow, changes nothing."""
    for shift in (128.0, -128.0):
        assert loss(**example.but(logits=example.logits + shift)) == loss.exact(**example)


@spec.holds("X-LBL-2", kills=("gradient_detached", "gradient_of_one_token", "gradient_without_row_sum", "gradient_not_averaged",
                              "gradient_through_counts", "gradient_reaches_padding"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The logits' gradient is E/N · p ⊙ (f − Σ f·p) for counted tokens, and 0 for others: none comes through the choice."""
    assert loss.gradients(**example)["logits"] == loss.exact_gradients(**example)["logits"]


@spec.holds("X-LBL-2", kills=("gradient_without_row_sum", "gradient_through_counts"), rests_on=(gradient_is_the_formula,),
            gradient=True, given={"E": at_least(2), "family": ("integers", "normal", "positive")}, dtypes=("float64", "float32"))
def gradients_of_a_token_sum_to_zero(loss: Subject, example: Example) -> None:
    """A shift of a token's logits changes nothing, so their gradients sum to zero."""
    found = loss.gradients(**example)["logits"]
    assert found[:, 1:].sum(-1) == -found[:, 0]
