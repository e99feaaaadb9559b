"""What must hold of `router(x, w_router, *, top_k)`: MOE-1 … MOE-3, MOE-5 … MOE-7, MOE-11.

Weights are compared with the formula on the implementation's own choice of experts, once that choice is one that its scores'
bars allow: a near-tie never fails a right implementation, and weights stay sharp everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.margins import certain, evaluated, membership, reachable
from assay.subject import Subject

FAMILIES = (
    "integers",
    "normal",
    "peaked",
    "very_peaked",
    "positive",
    "small",
    "cancelling",
    "heavy",
    "one_hot",
    "constant",
)


class RouterCases(Cases):
    """N tokens, E experts, K of them for each; ties (small integers, constant rows), close scores, many experts."""

    kind = "router"
    dims = {
        "N": (5, 1, 2, 3, 7, 16, 33, 0),
        "C": (4, 1, 2, 3, 8, 16, 33),
        "E": (4, 1, 2, 3, 5, 8, 16, 33),
        "K": (2, 1, 3, 4, 8),
    }
    families = FAMILIES

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims = configuration.dims
        if dims["N"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(N=1)
        return with_experts(configuration, claims)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed, family = configuration.dims, configuration.seed, configuration.family
        plain = family if family in ("integers", "positive") else "normal"
        arguments: dict[str, Any] = {
            "x": draw_values(family, (d["N"], d["C"]), generator(seed, "x"), dtype),
            "w_router": draw_values(plain, (d["E"], d["C"]), generator(seed, "w_router"), dtype),
            "top_k": d["K"],
        }
        return Example(configuration, dtype, arguments)


def with_experts(configuration: Configuration, claims: Declaration) -> Configuration | None:
    """At most as many experts a token as there are; what `limits` exclude is not asked."""
    experts = configuration.dims["E"]
    kept = min(configuration.dims["K"], experts)
    allowed = [k for k in range(kept, experts + 1) if claims.allows("K", k) and claims.allows("top_k", k)]
    allowed += [k for k in range(kept, 0, -1) if claims.allows("K", k) and claims.allows("top_k", k)]
    return configuration.but(K=allowed[0]) if allowed else None


def spread(weights: Bounded, indices: torch.Tensor, experts: int) -> Bounded:
    """Weights (N,K) at their experts (N,E), 0 elsewhere."""
    blank = torch.zeros(*weights.shape[:-1], experts, dtype=torch.float64)
    return Bounded(blank.scatter(-1, indices, weights.value), blank.scatter(-1, indices, weights.bar))


@dataclass(frozen=True)
class Routed:
    """One call's outcome: measured weights, what the formula gives for the same choice, and the choice."""

    weights: Bounded
    formula: Bounded
    indices: torch.Tensor
    certain: torch.Tensor  # tokens whose choice every rounding leads to
    experts: int

    @property
    def by_expert(self) -> Bounded:
        """Measured weights (N,E), 0 where not chosen."""
        return spread(self.weights, self.indices, self.experts)


def deciders(subject: Subject, example: Example) -> tuple[Bounded, ...]:
    """Scores (N,E) with their bars, and probabilities or sigmoids with theirs."""
    x = example.x.reshape(-1, example.x.shape[-1])
    forms = registry.reference("router").DECIDERS
    return evaluated(subject, forms, x=x, w_router=example.w_router, router=subject.conventions["router"])


def routed(router: Subject, example: Example) -> Routed:
    """One call, its choice found legal and within reach; ends the example where it is not."""
    weights, indices = router(**example)
    experts, numbers = example.w_router.shape[0], deciders(router, example)
    require_legal(indices, experts)
    possible, sure = reachable(numbers, membership(indices, experts)), certain(numbers, example.top_k)
    return weighed(router, example, weights, indices.long(), experts, possible=possible, sure=sure)


def weighed(
    router: Subject, example: Example, weights: Bounded, indices: torch.Tensor, experts: int, *, possible: torch.Tensor,
    sure: torch.Tensor,
) -> Routed:
    """The outcome of a call whose choice is possible for every token, beside the formula's weights for that choice; ends the
    example where it is not. sure: tokens for which every rounding leads to one choice."""
    wrong = int((~possible).sum())
    if not fact(
        wrong == 0,
        f"{wrong} of {len(possible)} tokens leave out an expert whose score surely beats a chosen one",
        got=_first(indices, ~possible),
        expected=_first(router.exact(**example)[1], ~possible),
        decided=bool(sure.any()) and example.top_k < experts,
        check="choice of experts",
    ):
        raise ExampleOverError("wrong experts")
    given = {**example, "indices": indices}
    allowed, formula = router.bars(**given)[0], router.exact(**given)[0]
    return Routed(Bounded(weights.value, allowed.bar), formula, indices, sure, experts)


def _first(indices: torch.Tensor, wrong: torch.Tensor) -> str:
    rows = indices[wrong]
    return f"experts {sorted(rows[0].tolist())} of token {int(wrong.nonzero()[0])}" if len(rows) else ""


def require_legal(indices: torch.Tensor, experts: int) -> None:
    """Indices are whole numbers of distinct experts; ends the example where they are not."""
    whole = not indices.is_floating_point() and indices.dtype != torch.bool
    if not fact(
        whole, f"indices are {indices.dtype}", expected="integers", check="type of indices", decided=indices.numel() > 0
    ):
        raise ExampleOverError("no integers")
    inside = bool(((indices >= 0) & (indices < experts)).all())
    ordered = indices.long().sort(-1).values
    distinct = not bool((ordered[..., 1:] == ordered[..., :-1]).any())
    if not fact(
        inside and distinct,
        "indices are not distinct experts",
        got=str(indices[:1].tolist()),
        expected=f"distinct numbers from 0 to {experts - 1}",
        check="indices",
        decided=indices.numel() > 0,
    ):
        raise ExampleOverError("no experts")


def agree(router: Subject, example: Example) -> None:
    """The choice is within reach and the weights are the formula's for it."""
    found = routed(router, example)
    assert found.weights == found.formula


spec = Specification("router", RouterCases())
conduct = add_conduct(spec, agree=agree, shown_by="weights_are_the_formula")
SHARED = {"router": "softmax_of_topk"}


@spec.holds(
    "MOE-1",
    kills=(
        "not_renormalised",
        "raw_scores_as_weights",
        "sigmoid_weights",
        "sigmoid_normalised",
        "equal_weights",
        "temperature_two",
        "scaled_like_attention",
        "softmax_over_tokens",
        "no_shift",
        "weights_and_indices_out_of_step",
        "renormalised_against_declaration",
    ),
    rests_on=(conduct["form"],),
)
def weights_are_the_formula(router: Subject, example: Example) -> None:
    """The weights are the softmax over the chosen scores (or the declared variant), each at its expert."""
    found = routed(router, example)
    assert found.weights == found.formula


@spec.holds(
    "MOE-2",
    kills=("one_expert_twice", "one_expert_more", "indices_floating", "not_renormalised", "sigmoid_weights"),
    conventions=SHARED,
    rests_on=(conduct["form"],),
)
def weights_of_k_distinct_experts_sum_to_one(router: Subject, example: Example) -> None:
    """Every token gets K distinct experts, with weights that are not negative and sum to 1."""
    found = routed(router, example)
    assert fact(
        bool((found.weights.value >= 0).all()), "a weight is negative or NaN", check="weights >= 0", decided=False
    )
    assert found.weights.sum(-1) == 1


@spec.holds(
    "MOE-3",
    kills=(
        "lowest_chosen",
        "chosen_by_magnitude",
        "last_expert_never_chosen",
        "last_choice_one_too_far",
        "routed_like_first_token",
    ),
    rests_on=(conduct["form"],),
    given={"E": lambda size: size > 1, "K": (1, 2, 3)},
)
def best_experts_are_chosen(router: Subject, example: Example) -> None:
    """Every expert whose score beats the K-th by more than the rounding bound is chosen.

    Scores that are exact (small integers) decide exactly; among equal ones any choice is right, and the same in every call.
    """
    routed(router, example)


@spec.holds(
    "MOE-5",
    kills=("sigmoid_weights", "temperature_two", "softmax_over_tokens"),
    conventions=SHARED,
    rests_on=(conduct["form"],),
    given={"K": "E"},
)
def all_experts_give_the_dense_softmax(router: Subject, example: Example) -> None:
    """With K = E the weights are the softmax over all scores."""
    found = routed(router, example)
    dense = torch.softmax(example.x.double() @ example.w_router.double().T, -1)
    assert found.by_expert == dense


@spec.holds(
    "MOE-5",
    kills=("not_renormalised", "raw_scores_as_weights", "sigmoid_weights"),
    conventions=SHARED,
    rests_on=(conduct["form"],),
    given={"K": 1},
)
def one_expert_has_weight_one(router: Subject, example: Example) -> None:
    """With K = 1 the one weight is exactly 1."""
    assert identical(routed(router, example).weights.value, 1.0)


@spec.holds(
    "MOE-5",
    "MOE-11",
    kills=("single_weight_keeps_gradient",),
    conventions=SHARED,
    gradient=True,
    rests_on=(one_expert_has_weight_one,),
    given={"K": 1, "N": lambda size: size > 0},
)
def one_expert_gives_no_router_gradient(router: Subject, example: Example) -> None:
    """With K = 1 the router's gradient is 0: a weight that is always 1 tells it nothing."""
    gradients, _, _ = gradients_of_choice(router, example)
    assert gradients["w_router"].abs() <= 0.0
    assert gradients["x"].abs() <= 0.0


@spec.holds(
    "MOE-6",
    kills=("last_expert_never_chosen", "lowest_chosen"),
    rests_on=(best_experts_are_chosen,),
    given={"E": lambda size: size > 1, "N": lambda size: size > 0},
)
def permuting_experts_changes_nothing(router: Subject, example: Example) -> None:
    """Permuting the rows of the router's matrix renames the experts and changes nothing else."""
    order = example.permutation("experts", example.w_router.shape[0])
    before, after = routed(router, example), routed(router, example.but(w_router=example.w_router[order]))
    sure = before.certain & after.certain
    assert after.by_expert[sure] == before.by_expert[:, order][sure]


@spec.holds(
    "MOE-7",
    kills=("routed_like_first_token", "scores_centred_over_batch", "softmax_over_tokens"),
    rests_on=(weights_are_the_formula,),
    given={"N": lambda size: size > 1},
)
def order_and_batch_do_not_matter(router: Subject, example: Example) -> None:
    """A token is routed the same in another order and in a batch of its own."""
    whole, order = routed(router, example), example.permutation("tokens", example.x.shape[0])
    turned, alone = routed(router, example.but(x=example.x[order])), routed(router, example.but(x=example.x[:1]))
    sure = whole.certain[order]
    assert turned.by_expert[sure] == whole.by_expert[order][sure]
    assert alone.by_expert[whole.certain[:1]] == whole.by_expert[:1][whole.certain[:1]]


@spec.holds(
    "MOE-7",
    kills=("scores_centred_over_batch", "softmax_over_tokens"),
    rests_on=(weights_are_the_formula,),
    given={"N": lambda size: size > 1},
)
def other_tokens_do_not_matter(router: Subject, example: Example) -> None:
    """Replacing the other tokens, by far larger ones, leaves a token's experts and weights as they were."""
    before, other = routed(router, example), example.x.clone()
    other[1:] = other[1:] * (16 if example.dtype == torch.float16 else 1024) + 1
    weights, indices = router.values(**example.but(x=other))
    require_legal(indices, before.experts)
    if not bool(before.certain[0]):
        fact(True, "", decided=False, check="the token's choice is certain")
        return
    after = spread(Bounded(weights[:1], before.weights.bar[:1]), indices[:1].long(), before.experts)
    assert after == before.by_expert[:1]


# ------------------------------------------------------------------------------------------------ gradients
def gradients_of_choice(
    router: Subject, example: Example, names: tuple[str, ...] = ("x", "w_router"),
) -> tuple[dict[str, Bounded], dict[str, Bounded], torch.Tensor]:
    """Measured gradients, the formula's for the very choice that the implementation made in that call, and that choice (N,E)."""
    up = router.upstream(**example)
    answer = router.answer(_wrt=names, _upstream=up, **example)
    indices, experts = answer.outputs[1], example.w_router.shape[0] if "w_router" in example else example.logits.shape[1]
    require_legal(indices, experts)
    given = {**example, "indices": indices.long()}
    bars = router.gradient_bars(upstream=up, wrt=names, **given)
    exact = router.exact_gradients(upstream=up, wrt=names, **given)
    found: dict[str, Bounded] = {}
    for name in names:
        got = answer.gradients.get(name)
        found[name] = Bounded(torch.zeros_like(bars[name].value) if got is None else got.double(), bars[name].bar)
    return found, exact, membership(indices, experts)


@spec.holds(
    "MOE-11",
    kills=("weights_detached", "gradient_without_row_sum", "gradient_of_dense_softmax"),
    gradient=True,
    rests_on=(weights_are_the_formula,),
    given={"N": lambda size: size > 0},
)
def gradient_is_the_formula(router: Subject, example: Example) -> None:
    """The gradients of tokens and router are those of the weights, with the choice held fixed."""
    got, want, _ = gradients_of_choice(router, example)
    assert got["w_router"] == want["w_router"]
    assert got["x"] == want["x"]


@spec.holds(
    "MOE-11",
    kills=("gradient_of_dense_softmax", "gradient_without_row_sum"),
    gradient=True,
    conventions=SHARED,
    rests_on=(gradient_is_the_formula,),
    given={"E": lambda size: size > 2, "K": (2, 3)},
)
def gradient_comes_through_chosen_scores(router: Subject, example: Example) -> None:
    """Scores that were not chosen get no gradient, and those of the chosen sum to 0.

    Each token is a unit vector, so that the gradient of the router's matrix is that of the scores.
    """
    width = example.x.shape[1]
    probe = example.but(x=torch.eye(width, dtype=example.dtype))
    got, want, _ = gradients_of_choice(router, probe)
    scores, exact = got["w_router"].T, want["w_router"].T
    untouched = exact.value == 0
    assert scores[untouched].abs() <= 0.0
    assert scores[..., 1:].sum(-1) == -scores[..., 0]
