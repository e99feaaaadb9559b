"""What must hold of `moe(x, w_router, w_gate, w_up, w_down, *, top_k, shared)`: MOE-1 … MOE-9, MOE-11, COST-3.

Outputs are compared at the tokens whose choice of experts every rounding within the bars leads to; gradients with an upstream
gradient of 0 at the others, which then say nothing whichever way they went.
"""

from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.margins import certain, highest, lowest
from assay.spec.router import deciders, with_experts
from assay.subject import Subject

EXPERT = ("w_gate", "w_up", "w_down")


class MoeCases(Cases):
    """Tokens in rows of T, experts of width F; more experts than tokens, all tokens to one expert, lone tokens, ties."""

    kind = "moe"
    dims = {
        "B": (2, 1, 3, 2, 1, 0),
        "T": (3, 1, 2, 4, 5, 7, 13),
        "C": (4, 1, 2, 3, 8),
        "F": (3, 1, 2, 5, 8),
        "E": (4, 1, 2, 3, 5, 8, 16),
        "K": (2, 1, 3, 4),
    }
    flags = {"shared": (False, True), "crowd": (False, True, False)}
    families = ("integers", "normal", "peaked", "positive", "small", "heavy", "one_hot")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if configuration.dims["B"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(B=1)
        if configuration.flags["shared"] and not claims.claims("shared"):
            configuration = configuration.but(shared=False)
        return with_experts(configuration, claims)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        plain = configuration.family if configuration.family in ("integers", "positive") else "normal"

        def drawn(label: str, *shape: int, family: str = plain) -> torch.Tensor:
            return draw_values(family, shape, generator(seed, label), dtype)

        x = drawn("x", d["B"], d["T"], d["C"], family=configuration.family)
        w_router = drawn("w_router", d["E"], d["C"])
        if flags["crowd"]:  # one expert that every token wants most
            x, w_router = crowded(x, w_router, seed % d["E"])
        arguments: dict[str, Any] = {
            "x": x,
            "w_router": w_router,
            "w_gate": drawn("w_gate", d["E"], d["F"], d["C"]),
            "w_up": drawn("w_up", d["E"], d["F"], d["C"]),
            "w_down": drawn("w_down", d["E"], d["C"], d["F"]),
            "top_k": d["K"],
        }
        if flags["shared"]:
            arguments["shared"] = (
                drawn("shared gate", d["F"], d["C"]),
                drawn("shared up", d["F"], d["C"]),
                drawn("shared down", d["C"], d["F"]),
            )
        return Example(configuration, dtype, arguments)


def crowded(x: torch.Tensor, w_router: torch.Tensor, favourite: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last channel is 2 in every token, and 32 in the favourite's row alone."""
    x, w_router = x.clone(), w_router.clone()
    x[..., -1], w_router[:, -1] = 2.0, 0.0
    w_router[favourite, -1] = 32.0
    return x, w_router


def certain_tokens(moe: Subject, example: Example) -> torch.Tensor:
    """Tokens (B,T) that every rounding within the bars sends to the same experts."""
    return certain(deciders(moe, example), example.top_k).reshape(example.x.shape[:-1])


def perhaps_used(moe: Subject, example: Example) -> torch.Tensor:
    """Experts (E,) that some token may be sent to, by some rounding within the bars."""
    used = torch.zeros(example.w_router.shape[0], dtype=torch.bool)
    for numbers in deciders(moe, example):
        kth = torch.sort(lowest(numbers), dim=-1, descending=True).values[..., example.top_k - 1 : example.top_k]
        used |= (highest(numbers) >= kth).any(0)
    return used


def agree(moe: Subject, example: Example) -> None:
    """The formula, at tokens whose routing is certain; of an implementation that turns tokens away, form alone."""
    out, want = moe(**example), moe.exact(**example)
    if moe.conventions["capacity"] == "drops":
        fact(
            bool(out.value.isfinite().all()),
            "an output is infinite or NaN",
            check="outputs are finite",
            decided=out.numel() > 0,
        )
        return
    sure = certain_tokens(moe, example)
    assert out[sure] == want[sure]


spec = Specification("moe", MoeCases())
conduct = add_conduct(spec, agree=agree)
KEEPS: dict[str, Any] = {"capacity": "none"}
SOFTMAX: dict[str, Any] = {"capacity": "none", "router": "softmax_of_topk"}


@spec.holds(
    "MOE-1",
    "E10",
    kills=(
        "not_renormalised",
        "raw_scores_as_weights",
        "sigmoid_weights",
        "unweighted",
        "dense_mixture",
        "lowest_chosen",
        "weights_reversed",
        "gate_and_up_swapped",
        "gelu_experts",
        "weight_on_input",
        "weight_squared",
        "residual_inside",
        "summed_over_tokens",
        "unchosen_leak",
        "renormalised_against_declaration",
        "shared_replaces_last_choice",
    ),
    conventions=KEEPS,
    rests_on=(conduct["form"],),
)
def output_is_the_formula(moe: Subject, example: Example) -> None:
    """A token's output is the sum of its K chosen experts' outputs for that token, each times its weight."""
    agree(moe, example)


@spec.holds(
    "MOE-3",
    kills=("ten_experts", "best_expert_alone", "lowest_chosen", "last_expert_not_read", "dense_mixture"),
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
    given={"E": (16, 8, 5), "K": (2, 1, 3), "shared": False, "family": ("integers", "normal")},
)
def best_experts_are_mixed(moe: Subject, example: Example) -> None:
    """Exactly the K experts of highest score are mixed, seen with experts that each give a value of their own."""
    experts, width = example.w_router.shape
    hidden = example.w_gate.shape[1]
    signs = torch.arange(1, experts + 1, dtype=example.dtype).reshape(-1, 1, 1)
    told = example.but(w_down=signs.expand(experts, width, hidden).contiguous())
    sure = certain_tokens(moe, told)
    assert moe(**told)[sure] == moe.exact(**told)[sure]


@spec.holds(
    "MOE-2",
    kills=(
        "not_renormalised",
        "raw_scores_as_weights",
        "sigmoid_weights",
        "unweighted",
        "weight_squared",
        "weight_on_input",
        "tokens_dropped",
    ),
    conventions=SOFTMAX,
    rests_on=(conduct["form"],),
    given={"family": ("integers", "normal", "positive")},
)
def equal_experts_give_one_experts_output(moe: Subject, example: Example) -> None:
    """Where all experts are equal the output is that of one of them: the weights sum to 1, whatever the routing."""
    same = {name: example[name][:1].expand_as(example[name]).contiguous() for name in EXPERT}
    alike = example.but(**same)
    alone = alike.but(w_router=example.w_router[:1], top_k=1, **{name: example[name][:1] for name in EXPERT})
    assert moe(**alike) == moe.exact(**alone)


@spec.holds(
    "MOE-4",
    kills=("unchosen_leak", "dense_mixture", "last_expert_not_read"),
    conventions={"capacity": "none", "repeatability": "bitwise"},
    rests_on=(conduct["form"],),
    given={"E": (8, 16), "K": (1, 2), "B": 1, "T": (1, 2, 3)},
)
def unchosen_experts_do_not_matter(moe: Subject, example: Example) -> None:
    """Replacing the weights of an expert that no token chose, by others and larger ones, leaves every output as it was."""
    unused = ~perhaps_used(moe, example)
    fresh = {name: _replaced(example, name, unused) for name in EXPERT}
    other = {name: _replaced(example, name, ~unused) for name in EXPERT}
    before = moe.values(**example)
    assert identical(
        moe.values(**example.but(**fresh)),
        before,
        witness=bool(unused.any()) and bool((moe.values(**example.but(**other)) != before).any()),
    )


def _replaced(example: Example, name: str, experts: torch.Tensor) -> torch.Tensor:
    """One of the experts' weights with those of some experts drawn anew, four times as large."""
    fresh = 4 * example.values(f"other {name}", *example[name].shape, family="normal")
    return torch.where(experts.reshape(-1, 1, 1), fresh, example[name])


@spec.holds(
    "MOE-4",
    kills=("unchosen_leak", "dense_mixture", "ten_experts"),
    gradient=True,
    conventions=KEEPS,
    rests_on=(conduct["form"],),
    given={"E": (8, 16), "K": (1, 2), "B": 1, "T": (1, 2, 3)},
)
def unchosen_experts_get_no_gradient(moe: Subject, example: Example) -> None:
    """An expert that no token chose gets gradient exactly 0."""
    gradients, unused = moe.gradients(**example, wrt=EXPERT), ~perhaps_used(moe, example)
    for name in EXPERT:
        value = gradients[name].value
        assert identical(value[unused], 0.0, witness=bool((value[~unused] != 0).any()))


@spec.holds(
    "MOE-5",
    kills=("weights_reversed", "best_expert_alone", "sigmoid_weights", "weight_squared"),
    conventions=SOFTMAX,
    rests_on=(conduct["form"],),
    given={"K": "E", "family": ("integers", "normal", "positive", "small"), "E": lambda size: size <= 4},
)
def all_experts_give_the_dense_mixture(moe: Subject, example: Example) -> None:
    """With K = E the output is the mixture of all experts by the softmax over all scores."""
    x = example.x.double()
    weights = torch.softmax(x @ example.w_router.double().T, -1)
    dense = sum(
        (
            weights[..., e, None] * expert(x, example.w_gate[e], example.w_up[e], example.w_down[e])
            for e in range(example.w_router.shape[0])
        ),
        torch.zeros_like(x),
    )
    if "shared" in example.arguments:
        dense = dense + expert(x, *example.shared)
    assert moe(**example) == dense


def expert(x: torch.Tensor, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor) -> torch.Tensor:
    """One expert in float64."""
    gate = torch.nn.functional.silu(x @ w_gate.double().T)
    return (gate * (x @ w_up.double().T)) @ w_down.double().T


@spec.holds(
    "MOE-5",
    kills=("raw_scores_as_weights", "not_renormalised", "sigmoid_weights"),
    conventions=SOFTMAX,
    rests_on=(conduct["form"],),
    given={"K": 1, "shared": False},
)
def one_expert_gives_its_own_output(moe: Subject, example: Example) -> None:
    """With K = 1 a token's output is that of its best expert, unweighted."""
    x, sure = example.x.double(), certain_tokens(moe, example)
    best = (x @ example.w_router.double().T).argmax(-1)
    every = torch.stack(
        [expert(x, example.w_gate[e], example.w_up[e], example.w_down[e]) for e in range(example.w_router.shape[0])],
        -2,
    )
    own = every.gather(-2, best[..., None, None].expand(*best.shape, 1, x.shape[-1])).squeeze(-2)
    assert moe(**example)[sure] == own[sure]


@spec.holds(
    "MOE-6",
    kills=("last_expert_not_read",),
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
    given={"E": lambda size: size > 1},
)
def permuting_experts_changes_nothing(moe: Subject, example: Example) -> None:
    """Permuting the experts together with the router's rows changes nothing."""
    order = example.permutation("experts", example.w_router.shape[0])
    turned = example.but(w_router=example.w_router[order], **{name: example[name][order] for name in EXPERT})
    sure = certain_tokens(moe, example) & certain_tokens(moe, turned)
    assert moe(**turned)[sure] == moe.exact(**example)[sure]


@spec.holds(
    "MOE-7",
    kills=(
        "order_not_restored",
        "routed_by_mean_token",
        "scores_depend_on_batch",
        "last_odd_token_dropped",
        "tokens_dropped",
        "lonely_token_skipped",
        "summed_over_tokens",
    ),
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
    given={"B": lambda size: size > 0},
)
def order_and_batch_do_not_matter(moe: Subject, example: Example) -> None:
    """A token has the same output in another order and in a batch of its own."""
    whole, sure, order = (
        moe.exact(**example),
        certain_tokens(moe, example),
        example.permutation("tokens", example.x.shape[1]),
    )
    turned = moe(**example.but(x=example.x[:, order]))
    assert turned[sure[:, order]] == whole[:, order][sure[:, order]]
    alone = moe(**example.but(x=example.x[:1, :1]))
    assert alone[sure[:1, :1]] == whole[:1, :1][sure[:1, :1]]


@spec.holds(
    "MOE-7",
    kills=("scores_depend_on_batch", "summed_over_tokens"),
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
    given={"B": 1, "T": lambda size: size > 1},
)
def other_tokens_do_not_matter(moe: Subject, example: Example) -> None:
    """Replacing the other tokens, by larger ones, leaves a token's output within the bound of what it was."""
    out, sure, other = moe(**example), certain_tokens(moe, example), example.x.clone()
    other[:, 1:] = other[:, 1:] * (4 if example.dtype == torch.float16 else 1024) + 1
    after = Bounded(moe.values(**example.but(x=other))[:, :1], out.bar[:, :1])
    assert after[sure[:, :1]] == out[:, :1][sure[:, :1]]


@spec.holds(
    "MOE-7",
    kills=("tokens_dropped", "last_odd_token_dropped"),
    conventions=KEEPS,
    rests_on=(conduct["form"],),
    given={"crowd": True, "E": lambda size: size > 1, "T": lambda size: size > 2, "K": (1, 2)},
)
def no_token_is_dropped(moe: Subject, example: Example) -> None:
    """Where all tokens want the same expert, all get it."""
    agree(moe, example)


@spec.holds(
    "MOE-8",
    kills=("shared_left_out", "shared_weighted", "shared_added_for_each"),
    needs=("shared",),
    rests_on=(conduct["form"],),
    given={"shared": True},
)
def shared_expert_is_added_once_and_unweighted(moe: Subject, example: Example) -> None:
    """The shared expert's output is added once, as it is: it alone is left where the routed experts give 0."""
    silent = example.but(w_down=torch.zeros_like(example.w_down))
    assert moe(**silent) == expert(example.x.double(), *example.shared)


@spec.holds(
    "MOE-9",
    kills=("every_expert_computes_all", "ten_experts", "dense_mixture"),
    conventions=KEEPS,
    dtypes=("float32",),
    given={"E": (8, 16), "K": (1, 2), "B": lambda size: size > 0, "F": (5, 8), "layout": "contiguous"},
)
def work_does_not_grow_with_experts(moe: Subject, example: Example) -> None:
    """Multiply-adds per token are K times an expert's, the shared expert's and C·E for the router, and no more."""
    tokens, width = example.x[..., 0].numel(), example.x.shape[-1]
    expert = 3 * width * example.w_gate.shape[1]
    experts = example.top_k + ("shared" in example.arguments)
    limit = tokens * (experts * expert + width * example.w_router.shape[0])
    counted = moe.counts(**example)["multiply_adds"]
    assert fact(
        counted <= limit,
        "there are more multiply-adds than the chosen experts need",
        got=f"{counted:,}",
        expected=f"at most {limit:,}",
        check="multiply-adds",
    )


# ------------------------------------------------------------------------------------------------ gradients
def certain_upstream(moe: Subject, example: Example) -> tuple[torch.Tensor]:
    """An upstream gradient that is 0 at tokens whose routing is not certain."""
    sure = certain_tokens(moe, example)
    (upstream,) = moe.upstream(**example)
    return (torch.where(sure.unsqueeze(-1), upstream, torch.zeros_like(upstream)),)


@spec.holds(
    "MOE-11",
    kills=("router_detached", "gradient_of_dense_softmax"),
    gradient=True,
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
    given={"E": lambda size: size > 2, "K": (2, 3)},
)
def router_gradient_comes_through_chosen_scores(moe: Subject, example: Example) -> None:
    """The router's gradient is that of the chosen scores alone."""
    up = certain_upstream(moe, example)
    got = moe.gradients(**example, wrt=("w_router",), upstream=up)
    assert got["w_router"] == moe.exact_gradients(**example, wrt=("w_router",), upstream=up)["w_router"]


@spec.holds(
    "MOE-5",
    "MOE-11",
    kills=("sigmoid_weights", "raw_scores_as_weights"),
    gradient=True,
    conventions=SOFTMAX,
    rests_on=(one_expert_gives_its_own_output,),
    given={"K": 1, "B": lambda size: size > 0},
)
def one_expert_gives_no_router_gradient(moe: Subject, example: Example) -> None:
    """With K = 1 the router's gradient is 0: a weight that is always 1 tells it nothing."""
    up = certain_upstream(moe, example)
    assert moe.gradients(**example, wrt=("w_router",), upstream=up)["w_router"].abs() <= 0.0


@spec.holds(
    "MOE-1",
    "MOE-4",
    kills=("router_input_detached", "expert_gradient_unweighted", "gate_and_up_swapped"),
    gradient=True,
    conventions=KEEPS,
    rests_on=(output_is_the_formula,),
)
def gradients_are_the_formula(moe: Subject, example: Example) -> None:
    """The gradients of tokens and experts are those of the mixture, with the choice held fixed."""
    up, names = certain_upstream(moe, example), ("x", *EXPERT)
    got = moe.gradients(**example, wrt=names, upstream=up)
    want = moe.exact_gradients(**example, wrt=names, upstream=up)
    for name in names:
        assert got[name] == want[name]


# ------------------------------------------------------------------------------------------------ Mixtral
MIXTRAL = {"C": 4096, "F": 14336, "L": 32, "E": 8, "K": 2, "G": 8, "D": 128, "V": 32000}


def parameters(sizes: dict[str, int], experts: int) -> int:
    """Parameters of a model of Mixtral's form that hold this many experts a layer."""
    width, layers = sizes["C"], sizes["L"]
    attention = 2 * width * width + 2 * width * sizes["G"] * sizes["D"]
    routed = experts * expert_parameters(width, sizes["F"]) + sizes["E"] * width
    return layers * (attention + routed + 2 * width) + width + 2 * sizes["V"] * width


def expert_parameters(width: int, hidden: int) -> int:
    """One expert is one layer's feed-forward network: gate, up and down."""
    return 3 * width * hidden


@spec.holds(
    "COST-3",
    "E16",
    kills=("ten_experts", "dense_mixture", "unchosen_leak"),
    gradient=True,
    conventions=KEEPS,
    rests_on=(unchosen_experts_get_no_gradient,),
    dtypes=("float32",),
    given={"E": (8, 16), "K": (1, 2), "B": 1, "T": 1, "shared": False, "family": ("normal", "positive")},
)
def a_token_uses_the_parameters_of_k_experts(moe: Subject, example: Example) -> None:
    """One token reaches K·3·C·F of the experts' E·3·C·F parameters: an expert is one feed-forward network, not a model.

    With Mixtral 8×7B's sizes that makes 46,702,792,704 parameters, 12,879,925,248 of them active: not 8 × 7 = 56 billion.
    """
    gradients = moe.gradients(**example, wrt=EXPERT)
    reached = torch.stack([gradients[name].value.flatten(1).count_nonzero(1) for name in EXPERT]).sum(0)
    one = expert_parameters(example.x.shape[-1], example.w_gate.shape[1])
    used, held = int((reached > 0).sum()), sum(example[name].numel() for name in EXPERT)
    assert fact(
        used <= example.top_k and int(reached.sum()) <= example.top_k * one,
        "a token reaches more parameters than those of K experts",
        got=f"{int(reached.sum())} parameters of {used} experts",
        expected=f"at most {example.top_k * one} of {held}",
        check="active parameters",
    )
    counted = parameters(MIXTRAL, MIXTRAL["E"]), parameters(MIXTRAL, MIXTRAL["K"])
    assert fact(
        counted == (46_702_792_704, 12_879_925_248),
        "Mixtral's parameters are miscounted",
        got=str(counted),
        expected="46,702,792,704 and 12,879,925,248",
        check="parameters of Mixtral 8×7B",
        decided=False,
    )
