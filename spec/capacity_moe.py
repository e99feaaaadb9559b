"""What must hold of `capacity_moe(x, w_router, w_gate, w_up, w_down, *, top_k, capacity, priority)`: X-CAP-1 … X-CAP-3.

Whether a token is kept hangs on the choices of all before it. Outputs are compared at the tokens that every rounding within the
bars sends to the same experts, where every rounding keeps them or every one turns them away; gradients with an upstream gradient
of 0 at the others.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from assay import registry
from assay.cases import Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.margins import highest, lowest
from assay.spec.moe import EXPERT, MoeCases, crowded, expert
from assay.spec.router import deciders, with_experts
from assay.subject import Subject

PLENTY = 1000  # more than there ever are tokens
FEW = (1, 2, 3)


class CapacityCases(MoeCases):
    """Mixtures as `moe` has them; room for one token, for some, and for all; one expert that all want."""

    kind = "capacity_moe"
    dims = {**MoeCases.dims, "T": (3, 1, 2, 4, 5, 7), "F": (3, 1, 2, 5), "E": (4, 1, 2, 3, 5, 8)}
    flags = {"capacity": (2, 1, 3, 2, PLENTY), "priority": ("token", "choice"), "crowd": (False, True, False)}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if configuration.dims["B"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(B=1)
        return with_experts(configuration, claims)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        plain = configuration.family if configuration.family in ("integers", "positive") else "normal"
        shapes = {"w_router": (d["E"], d["C"]), "w_gate": (d["E"], d["F"], d["C"]), "w_up": (d["E"], d["F"], d["C"]),
                  "w_down": (d["E"], d["C"], d["F"])}
        drawn = {name: draw_values(plain, shape, generator(seed, name), dtype) for name, shape in shapes.items()}
        x = draw_values(configuration.family, (d["B"], d["T"], d["C"]), generator(seed, "x"), dtype)
        if flags["crowd"]:
            x, drawn["w_router"] = crowded(x, drawn["w_router"], seed % d["E"])
        arguments: dict[str, Any] = {"x": x, **drawn, "top_k": d["K"], "capacity": flags["capacity"]}
        if flags["priority"] != "token":
            arguments["priority"] = flags["priority"]
        return Example(configuration, dtype, arguments)


# ------------------------------------------------------------------------------------------------ what is certain
@dataclass(frozen=True)
class Fates:
    """sure (N,): tokens whose experts, and whether these keep them, no rounding can change. kept (N,E): which experts keep them."""

    sure: torch.Tensor
    kept: torch.Tensor


def fates(moe: Subject, example: Example) -> Fates:
    """What becomes of every token, as far as the scores' bars let it be known."""
    may, must = _ranks(deciders(moe, example), example.top_k)  # (K,N,E): this expert may be, or is, the token's j-th choice
    if example.arguments.get("priority", "token") == "token":
        may, must = may.any(0, keepdim=True), _chosen(deciders(moe, example), example.top_k)[None]
    fewest, most = _before(must), _before(may)
    kept, dropped = must & (most < example.capacity), must & (fewest >= example.capacity)
    told = (kept | dropped).any(0) | ~may.any(0)
    return Fates(told.all(-1), kept.any(0))


def _above(numbers: Bounded) -> tuple[torch.Tensor, torch.Tensor]:
    """How many experts score above each one (N,E), surely and at most."""
    low, high = lowest(numbers), highest(numbers)
    surely = (low.unsqueeze(-2) > high.unsqueeze(-1)).sum(-1)
    return surely, (high.unsqueeze(-2) >= low.unsqueeze(-1)).sum(-1) - 1


def _ranks(numbers: Sequence[Bounded], top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each expert may be, and whether it surely is, a token's j-th choice (K,N,E), whatever is decided by."""
    counts = [_above(one) for one in numbers]
    may = [torch.stack([(surely <= j) & (j <= most) for surely, most in counts]).any(0) for j in range(top_k)]
    must = [torch.stack([(surely == j) & (j == most) for surely, most in counts]).all(0) for j in range(top_k)]
    return torch.stack(may), torch.stack(must)


def _chosen(numbers: Sequence[Bounded], top_k: int) -> torch.Tensor:
    """Whether each expert is surely among a token's choices (N,E), of whatever rank."""
    return torch.stack([_above(one)[1] < top_k for one in numbers]).all(0)


def _before(chosen: torch.Tensor) -> torch.Tensor:
    """How many choices of the same expert come earlier: (J,N,E), rank after rank, and within one token after token."""
    flat = chosen.long().flatten(0, 1)
    return (flat.cumsum(0) - flat).reshape(chosen.shape)


def by_row(example: Example, tokens: torch.Tensor) -> torch.Tensor:
    """(N,…) as (B,T,…)."""
    return tokens.reshape(*example.x.shape[:-1], *tokens.shape[1:])


def agree(moe: Subject, example: Example) -> None:
    """The formula, at tokens whose fate is certain."""
    sure = by_row(example, fates(moe, example).sure)
    assert moe(**example)[sure] == moe.exact(**example)[sure]


spec = Specification("capacity_moe", CapacityCases())
conduct = add_conduct(spec, agree=agree)
SOME: dict[str, Any] = {"B": at_least(1)}
SOFTMAX = {"router": "softmax_of_topk"}
PLAIN = ("integers", "normal", "positive")


@spec.holds("X-CAP-1", kills=(
    "capacity_ignored", "one_too_many", "one_too_few", "capacity_times_top_k", "last_tokens_kept", "heaviest_tokens_kept",
    "capacity_per_row", "queue_by_column", "capacity_shared_by_experts", "capacity_per_choice", "always_by_token",
    "always_by_choice", "last_choices_first", "last_expert_unlimited", "overflow_to_the_next_expert",
    "overflow_into_the_last_place", "weight_of_the_dropped_goes_to_the_last", "renormalised_after_dropping",
    "whole_token_dropped", "dropped_token_passes", "not_renormalised", "sigmoid_weights", "unweighted", "weight_squared",
    "lowest_chosen", "gate_and_up_swapped", "last_expert_not_read", "lonely_token_skipped", "negated", "zeros"),
    rests_on=(conduct["form"],))
def output_is_the_formula(moe: Subject, example: Example) -> None:
    """A token's output is the weighted sum over those of its chosen experts in whose queue it comes within the capacity."""
    agree(moe, example)


@spec.holds("X-CAP-2", kills=("dropped_token_passes", "capacity_ignored", "overflow_to_the_next_expert"),
            rests_on=(conduct["form"],), examples=5, given={**SOME, "capacity": (1, 2), "K": (1, 2), "T": (5, 7), "family": PLAIN})
def tokens_turned_away_by_all_give_zeros(moe: Subject, example: Example) -> None:
    """A token for which none of its experts has room gives exactly zeros: what it was is left to the residual."""
    found = fates(moe, example)
    lost = by_row(example, found.sure & ~found.kept.any(-1))
    out = moe(**example).value
    assert identical(out[lost], 0.0, witness=bool((out[~lost] != 0).any()))


@spec.holds("X-CAP-2", kills=("renormalised_after_dropping", "whole_token_dropped", "weight_of_the_dropped_goes_to_the_last",
                              "not_renormalised", "unweighted", "weight_squared"),
            rests_on=(conduct["form"],), examples=5, conventions=SOFTMAX,
            given={**SOME, "capacity": FEW, "K": (2, 3), "E": (3, 4, 5), "T": (3, 5, 7), "family": PLAIN})
def weights_stay_as_they_were(moe: Subject, example: Example) -> None:
    """With equal experts the output is one expert's, times the sum of the weights of those that keep the token: less than 1
    where one turned it away."""
    same = example.but(**{name: example[name][:1].expand_as(example[name]).contiguous() for name in EXPERT})
    found, x = fates(moe, same), same.x.double()
    weights, indices = registry.reference("router").router(x.flatten(0, 1), same.w_router.double(), top_k=same.top_k)
    share = (torch.zeros_like(found.kept, dtype=torch.float64).scatter(-1, indices, weights) * found.kept).sum(-1)
    own = by_row(same, share)[..., None] * expert(x, *(same[name][0] for name in EXPERT))
    sure = by_row(same, found.sure)
    assert moe(**same)[sure] == own[sure]


@spec.holds("X-CAP-1", kills=("one_too_few", "lonely_token_skipped", "last_expert_not_read", "sigmoid_weights"),
            rests_on=(conduct["form"],), examples=5, conventions=SOFTMAX,
            given={**SOME, "capacity": PLENTY, "K": (1, 2), "T": (1, 2, 3)})
def with_room_for_all_nobody_is_turned_away(moe: Subject, example: Example) -> None:
    """With a capacity of as many as there are tokens, it is the mixture of experts without limits."""
    roomy = example.but(capacity=example.x[..., 0].numel())
    free = {name: value for name, value in roomy.items() if name not in ("capacity", "priority")}
    plain = registry.reference("moe").moe(**{name: one.double() if isinstance(one, torch.Tensor) else one
                                             for name, one in free.items()})
    sure = by_row(roomy, fates(moe, roomy).sure)
    assert moe(**roomy)[sure] == plain[sure]


@spec.holds("X-CAP-1", kills=("one_too_many", "one_too_few", "last_tokens_kept", "capacity_per_row", "capacity_ignored",
                              "capacity_shared_by_experts", "capacity_times_top_k", "overflow_into_the_last_place"),
            rests_on=(conduct["form"],), examples=5, given={**SOME, "capacity": FEW, "T": (5, 7), "K": (1, 2), "family": PLAIN})
def of_equal_tokens_the_first_are_served(moe: Subject, example: Example) -> None:
    """Of tokens that are all the same, exactly the first `capacity`, over all rows, get an output, and all the same one."""
    same = example.but(x=example.x[:1, :1].expand_as(example.x).contiguous())
    out, first = moe(**same).flatten(0, 1), moe.exact(**same.but(x=same.x[:1, :1]))[0]
    if not bool(fates(moe, same).sure.all()):
        fact(True, "", decided=False, check="the tokens' experts are certain")
        return
    assert out[: example.capacity] == first
    assert identical(out.value[example.capacity:], 0.0, witness=bool((first.value != 0).any()))


@spec.holds("X-CAP-1", kills=("last_tokens_kept", "always_by_choice", "heaviest_tokens_kept"),
            rests_on=(output_is_the_formula,), examples=5,
            given={"B": 1, "T": (5, 7), "capacity": FEW, "priority": "token", "K": (2, 3, 1), "E": at_least(2)})
def later_tokens_do_not_matter(moe: Subject, example: Example) -> None:
    """In the tokens' order, other tokens after one leave what becomes of it as it was."""
    cut = example.integer("cut", 1, example.x.shape[1] - 1)
    x = example.x.clone()
    x[:, cut:] = -2 * x[:, cut:].flip(1) + 1
    before, after = moe(**example), moe(**example.but(x=x))
    sure = fates(moe, example).sure[:cut]
    assert after[0, :cut][sure] == before[0, :cut][sure]


@spec.holds("X-CAP-1", kills=("always_by_token", "last_choices_first", "capacity_per_choice"), rests_on=(conduct["form"],),
            examples=5, needs=("priority",), given={**SOME, "priority": "choice", "capacity": FEW, "K": (2, 3), "E": at_least(3),
                                        "T": (3, 5, 7), "family": PLAIN})
def first_choices_come_before_second_ones(moe: Subject, example: Example) -> None:
    """By choice, no token's second choice takes a place that another token's first choice wants."""
    agree(moe, example)


@spec.holds("X-CAP-1", kills=("capacity_per_row", "queue_by_column"), rests_on=(output_is_the_formula,), examples=5,
            given={"B": (2, 3), "capacity": FEW, "T": (2, 3, 4, 5, 7), "K": (1, 2)})
def all_rows_make_one_queue(moe: Subject, example: Example) -> None:
    """Tokens give in one long row what they give in several."""
    whole = example.but(x=example.x.reshape(1, -1, example.x.shape[-1]))
    sure = by_row(example, fates(moe, example).sure)
    assert moe(**example)[sure] == moe.exact(**whole).reshape(example.x.shape)[sure]


@spec.holds("X-CAP-1", kills=("last_expert_unlimited", "last_expert_not_read"), rests_on=(output_is_the_formula,), examples=5,
            given={"E": at_least(2), "capacity": FEW})
def permuting_experts_changes_nothing(moe: Subject, example: Example) -> None:
    """Permuting the experts together with the router's rows changes nothing: all have the same room."""
    order = example.permutation("experts", example.w_router.shape[0])
    turned = example.but(w_router=example.w_router[order], **{name: example[name][order] for name in EXPERT})
    sure = by_row(example, fates(moe, example).sure & fates(moe, turned).sure)
    assert moe(**turned)[sure] == moe.exact(**example)[sure]


@spec.holds("X-CAP-1", kills=("one_too_few",), rests_on=(output_is_the_formula,), examples=5,
            given={**SOME, "capacity": FEW, "T": (3, 5, 7), "K": (2, 1, 3)})
def more_room_turns_nobody_away(moe: Subject, example: Example) -> None:
    """Whom all its experts keep gives the same where they have more room."""
    found = fates(moe, example)
    whole = by_row(example, found.sure & (found.kept.sum(-1) == example.top_k))
    roomier = moe(**example.but(capacity=example.capacity + 1))
    assert moe(**example)[whole] == roomier[whole]


@spec.holds("X-CAP-1", kills=("capacity_shared_by_experts", "last_expert_not_read"), rests_on=(output_is_the_formula,), examples=5,
            conventions=SOFTMAX, given={**SOME, "K": "E", "E": (2, 3, 4), "capacity": FEW, "T": (3, 5, 7)})
def where_all_experts_are_chosen_whole_tokens_are_kept(moe: Subject, example: Example) -> None:
    """With K = E every expert keeps the same tokens, the first ones: the dense mixture for them, zeros for the others."""
    x, room = example.x.double().flatten(0, 1), example.capacity
    if example.arguments.get("priority", "token") != "token":
        agree(moe, example)
        return
    weights = torch.softmax(x @ example.w_router.double().mT, -1)
    every = torch.stack([expert(x, *(example[name][e] for name in EXPERT)) for e in range(example.top_k)], -2)
    dense = (weights[..., None] * every).sum(-2)
    out = moe(**example).flatten(0, 1)
    assert out[:room] == dense[:room]
    assert identical(out.value[room:], 0.0, witness=bool((dense[:room] != 0).any()))


# ------------------------------------------------------------------------------------------------ gradients
def certain_upstream(moe: Subject, example: Example) -> tuple[torch.Tensor]:
    """An upstream gradient that is 0 at tokens whose fate is not certain."""
    sure = by_row(example, fates(moe, example).sure)
    (up,) = moe.upstream(**example)
    return (torch.where(sure.unsqueeze(-1), up, torch.zeros_like(up)),)


@spec.holds("X-CAP-3", kills=("gradient_of_the_dropped", "router_input_detached", "expert_gradient_unweighted",
                              "last_expert_detached", "upstream_taken_for_ones", "gate_and_up_swapped"),
            gradient=True, rests_on=(output_is_the_formula,))
def gradients_are_the_formula(moe: Subject, example: Example) -> None:
    """Gradients of tokens and experts are those of the kept choices, choice and places held fixed."""
    up, names = certain_upstream(moe, example), ("x", *EXPERT)
    found = moe.gradients(**example, wrt=names, upstream=up)
    exact = moe.exact_gradients(**example, wrt=names, upstream=up)
    for name in names:
        assert found[name] == exact[name]


@spec.holds("X-CAP-3", kills=("router_detached", "router_gradient_renormalised", "gradient_of_the_dropped"), gradient=True,
            rests_on=(output_is_the_formula,), given={**SOME, "E": at_least(3), "K": (2, 3), "capacity": FEW})
def router_gradient_comes_through_what_is_kept(moe: Subject, example: Example) -> None:
    """The router's gradient is that of the kept choices' weights, which still sum over all that were chosen."""
    up = certain_upstream(moe, example)
    found = moe.gradients(**example, wrt=("w_router",), upstream=up)
    assert found["w_router"] == moe.exact_gradients(**example, wrt=("w_router",), upstream=up)["w_router"]


@spec.holds("X-CAP-3", kills=("gradient_of_the_dropped", "upstream_taken_for_ones"), gradient=True,
            rests_on=(gradients_are_the_formula,), examples=5,
            given={**SOME, "capacity": (1, 2), "K": (1, 2), "T": (5, 7), "E": at_least(2), "family": PLAIN})
def tokens_turned_away_get_and_give_no_gradient(moe: Subject, example: Example) -> None:
    """From a token that all its experts turn away no gradient reaches any argument: exactly zero."""
    found = fates(moe, example)
    lost = by_row(example, found.sure & ~found.kept.any(-1)).unsqueeze(-1)
    (up,) = moe.upstream(**example)
    some = moe.gradients(**example, upstream=(up,))
    none = moe.gradients(**example, upstream=(torch.where(lost, up, torch.zeros_like(up)),))
    for name, gradient in none.items():
        fact(bool((gradient.value == 0).all()), f"the gradient of {name} is not zero", check=f"gradient of {name}",
             decided=bool(lost.any()) and bool((some[name].value != 0).any()))
