"""What must hold of `qk_norm_attention(q, k, v, w_q, w_k, *, eps, joint, positions, …)`: X-QKN-1 … X-QKN-4."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import equal, fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.attention_cases import draw_operands, visible, within_budget
from assay.spec.conduct import add_conduct, nothing_upstream
from assay.subject import Subject

EPS = (1e-6, 1e-5, 0.5, 1e-3)


class QkNormCases(Cases):
    """Lengths as attention has them; a norm of each head or of all together; without positions, by index, from an offset, and of
    each sequence's own; eps far below and beside the mean squares."""

    kind = "qk_norm_attention"
    dims = {
        "B": (1, 2, 3, 0), "H": (2, 1, 4, 3), "G": (1, 2, 3, 4), "Tq": (3, 1, 2, 4, 5, 8, 17, 0),
        "Tk": (3, 2, 1, 4, 5, 8, 16, 17, 33, 0), "D": (4, 2, 1, 3, 8, 16, 64), "Dv": (2, 1, 3, 4, 8, 16),
    }
    flags = {"joint": (False, True), "positions": ("none", "index", "offset", "batch", "index"), "causal": (False, True, True),
             "pairing": ("interleaved", "half"), "eps": EPS, "base": (10000.0, 100.0), "window": (None, 2, 1, 3),
             "scale": (None, 0.5, None, 0.3), "lengths": ("free", "equal")}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if "eps" not in claims.keywords:
            flags["eps"] = claims.conventions["eps"]
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        if flags["positions"] != "none":
            dims["D"] += dims["D"] % 2
        square = not claims.claims("cross_lengths") or flags["lengths"] == "equal" or flags["positions"] != "none"
        dims = within_budget(dims, claims)
        if square:
            dims["Tq"] = dims["Tk"] = min(dims["Tq"], dims["Tk"])
        if flags["positions"] != "none" and dims["D"] % 2:
            dims["D"] = max(2, dims["D"] - 1)
            dims["Dv"] = dims["Dv"] if claims.claims("value_width") else dims["D"]
        if not claims.claims("empty_rows"):
            dims["Tk"] = max(1, dims["Tk"])
            dims["Tq"] = dims["Tk"] if square else min(dims["Tq"], dims["Tk"])
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        wide = {"w_q": d["H"], "w_k": d["G"]} if flags["joint"] else {"w_q": 1, "w_k": 1}
        arguments: dict[str, Any] = {
            **draw_operands(configuration, dtype),
            **{name: draw_values("normal", (times * d["D"],), generator(seed, name), dtype) for name, times in wide.items()},
            "eps": flags["eps"],
        }
        if flags["joint"]:
            arguments["joint"] = True
        if flags["positions"] != "none":
            arguments["positions"] = draw_positions(flags["positions"], d["B"], d["Tk"], generator(seed, "positions"))
            arguments |= {name: flags[name] for name, usual in (("pairing", "interleaved"), ("base", 10000.0))
                          if flags[name] != usual}
        arguments |= {name: flags[name] for name in ("window", "scale") if flags[name] is not None}
        if flags["causal"]:
            arguments["causal"] = True
        return Example(configuration, dtype, arguments)


def draw_positions(sort: str, batch: int, length: int, source: torch.Generator) -> torch.Tensor:
    """0, 1, 2, …; the same from a later one on; or each sequence's own, in any order (B,T)."""
    index = torch.arange(length)
    if sort == "index":
        return index
    if sort == "offset":
        return index + int(torch.randint(1, 20, (), generator=source))
    return torch.randint(0, 20, (batch, length), generator=source)


SOME: dict[str, Any] = {"B": at_least(1), "Tq": at_least(1), "Tk": at_least(1)}
PLAIN = {**SOME, "causal": False, "window": None}
TURNED = ("index", "offset", "batch")
LONG = (3, 2, 4, 5, 8, 17)
spec = Specification("qk_norm_attention", QkNormCases())
conduct = add_conduct(spec)


@spec.holds("X-QKN-1", kills=(
    "no_norm", "queries_not_normalised", "keys_not_normalised", "values_normalised_too", "norm_over_positions", "norm_over_heads",
    "joint_where_each_is_meant", "each_where_joint_is_meant", "joint_weights_of_first_head", "joint_weights_transposed",
    "mean_subtracted", "divided_by_length", "root_left_out", "mean_of_sizes", "eps_outside_the_root", "eps_fixed",
    "eps_left_out_for_keys", "query_weight_on_keys", "weights_swapped", "weights_ignored", "weight_offset_by_one",
    "weight_before_the_norm", "weights_without_sign", "norm_after_rotary", "keys_turned_first", "keys_not_turned",
    "positions_ignored", "keys_turned_backwards", "keys_turned_by_index", "base_ignored", "pairing_exchanged", "unscaled",
    "scale_ignored", "scaled_before_the_norm", "causal_strict", "causal_ignored", "window_one_too_wide", "grouped_heads_tiled",
    "last_key_dropped", "negated", "zeros"), rests_on=(conduct["form"],))
def output_is_the_formula(attention: Subject, example: Example) -> None:
    """Queries and keys are divided by their root mean square, weighed, turned where they have positions, and then attended."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("X-QKN-1", kills=("no_norm", "queries_not_normalised", "keys_not_normalised", "eps_outside_the_root", "eps_fixed",
                              "root_left_out", "mean_of_sizes"),
            rests_on=(conduct["form"],), needs=("eps",), examples=8,
            given={**SOME, "eps": (0.5, 1e-3), "family": ("integers", "normal", "positive")})
def lengths_of_queries_and_keys_do_not_matter(attention: Subject, example: Example) -> None:
    """Queries and keys four times as long, and eps sixteen times as large, give the same: the norm takes lengths out."""
    if not attention.declaration.allows("eps", 16 * example.eps):
        fact(True, "", decided=False, check="eps may be chosen")
        return
    longer = example.but(q=4 * example.q, k=4 * example.k, eps=16 * example.eps)
    assert attention(**longer) == attention.exact(**example)


@spec.holds("X-QKN-1", kills=("joint_where_each_is_meant", "norm_over_heads"), rests_on=(output_is_the_formula,), examples=8,
            given={**SOME, "joint": False, "H": (2, 4, 3), "G": (2, 4, 3)}, conventions={"row_dependence": "none"})
def each_head_is_normalised_by_itself(attention: Subject, example: Example) -> None:
    """Other queries in one head leave the outputs of all other heads as they were, in every bit."""
    head = example.integer("head", 0, example.dims["H"] - 1)
    q = example.q.clone()
    q[:, head] = -2 * q[:, head] + 1
    before, after = attention(**example), attention(**example.but(q=q))
    others = torch.arange(example.dims["H"]) != head
    assert identical(after.value[:, others], before.value[:, others], witness=(before[:, head], after[:, head]))


@spec.holds("X-QKN-2", kills=("each_where_joint_is_meant", "joint_weights_of_first_head", "joint_weights_transposed"),
            rests_on=(conduct["form"],), needs=("joint",), examples=8,
            given={**SOME, "joint": True, "H": (2, 4, 3), "D": at_least(2), "family": ("integers", "normal", "positive", "peaked")})
def a_joint_norm_is_over_all_heads(attention: Subject, example: Example) -> None:
    """With `joint` all heads of a token share one root mean square, and every channel of every head has its own weight."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("X-QKN-1", kills=("weight_offset_by_one", "weights_ignored"), rests_on=(conduct["form"],), examples=8,
            given={**SOME, "family": ("integers", "normal", "positive")})
def a_weight_of_zero_makes_all_scores_equal(attention: Subject, example: Example) -> None:
    """With a query weight of zeros every output is the mean of the values that are seen."""
    d, see = example.dims, visible(example, attention.conventions["causal_alignment"]).double()
    some = see.any(-1)
    mean = see @ example.v.double().repeat_interleave(d["H"] // d["G"], 1) / see.sum(-1, keepdim=True).clamp_min(1)
    assert attention(**example.but(w_q=0 * example.w_q))[some] == mean[some]


@spec.holds("X-QKN-1", kills=("weight_offset_by_one", "query_weight_on_keys", "weight_before_the_norm"),
            rests_on=(output_is_the_formula,), examples=8, given={**SOME, "family": ("integers", "normal", "positive", "small")})
def weights_trade_a_factor(attention: Subject, example: Example) -> None:
    """A query weight twice as large and a key weight half as large give the same."""
    assert attention(**example.but(w_q=2 * example.w_q, w_k=example.w_k / 2)) == attention.exact(**example)


@spec.holds("X-QKN-1", kills=("unscaled", "scaled_before_the_norm"), rests_on=(conduct["form"],), examples=8, needs=("scale",),
            given={**SOME, "scale": None, "D": (4, 2, 8, 16, 64), "family": ("integers", "normal", "positive")})
def the_scale_is_still_one_over_the_root_of_the_width(attention: Subject, example: Example) -> None:
    """Without a given scale it is 1/√D, as if nothing were normalised, and it multiplies after the norm."""
    assert attention(**example) == attention.exact(**example.but(scale=example.dims["D"] ** -0.5))


@spec.holds("X-QKN-3", kills=("norm_after_rotary", "keys_turned_first", "weights_swapped"), rests_on=(conduct["form"],), examples=8,
            needs=("positions",), given={**SOME, "positions": TURNED, "Tk": LONG, "D": (4, 2, 8, 16),
                                         "family": ("integers", "normal", "positive")})
def the_norm_comes_before_the_turn(attention: Subject, example: Example) -> None:
    """Weights belong to channels as they were before the turn: it is the weighed queries and keys that are turned."""
    rotary, norm = registry.reference("rotary").rotary, registry.reference("qk_norm_attention").normalised
    options = {name: example.arguments.get(name, attention.conventions.get(name)) for name in ("pairing", "base")}
    options = {name: value for name, value in options.items() if value is not None}
    turned = {x: rotary(norm(example[x].double(), example[w].double(), example.eps, bool(example.arguments.get("joint"))),
                        example.positions, **options) for x, w in (("q", "w_q"), ("k", "w_k"))}
    kept = {name: example[name] for name in ("causal", "window", "scale") if name in example}
    plain = registry.reference("attention").attention(turned["q"], turned["k"], example.v.double(), **kept,
                                                      causal_alignment=attention.conventions["causal_alignment"])
    if example.dtype == torch.float64:  # the helper's own roundings are those of the type under test
        assert attention(**example) == attention.exact(**example)
    else:
        assert attention(**example) == plain


@spec.holds("X-QKN-3", kills=("keys_not_turned", "keys_turned_backwards", "keys_turned_by_index"), rests_on=(conduct["form"],),
            examples=8, needs=("positions",), given={**SOME, "positions": TURNED, "Tk": LONG, "D": (4, 2, 8, 16)})
def only_distances_of_positions_matter(attention: Subject, example: Example) -> None:
    """Five added to every position changes nothing."""
    assert attention(**example.but(positions=example.positions + 5)) == attention(**example)


@spec.holds("X-QKN-1", kills=("values_normalised_too",), rests_on=(conduct["form"],), examples=8, given=SOME)
def values_are_not_normalised(attention: Subject, example: Example) -> None:
    """Where every key holds the same values, those come out, whatever their length."""
    d = example.dims
    row = (torch.arange(d["Dv"]) % 5 + 1).to(example.dtype)
    out = attention(**example.but(v=row.expand(d["B"], d["G"], d["Tk"], d["Dv"]).clone()))
    some = visible(example, attention.conventions["causal_alignment"]).any(-1)
    assert out[some] == row.double()


@spec.holds("X-QKN-1", kills=("norm_over_positions", "last_key_dropped"), rests_on=(conduct["form"],), examples=8,
            given={**PLAIN, "positions": "none", "Tk": at_least(2)})
def order_of_keys_does_not_matter(attention: Subject, example: Example) -> None:
    """Permuting keys and values together changes nothing; a key's norm is its own."""
    shuffle = example.permutation("keys", example.dims["Tk"])
    moved = example.but(k=example.k[:, :, shuffle], v=example.v[:, :, shuffle])
    assert attention(**moved) == attention.exact(**example)


@spec.holds("X-QKN-1", kills=("causal_ignored", "norm_over_positions"), rests_on=(conduct["form"],), examples=8, needs=("causal",),
            given={**SOME, "causal": True, "lengths": "equal", "Tk": (3, 2, 5, 8, 17), "Tq": (3, 2, 5, 8, 17)})
def later_tokens_do_not_matter(attention: Subject, example: Example) -> None:
    """With causal, another last token leaves all earlier rows as they were, in every bit."""
    k, v, q = example.k.clone(), example.v.clone(), example.q.clone()
    for one in (q, k, v):
        one[:, :, -1] = -2 * one[:, :, -1] + 1
    before, after = attention(**example), attention(**example.but(q=q, k=k, v=v))
    if attention.conventions["row_dependence"] == "rounding":
        assert equal(Bounded(after.value[:, :, :-1], before.bar[:, :, :-1]), attention.exact(**example)[:, :, :-1])
        return
    assert identical(after.value[:, :, :-1], before.value[:, :, :-1], witness=(before[:, :, -1:], after[:, :, -1:]))


@spec.holds("X-QKN-1", kills=("grouped_heads_tiled",), rests_on=(conduct["form"],), needs=("gqa",), examples=8,
            given={"H": 4, "G": 2, "joint": False, **SOME})
def grouped_heads_share_keys_in_blocks(attention: Subject, example: Example) -> None:
    """Query heads that share a key head give what each gives with a copy of it, in blocks."""
    times = example.dims["H"] // example.dims["G"]
    repeated = example.but(k=example.k.repeat_interleave(times, 1), v=example.v.repeat_interleave(times, 1))
    assert attention(**example) == attention.exact(**repeated)


@spec.holds("X-QKN-1", kills=("empty_row_nan",), rests_on=(conduct["form"],), needs=("empty_rows", "cross_lengths", "causal"),
            examples=8, given={"causal": True, "lengths": "free", "positions": "none", "B": at_least(1), "Tq": (3, 5, 8, 17),
                               "Tk": (2, 1, 4)}, conventions={"causal_alignment": "bottom_right"})
def queries_without_keys_give_zeros(attention: Subject, example: Example) -> None:
    """A query that sees no key gives zeros, and no NaN."""
    empty = ~visible(example).any(-1)
    out = attention(**example).value
    assert identical(out[empty], 0.0, witness=bool((out != 0).any()))


# ------------------------------------------------------------------------------------------------ gradients
@spec.holds("X-QKN-4", kills=("root_detached", "key_gradient_not_turned_back", "upstream_taken_for_ones",
                              "grouped_key_gradient_not_summed"), gradient=True, rests_on=(output_is_the_formula,))
def gradients_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of queries, keys and values are those of the formula, through the root mean square too."""
    found = attention.gradients(**example, wrt=("q", "k", "v"))
    exact = attention.exact_gradients(**example, wrt=("q", "k", "v"))
    for name in ("v", "q", "k"):
        assert found[name] == exact[name]


@spec.holds("X-QKN-4", kills=("query_weight_detached", "key_weight_detached", "weight_gradient_of_one_sample",
                              "weight_gradient_of_one_head", "weight_gradient_averaged", "weight_gradients_swapped",
                              "upstream_taken_for_ones"), gradient=True, rests_on=(output_is_the_formula,), given=SOME)
def gradients_of_the_weights_sum_over_all_that_share_them(attention: Subject, example: Example) -> None:
    """A weight's gradient is the sum over every sample, every token and every head that it multiplies."""
    found = attention.gradients(**example, wrt=("w_q", "w_k"))
    exact = attention.exact_gradients(**example, wrt=("w_q", "w_k"))
    for name in ("w_q", "w_k"):
        assert found[name] == exact[name]


@spec.holds("X-QKN-4", kills=("upstream_taken_for_ones",), rests_on=(conduct["form"],), gradient=True, examples=8, given=SOME)
def no_upstream_gradient_gives_none(attention: Subject, example: Example) -> None:
    """An upstream gradient of zeros gives gradients of exactly zero."""
    nothing_upstream(attention, example)
