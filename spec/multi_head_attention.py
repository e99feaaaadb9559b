"""What must hold of multi-head attention: MHA-1 … MHA-8, MHA-10, MHA-12, masks, cross-attention. See `_relations` for more."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Example, at_least
from assay.ledger import Decision, equal, fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.multi_head_attention_cases import BIASES, MultiHeadCases, draw_weight, visible
from assay.subject import Subject

spec = Specification("multi_head_attention", MultiHeadCases())
conduct = add_conduct(spec)


SOME = {"B": at_least(1), "Tq": at_least(1), "Tk": at_least(1)}
PLAIN = {**SOME, "context": False, "values": False, "causal": False, "window": None, "key_mask": "none", "mask": "none",
         "w_gate": False, "positions": "none"}
KEPT = {**SOME, "key_mask": ("none", "right"), "mask": ("none", "shared", "batch"), "window": None, "causal": False}


def alignment(heads: Subject) -> str:
    return heads.conventions["causal_alignment"]


def seen(heads: Subject, example: Example) -> torch.Tensor:
    """Which queries see a key at all, (B,Tq)."""
    return visible(example, alignment(heads)).any(-1)


def of_head(example: Example, h: int) -> Example:
    """The call for one query head alone, without the output bias."""
    d, given = example.dims, example.arguments
    own = slice(h * d["D"], (h + 1) * d["D"])
    g = h * d["G"] // d["H"]
    shared = slice(g * d["D"], (g + 1) * d["D"])
    rows = {"w_q": own, "w_k": shared, "w_v": shared, "b_q": own, "b_k": shared, "b_v": shared, "w_gate": own}
    parts = {name: given[name][part] for name, part in rows.items() if name in given}
    return example.but(**parts, w_o=example.w_o[:, own], num_heads=1).without("num_kv_heads", "b_o")


@spec.holds("MHA-1", "XAT-1", "MSK-13", "E7", "E12", "E19", kills=(
    "heads_merged_without_swap", "heads_split_by_view", "split_and_merged_by_view", "heads_interleaved",
    "batch_and_heads_swapped", "fused_layout_mistaken", "gate_sigmoid_twice", "gate_left_out", "gate_linear",
    "gate_after_projection", "gate_per_head", "projection_left_out", "projection_transposed", "query_weight_transposed",
    "heads_averaged", "last_head_dropped", "keys_of_first_head", "scale_of_model_width",
    "values_ignored", "cross_attention_causal", "key_mask_ignored",
    "key_mask_inverted", "key_mask_replaces_mask",
    "mask_repeated_batch_major", "window_ignored", "window_one_too_wide", "window_discards_masks", "empty_row_gives_mean",
    "biases_ignored", "key_bias_on_values", "output_bias_per_head", "positions_ignored", "keys_not_turned", "values_turned",
    "halves_turned", "one_head_more", "input_added_without_projection"),
            rests_on=(conduct["form"],))
def output_is_the_formula(heads: Subject, example: Example) -> None:
    """Every output is the concatenation of all heads, gated, times w_oᵀ, plus b_o; head h is attention over its own slices."""
    assert heads(**example) == heads.exact(**example)


@spec.holds("MHA-4", "MHA-5", "GQA-1", kills=("heads_interleaved", "heads_averaged", "keys_of_first_head",
                                              "output_bias_per_head", "fused_layout_mistaken"),
            rests_on=(conduct["form"],), given=SOME)
def output_is_the_sum_over_heads(heads: Subject, example: Example) -> None:
    """One fused projection, split into heads, gives what H separate heads give, each times its slice of w_o, summed."""
    parts = [heads.exact(**of_head(example, h)) for h in range(example.dims["H"])]
    total = sum(parts[1:], parts[0])
    bias = example.arguments.get("b_o")
    assert heads(**example) == (total if bias is None else total + bias.double())


@spec.holds("MHA-7", kills=("projection_left_out", "projection_transposed", "query_weight_transposed", "key_mask_ignored",
                            "biases_ignored", "one_head_more"), rests_on=(conduct["form"],),
            given={**SOME, "H": 1, "w_gate": False, "positions": "none", "D": (2, 4, 3, 8)})
def one_head_is_attention_between_two_projections(heads: Subject, example: Example) -> None:
    """With H = 1 the layer is softmax(q·kᵀ/√D)·v between the projections of its inputs and of its output."""
    given = {name: value.double() for name, value in example.arguments.items()
             if isinstance(value, torch.Tensor) and value.is_floating_point()}
    source = given.get("context", given["x"])
    q, k, v = (one @ given[f"w_{n}"].T + given.get(f"b_{n}", 0) for n, one in
               (("q", given["x"]), ("k", source), ("v", given.get("values", source))))
    scores = (q @ k.mT / example.dims["D"] ** 0.5).masked_fill(~visible(example, alignment(heads)), -torch.inf)
    out = torch.softmax(scores, -1) @ v @ given["w_o"].T + given.get("b_o", 0)
    some = seen(heads, example)
    assert heads(**example)[some] == out[some]


@spec.holds("MHA-6", kills=("last_head_dropped", "heads_split_by_view", "mask_repeated_batch_major"), rests_on=(conduct["form"],),
            given={**SOME, "H": (2, 4, 3)})
def order_of_heads_does_not_matter(heads: Subject, example: Example) -> None:
    """Permuting the heads (groups, and heads within them), and the columns of w_o with them, changes nothing."""
    d, given = example.dims, example.arguments
    groups = example.permutation("groups", d["G"])
    within = example.permutation("within", d["H"] // d["G"])
    order = (groups[:, None] * len(within) + within).flatten()
    rows = (order[:, None] * d["D"] + torch.arange(d["D"])).flatten()
    shared = (groups[:, None] * d["D"] + torch.arange(d["D"])).flatten()
    places = {"w_q": rows, "b_q": rows, "w_gate": rows, "w_k": shared, "w_v": shared, "b_k": shared, "b_v": shared}
    moved = {name: given[name][place] for name, place in places.items() if name in given}
    assert heads(**example.but(**moved, w_o=example.w_o[:, rows])) == heads(**example)


@spec.holds("MHA-6", kills=("heads_averaged", "heads_split_by_view"), rests_on=(conduct["form"],),
            given={**SOME, "H": (2, 4, 3), "w_gate": (False, True)})
def a_head_depends_on_its_own_weights_alone(heads: Subject, example: Example) -> None:
    """With only one head's columns of w_o left, other weights for all other heads change nothing, bit for bit."""
    d, given = example.dims, example.arguments
    h = example.integer("head", 0, d["H"] - 1)
    own = torch.arange(d["H"] * d["D"]) // d["D"] == h
    shared = torch.arange(d["G"] * d["D"]) // d["D"] == h * d["G"] // d["H"]
    single = example.but(w_o=torch.where(own, example.w_o, torch.zeros_like(example.w_o)))
    changed = {}
    for name, mine in (("w_q", own), ("w_gate", own), ("w_k", shared), ("w_v", shared)):
        if name in given:
            other = draw_weight(tuple(given[name].shape), "normal", example.generator(f"other {name}"), example.dtype)
            changed[name] = torch.where(mine[:, None], given[name], other)
    reached = heads.exact(**example.but(**changed)).value != heads.exact(**example).value
    unchanged(heads, single, single.but(**changed), witness=bool(reached.any()))


def unchanged(heads: Subject, before: Example, after: Example, where: Any = ..., *, witness: bool) -> Decision:
    """Equal bit for bit; within the bar where rounding may depend on other rows or weights."""
    first, second = heads(**before), heads.values(**after)
    if heads.conventions["row_dependence"] == "rounding":
        return equal(Bounded(second[where], first.bar[where]), heads.exact(**before)[where])
    return identical(first.value[where], second[where], witness=witness)


@spec.holds("MHA-2", "MHA-3", kills=("head_width_from_model_width",), rests_on=(output_is_the_formula,),
            given={**PLAIN, "H": (1, 2, 3), "D": (2, 4)})
def head_width_is_that_of_the_weights(heads: Subject, example: Example) -> None:
    """Where w_q has H·D rows, D other than C/H, the output is the formula's, in x's shape, or the call is refused."""
    d = example.dims
    wide, width = d["H"] * d["D"] * 2, d["H"] * d["D"]
    shared = 2 * d["G"] * d["D"]
    made = {name: draw_weight(shape, "normal", example.generator(f"wide {name}"), example.dtype) for name, shape in (
        ("w_q", (wide, width)), ("w_k", (shared, width)), ("w_v", (shared, width)), ("w_o", (width, wide)))}
    other = example.but(**made).without(*BIASES)
    if heads.refused(**other):
        fact(True, "", check="refused")
        return
    assert heads(**other) == heads.exact(**other)


@spec.holds("MHA-3", kills=("uneven_heads_accepted",), rests_on=(conduct["form"],), given={**PLAIN, "H": (2, 4, 3), "D": (1, 2, 4)})
def heads_that_do_not_divide_are_refused(heads: Subject, example: Example) -> None:
    """A number of heads that does not divide the width is refused with a message."""
    width = example.dims["H"] * example.dims["D"]
    uneven = next(n for n in range(2, width + 2) if width % n)
    if not heads.declaration.allows("num_heads", uneven) or not heads.declaration.allows("H", uneven):
        fact(True, "", check="outside the declared limits", decided=False)
        return
    heads.refuses(**example.but(num_heads=uneven).without("num_kv_heads", *BIASES))


@spec.holds("MHA-8", kills=("heads_averaged", "projection_left_out"), rests_on=(conduct["form"],), dtypes=("float64", "float32"),
            given={**PLAIN, "Tq": 1, "Tk": 1, "H": (2, 4), "D": (1, 2, 4), "family": "normal", "b_v": False, "b_o": False})
def values_and_output_have_the_rank_of_the_heads(heads: Subject, example: Example) -> None:
    """One head's map from token to output has rank at most D; all heads together reach min(C, H·D).

    With T = 1 every weight is 1, so a batch of unit tokens reads out the map. A singular value moves by at most the norm
    of the error, so both decisions follow from the bars.
    """
    d = example.dims
    width = d["H"] * d["D"]
    tokens = torch.eye(width, dtype=example.dtype)[:, None, :]
    probe = example.but(x=tokens)
    first = torch.arange(width) < d["D"]
    one = heads(**probe.but(w_o=torch.where(first, example.w_o, torch.zeros_like(example.w_o))))[:, 0]
    beyond = torch.linalg.svdvals(one.value)[d["D"]:]
    slack = float(one.bar.norm())
    fact(bool((beyond <= slack).all()), "one head's map has a rank above D", got=str(beyond.tolist()),
         expected=f"at most {slack:.3g}", check="rank of one head", decided=bool(torch.linalg.svdvals(one.value)[0] > 2 * slack))
    every = heads(**probe)[:, 0]
    exact = torch.linalg.svdvals(heads.exact(**probe).value[:, 0])
    slack, rank = float(every.bar.norm()), min(width, d["G"] * d["D"])
    full = bool(exact[rank - 1] > 2 * slack)
    fact(not full or bool(torch.linalg.svdvals(every.value)[rank - 1] > slack), f"all heads together have a rank below {rank}",
         check="rank of all heads", decided=full)


@spec.holds("MHA-10", kills=("gate_left_out", "gate_linear", "gate_sigmoid_twice", "gate_after_projection"),
            rests_on=(conduct["form"],), needs=("w_gate", "b_o"), given={**SOME, "w_gate": True, "b_o": True})
def gate_opens_and_closes(heads: Subject, example: Example) -> None:
    """A wide open gate (σ = 1) gives the layer without a gate, a closed one (σ = 0) gives b_o alone."""
    x = example.x.clone()
    x[..., 0] = 8.0
    zeroed = {name: example[name].clone() for name in ("w_q", "w_k", "w_v")}
    for weight in zeroed.values():
        weight[:, 0] = 0.0  # the channel that drives the gate stays out of the heads
    gate = torch.zeros_like(example.w_gate)
    gate[:, 0] = 16.0
    driven = example.but(x=x, **zeroed)
    assert heads(**driven.but(w_gate=gate)) == heads.exact(**driven.without("w_gate"))
    some = seen(heads, example)
    shut = heads(**driven.but(w_gate=-gate))
    assert shut[some] == heads.exact(**driven.but(w_gate=-gate))[some]


@spec.holds("MHA-12", "GQA-5", kills=("key_weight_detached", "output_gradient_of_first_sample", "context_detached",
                                      "grouped_gradient_averaged"), rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(heads: Subject, example: Example) -> None:
    """Gradients of x, context and all weights are those of the formula, for any upstream gradient."""
    if heads.conventions["empty_row"] != "zeros" and not bool(seen(heads, example).all()):
        fact(True, "", check="a row without keys has no gradient to speak of", decided=False)
        return
    found, exact = heads.gradients(**example), heads.exact_gradients(**example)
    for name, value in found.items():
        assert value == exact[name]
