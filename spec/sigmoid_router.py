"""What must hold of `sigmoid_router(logits, bias, *, top_k, n_groups, top_groups, normalize, scale)`: X-SIGR-1 … X-SIGR-3.

As for `router`, the choice is judged by margins, and the weights against the formula on the implementation's own choice.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.margins import certain, evaluated, highest, lowest, membership, overtaken
from assay.spec.router import Routed, gradients_of_choice, require_legal, weighed
from assay.subject import Subject


class SigmoidRouterCases(Cases):
    """N tokens, E experts in groups, K of them a token; biases of zero, small, and large enough to decide alone."""

    kind = "sigmoid_router"
    dims = {"N": (5, 1, 2, 3, 7, 16, 33, 0), "E": (4, 8, 2, 3, 1, 6, 12, 16, 33), "K": (2, 1, 3, 4, 8)}
    flags = {"n_groups": (1, 2, 1, 4), "top_groups": (1, 2), "normalize": (True, False), "scale": (1.0, 2.5, 0.5),
             "bias": ("small", "zeros", "steps", "large")}
    families = ("integers", "normal", "peaked", "positive", "small", "cancelling", "one_hot", "constant")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("empty"):
            dims["N"] = max(1, dims["N"])
        if dims["E"] % flags["n_groups"] or dims["E"] // flags["n_groups"] < 2:
            flags["n_groups"] = 1
        flags["top_groups"] = min(flags["top_groups"], flags["n_groups"])
        dims["K"] = min(dims["K"], dims["E"] // flags["n_groups"] * flags["top_groups"])
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        arguments: dict[str, Any] = {
            "logits": draw_values(configuration.family, (d["N"], d["E"]), generator(seed, "logits"), dtype),
            "bias": draw_bias(flags["bias"], d["E"], generator(seed, "bias"), dtype), "top_k": d["K"],
        }
        defaults = {"n_groups": 1, "top_groups": 1, "normalize": True, "scale": 1.0}
        arguments |= {name: flags[name] for name, usual in defaults.items() if flags[name] != usual}
        return Example(configuration, dtype, arguments)


def draw_bias(sort: str, experts: int, source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """A bias an expert: about a tenth, zero, whole steps in a drawn order (they decide alone), or several units."""
    if sort == "zeros":
        return torch.zeros(experts, dtype=dtype)
    if sort == "steps":
        return (2.0 * torch.randperm(experts, generator=source) - experts).to(dtype)
    return draw_values("normal", (experts,), source, dtype) * (0.125 if sort == "small" else 2.0)


def grouping(example: Example) -> tuple[int, int]:
    """How many groups there are, and how many a token may go to."""
    return example.arguments.get("n_groups", 1), example.arguments.get("top_groups", 1)


def best_pairs(pairs: Bounded) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the most that the sum of a group's two best may be (N, groups)."""
    size = pairs.shape[-1]
    same = torch.eye(size, dtype=torch.bool) & (size > 1)  # a lone expert has none beside it
    low, high = (one.masked_fill(same, -torch.inf).amax((-1, -2)) for one in (lowest(pairs), highest(pairs)))
    return low, high


def open_groups(low: torch.Tensor, high: torch.Tensor, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Every set of groups (as a mask), with the tokens for which some rounding within the bars leads to it."""
    groups = low.shape[-1]
    for names in combinations(range(groups), count):
        mask = torch.zeros(groups, dtype=torch.bool)
        mask[list(names)] = True
        left, taken = low.masked_fill(mask, -torch.inf).amax(-1), high.masked_fill(~mask, torch.inf).amin(-1)
        yield mask, ~(left > taken)


def reachable(corrected: Bounded, pairs: Bounded, chosen: torch.Tensor, top_groups: int) -> torch.Tensor:
    """Tokens whose choice (N,E) some rounding within the bars leads to, by way of some set of groups."""
    found = torch.zeros(chosen.shape[0], dtype=torch.bool)
    for mask, possible in open_groups(*best_pairs(pairs), top_groups):
        members = mask.repeat_interleave(chosen.shape[-1] // len(mask))
        inside = Bounded(corrected.value.masked_fill(~members, -torch.inf), corrected.bar)
        found |= possible & ~(chosen & ~members).any(-1) & ~overtaken(inside, chosen)
    return found


def surely(corrected: Bounded, pairs: Bounded, top_k: int, top_groups: int) -> torch.Tensor:
    """Tokens for which every rounding within the bars leads to the same choice."""
    low, high = best_pairs(pairs)
    found = torch.zeros(low.shape[0], dtype=torch.bool)
    for mask, _ in open_groups(low, high, top_groups):
        left, taken = high.masked_fill(mask, -torch.inf).amax(-1), low.masked_fill(~mask, torch.inf).amin(-1)
        members = mask.repeat_interleave(corrected.shape[-1] // len(mask))
        inside = Bounded(corrected.value[:, members], corrected.bar[:, members])
        found |= (taken > left) & certain((inside,), top_k)
    return found


def routed(router: Subject, example: Example) -> Routed:
    """One call, its choice found legal and within reach; ends the example where it is not."""
    weights, indices = router(**example)
    experts, (groups, top_groups) = example.logits.shape[1], grouping(example)
    require_legal(indices, experts)
    forms = registry.reference("sigmoid_router").DECIDERS
    corrected, pairs = evaluated(router, forms, logits=example.logits, bias=example.bias, n_groups=groups)
    possible = reachable(corrected, pairs, membership(indices, experts), top_groups)
    sure = surely(corrected, pairs, example.top_k, top_groups)
    return weighed(router, example, weights, indices.long(), experts, possible=possible, sure=sure)


def agree(router: Subject, example: Example) -> None:
    """The choice is within reach and the weights are the formula's for it."""
    found = routed(router, example)
    assert found.weights == found.formula


spec = Specification("sigmoid_router", SigmoidRouterCases())
conduct = add_conduct(spec, agree=agree, shown_by="weights_are_the_formula")
SOME = {"N": at_least(1)}


@spec.holds("X-SIGR-2", kills=(
    "weights_with_bias", "not_normalised", "always_normalised", "scale_ignored", "scale_before_normalising", "softmax_scores",
    "softmax_over_chosen", "weights_and_indices_out_of_step", "normalised_over_all_experts", "raw_logits_as_weights", "zeros"),
    rests_on=(conduct["form"],))
def weights_are_the_formula(router: Subject, example: Example) -> None:
    """Weights are the sigmoids of the chosen logits, the bias left out, over their sum where normalised, times the scale."""
    found = routed(router, example)
    assert found.weights == found.formula


@spec.holds("X-SIGR-1", kills=("bias_ignored", "bias_subtracted", "bias_added_to_logits", "lowest_chosen",
                               "last_expert_never_chosen", "one_expert_twice", "bias_multiplied"), rests_on=(conduct["form"],),
            given={"E": at_least(2), "K": (1, 2, 3), "N": at_least(1)})
def best_corrected_scores_are_chosen(router: Subject, example: Example) -> None:
    """Every expert whose sigmoid plus bias beats the K-th, in the groups that are open, by more than the bound is chosen."""
    routed(router, example)


@spec.holds("X-SIGR-1", kills=("bias_ignored", "bias_subtracted", "lowest_chosen"), rests_on=(conduct["form"],),
            given={**SOME, "E": at_least(3), "K": (1, 2), "n_groups": 1})
def a_large_bias_decides_alone(router: Subject, example: Example) -> None:
    """Experts whose bias is 4 are chosen before all whose bias is 0, whatever the logits."""
    count = example.top_k
    wanted = example.permutation("experts", example.dims["E"])[:count]
    bias = torch.zeros_like(example.bias)
    bias[wanted] = 4.0
    found = routed(router, example.but(bias=bias))
    same = found.indices.sort(-1).values == wanted.sort().values
    assert fact(bool(same.all()), "experts of bias 4 are passed over", got=str(found.indices[:1].tolist()),
                expected=str(wanted.tolist()), check="experts of large bias")


@spec.holds("X-SIGR-2", kills=("weights_with_bias",), rests_on=(conduct["form"],),
            given={**SOME, "E": at_least(2), "K": "E", "n_groups": 1})
def bias_never_enters_a_weight(router: Subject, example: Example) -> None:
    """Where all experts are chosen, the bias changes no weight."""
    every = example.but(top_k=example.dims["E"])
    before, after = (routed(router, one) for one in (every, every.but(bias=torch.flip(example.bias, (0,)) + 1)))
    assert after.by_expert == before.by_expert


@spec.holds("X-SIGR-2", kills=("not_normalised", "scale_ignored", "scale_before_normalising", "normalised_over_all_experts",
                               "normalised_over_tokens"), rests_on=(conduct["form"],), needs=("normalize",),
            given={**SOME, "normalize": True})
def normalised_weights_sum_to_the_scale(router: Subject, example: Example) -> None:
    """Where weights are normalised, those of a token sum to the scale."""
    found = routed(router, example)
    assert found.weights.sum(-1) == float(example.arguments.get("scale", 1.0))


@spec.holds("X-SIGR-2", kills=("always_normalised", "softmax_scores"), rests_on=(conduct["form"],), needs=("normalize",),
            given={**SOME, "normalize": False, "K": at_least(2), "E": at_least(3)})
def weights_do_not_depend_on_other_experts(router: Subject, example: Example) -> None:
    """Where weights are not normalised, one expert's weight is the same whatever the other logits are."""
    first = torch.arange(example.dims["E"]) == 0
    bias = torch.where(first, 8.0, 0.0).to(example.dtype)
    other = torch.where(first, example.logits, example.logits + 1)
    before, after = (routed(router, example.but(bias=bias, logits=logits)) for logits in (example.logits, other))
    assert after.by_expert[:, 0] == before.by_expert[:, 0]


@spec.holds("X-SIGR-1", kills=("groups_ignored", "one_group_more"), rests_on=(conduct["form"],), needs=("n_groups", "top_groups"),
            given={**SOME, "E": (8, 16, 12), "n_groups": (2, 4), "K": (2, 3, 4), "bias": ("small", "zeros")})
def experts_lie_in_the_open_groups(router: Subject, example: Example) -> None:
    """A token's experts lie in at most top_groups groups."""
    groups, most = grouping(example)
    found = routed(router, example)
    spread_over = membership(found.indices // (found.experts // groups), groups).sum(-1)
    assert fact(bool((spread_over <= most).all()), f"a token goes to {int(spread_over.max())} groups", expected=f"at most {most}",
                check="groups of a token", decided=example.top_k > most and groups > most)


@spec.holds("X-SIGR-1", kills=("groups_by_their_best", "groups_by_their_sum", "closed_groups_at_zero"), rests_on=(conduct["form"],),
            needs=("n_groups",), given={**SOME, "E": (8, 16), "n_groups": 2, "top_groups": 1, "K": (2, 3)})
def groups_are_ranked_by_their_two_best(router: Subject, example: Example) -> None:
    """The group with the larger sum of its two best scores is open: not that of the best single, nor of the largest whole sum.

    Two experts of one group have bias 2 and its rest −4; in the other all have 1.25, or one has 3 and the rest −4. The same again
    with every bias 16 lower, so that all scores are negative.
    """
    half = example.dims["E"] // 2
    pair = torch.tensor([2.0, 2.0, *[-4.0] * (half - 2)])
    flat, one = torch.full((half,), 1.25), torch.tensor([3.0, *[-4.0] * (half - 1)])
    for other in (flat, one):
        for shift in (0.0, -16.0):
            for sides in ((pair, other), (other, pair)):
                bias = (torch.cat(sides) + shift).to(example.dtype)
                routed(router, example.but(bias=bias, logits=example.logits * 0))


@spec.holds("X-SIGR-1", kills=("last_expert_never_chosen", "weights_and_indices_out_of_step"), rests_on=(weights_are_the_formula,),
            given={**SOME, "E": at_least(2), "n_groups": 1})
def permuting_experts_changes_nothing(router: Subject, example: Example) -> None:
    """Experts in another order, biases with them, are renamed and nothing else."""
    order = example.permutation("experts", example.dims["E"])
    before = routed(router, example)
    after = routed(router, example.but(logits=example.logits[:, order], bias=example.bias[order]))
    sure = before.certain & after.certain
    assert after.by_expert[sure] == before.by_expert[:, order][sure]


@spec.holds("X-SIGR-1", kills=("routed_like_first_token", "normalised_over_tokens"), rests_on=(weights_are_the_formula,),
            given={"N": at_least(2)})
def tokens_are_routed_alone(router: Subject, example: Example) -> None:
    """A token is routed the same in another order and in a batch of its own."""
    whole, order = routed(router, example), example.permutation("tokens", example.dims["N"])
    turned, alone = (routed(router, example.but(logits=one)) for one in (example.logits[order], example.logits[:1]))
    sure = whole.certain[order]
    assert turned.by_expert[sure] == whole.by_expert[order][sure]
    assert alone.by_expert[whole.certain[:1]] == whole.by_expert[:1][whole.certain[:1]]


# ------------------------------------------------------------------------------------------------ gradients
@spec.holds("X-SIGR-3", kills=("weights_detached", "gradient_of_the_sum_left_out", "gradient_unscaled", "gradient_through_softmax"),
            gradient=True, rests_on=(weights_are_the_formula,), given=SOME)
def gradient_is_the_formula(router: Subject, example: Example) -> None:
    """The logits' gradient is that of the weights, with the choice held fixed."""
    got, want, _ = gradients_of_choice(router, example, ("logits",))
    assert got["logits"] == want["logits"]


@spec.holds("X-SIGR-3", kills=("gradient_reaches_all_experts",), gradient=True, rests_on=(gradient_is_the_formula,),
            given={**SOME, "E": at_least(4), "K": (2, 3)})
def experts_not_chosen_get_no_gradient(router: Subject, example: Example) -> None:
    """Logits of experts that were not chosen get a gradient of exactly zero."""
    found, _, chosen = gradients_of_choice(router, example, ("logits",))
    got = found["logits"].value
    assert identical(got[~chosen], 0.0, witness=bool((got[chosen] != 0).any()))
