"""What must hold of one Transformer layer: BLK-1, BLK-2, MOE-10, PRE-1, RES-1, RES-2, and DEC-3 and MSK-1 of a layer."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Example
from assay.ledger import fact, identical, statistic
from assay.properties import Specification
from assay.spec import chance
from assay.spec.block_cases import SILENT_ATTENTION, SILENT_FEED, LayerCases, scaled, without_keys
from assay.spec.conduct import add_conduct
from assay.subject import Subject

spec = Specification("block", LayerCases())
conduct = add_conduct(spec)
ALPHA = 1e-9  # false alarms of one decision
SOME: dict[str, Any] = {"B": lambda size: size > 0}
SEVERAL: dict[str, Any] = {**SOME, "T": lambda size: size > 1}


@spec.holds("BLK-1", kills=("first_norm_for_both", "second_norm_left_out", "epsilon_fixed", "only_queries_normalised",
                            "feed_forward_adds_layer_input", "parallel_branches", "sublayers_swapped", "gate_and_up_swapped",
                            "activation_ignored", "mlp_biases_ignored", "causal_ignored", "always_causal", "mask_ignored",
                            "mask_replaces_causal", "positions_ignored", "positions_counted_anew", "groups_ignored",
                            "norm_ignored"), rests_on=(conduct["form"],))
def output_is_the_formula(block: Subject, example: Example) -> None:
    """A layer is x → norm → attention → add → norm → feed-forward network or experts → add, of the same shape."""
    assert block(**example) == block.exact(**example)


@spec.holds("MSK-9", "BLK-1", kills=("mask_of_one_token_ignored", "mask_without_keys_ignored"), rests_on=(output_is_the_formula,),
            needs=("mask", "padding", "empty_rows"), examples=3,
            given={"B": (1, 2), "T": (1, 2, 3), "placement": ("pre", "post"), "mask": "none"})
def tokens_without_keys_are_right(block: Subject, example: Example) -> None:
    """A token that sees no key gets nothing from attention but the output bias, also where it is the only one of its sequence."""
    for mask in without_keys(example.dims["B"], example.dims["T"], example.dims["T"]):
        hidden = example.but(mask=mask)
        assert block(**hidden) == block.exact(**hidden)


@spec.holds("BLK-1", kills=("residual_detached", "norm_weight_detached"), rests_on=(output_is_the_formula,), gradient=True,
            given=SOME)
def gradients_are_the_formula(block: Subject, example: Example) -> None:
    """The gradients of input and parameters are those of the formula."""
    got, want = block.gradients(**example), block.exact_gradients(**example)
    for name in got:
        assert got[name] == want[name]


@spec.holds("PRE-1", kills=("placement_ignored", "post_norm_of_branch", "sandwich_without_post_norm"), needs=("placement",),
            rests_on=(conduct["form"],), given={**SOME, "D": (4, 8), "family": ("normal", "heavy")}, examples=6)
def norm_stands_where_the_placement_says(block: Subject, example: Example) -> None:
    """Pre: x + f(norm(x)). Post: norm(x + f(x)). Sandwich: x + norm(f(norm(x))). Each is told from the others."""
    placement, params = example.get("placement", "pre"), dict(example.params)
    full = {**{f"{name}_post.{end.rpartition('.')[2]}": params[end] for name in ("norm1", "norm2")
               for end in (f"{name}.weight", f"{name}.bias") if end in params}, **params}
    here = example.but(params=full)
    out = block(**here)
    assert out == block.exact(**here)
    for other in {"pre", "post", "sandwich"} - {"post" if placement == "deepnorm" else placement}:
        assert out != block.exact(**here.but(placement=other))


@spec.holds("RES-1", kills=("attention_without_residual", "residual_added_twice"), rests_on=(conduct["form"],),
            given={**SOME, "placement": ("pre", "sandwich"), "biases": False, "mask": ("none", "padding", "full")})
def silent_branches_leave_the_stream_as_it_is(block: Subject, example: Example) -> None:
    """With the output weights of both branches at 0 the output is the input, bit for bit."""
    silent = example.but(params=scaled(example.params, (*SILENT_ATTENTION, *SILENT_FEED), 0.0))
    x = example.x.double()
    assert identical(block.values(**silent), x, witness=(block.values(**example), x))


@spec.holds("RES-2", kills=("residual_detached", "residual_added_twice"), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "placement": "pre", "biases": False, "mask": ("none", "padding", "full")})
def silent_branches_pass_the_gradient_as_it_is(block: Subject, example: Example) -> None:
    """∂out/∂x = I + J_f: with the output weights of both branches at 0 the gradient of x is the one from above, bit for bit."""
    silent = example.but(params=scaled(example.params, (*SILENT_ATTENTION, *SILENT_FEED), 0.0))
    (above,) = block.upstream(**silent)
    found, other = (block.answer(_wrt=("x",), _upstream=(above,), **one).gradients.get("x") for one in (silent, example))
    if found is None or other is None:
        fact(False, "no gradient reaches x", check="x has a gradient")
        return
    sure = block.exact_gradients(**silent)["x"].bar.isfinite()  # a norm's own slope may leave the range, and ∞ · 0 is no number
    assert identical(found.double()[sure], above.double()[sure], witness=(other.double()[sure], found.double()[sure]))


@spec.holds("RES-1", "RES-2", kills=("attention_without_residual", "feed_forward_adds_layer_input", "parallel_branches"),
            rests_on=(conduct["form"],), given={**SOME, "placement": ("pre", "sandwich")})
def each_branch_alone_is_added(block: Subject, example: Example) -> None:
    """With one branch silent the output is x plus the other branch, and nothing of the silent one is left."""
    for silent in (SILENT_ATTENTION, SILENT_FEED):
        alone = example.but(params=scaled(example.params, silent, 0.0))
        assert block(**alone) == block.exact(**alone)


@spec.holds("MOE-10", kills=("top_k_ignored", "two_experts_at_most", "second_norm_left_out", "first_norm_for_both",
                             "residual_added_twice"),
            needs=("top_k",), rests_on=(conduct["form"],), given={**SOME, "ffn": "moe", "placement": "pre", "mask": "none"})
def experts_are_added_to_the_stream(block: Subject, example: Example) -> None:
    """With silent attention the output is x + MoE(norm(x)), at tokens whose routing no rounding turns."""
    silent = example.but(params=scaled(example.params, SILENT_ATTENTION, 0.0))
    assert block(**silent) == block.exact(**silent)
    assert block(**example) == block.exact(**example)


# ------------------------------------------------------------------------------------------------ masks
@spec.holds("MSK-1", "DEC-2", kills=("causal_ignored", "mask_replaces_causal"), rests_on=(conduct["form"],), needs=("causal",),
            given={**SEVERAL, "causal": True, "ffn": ("swiglu", "mlp")}, conventions={"row_dependence": "none",
                                                                                     "repeatability": "bitwise"})
def later_tokens_do_not_matter(block: Subject, example: Example) -> None:
    """Replacing all tokens after t leaves every output up to t as it was, bit for bit, at every cut."""
    before, fresh = block.values(**example), example.values("later tokens", *example.x.shape, family="normal")
    for t in range(1, example.x.shape[1]):
        after = block.values(**example.but(x=torch.cat([example.x[:, :t], fresh[:, t:]], 1)))
        assert identical(after[:, :t], before[:, :t], witness=bool((after[:, t:] != before[:, t:]).any()))


@spec.holds("DEC-3", kills=("causal_ignored", "mask_ignored", "mask_replaces_causal"), needs=("causal", "mask"),
            rests_on=(conduct["form"],), given={**SEVERAL, "causal": True, "mask": "full"})
def decoder_layer_is_encoder_layer_with_causal_mask(block: Subject, example: Example) -> None:
    """The causal layer gives what the bidirectional layer gives with a lower-triangular mask, same weights."""
    length = example.x.shape[1]
    lower = torch.ones(length, length, dtype=torch.bool).tril().expand_as(example.mask)
    assert block(**example.without("mask")) == block.exact(**example.but(mask=lower, causal=False))
    assert block(**example.but(mask=lower, causal=False)) == block.exact(**example.without("mask"))
    assert block(**example) == block.exact(**example.but(mask=example.mask & lower, causal=False))


# ------------------------------------------------------------------------------------------------ dropout
DROPOUT: dict[str, Any] = {**SOME, "placement": "pre", "T": (8, 5), "H": (4,), "D": (8, 4), "F": (16,), "mask": "none",
                           "biases": False,
                           "family": ("normal", "positive")}


@spec.holds("BLK-2", kills=("dropout_in_evaluation", "dropout_ignored"), needs=("dropout", "training"), rests_on=(conduct["form"],),
            given=DROPOUT, conventions={"repeatability": "bitwise"})
def dropout_is_off_in_evaluation(block: Subject, example: Example) -> None:
    """In evaluation a rate of dropout changes nothing, bit for bit; in training it does."""
    calm, trained = block.values(**example), block.values(**example.but(dropout=0.5, training=True))
    assert fact(bool((calm != trained).any()), "dropout in training changed nothing", check="dropout acts in training")
    assert identical(block.values(**example.but(dropout=0.5)), calm, witness=(calm, trained))


@spec.holds("BLK-2", kills=("dropout_on_stream", "dropout_ignored"), needs=("dropout", "training", "seed"),
            rests_on=(conduct["form"],), given=DROPOUT, statistical=2 * ALPHA)
def dropped_elements_keep_the_stream(block: Subject, example: Example) -> None:
    """Dropout comes before the add: where an element of a branch is dropped the output is the input, bit for bit."""
    for silent in (SILENT_ATTENTION, SILENT_FEED):
        alone = example.but(params=scaled(example.params, silent, 0.0))
        x, calm = example.x.double(), block.values(**alone)
        out = block.values(**alone.but(dropout=0.5, training=True, seed=example.integer("dropout", 1, 1000)))
        moved = calm != x  # elements that the branch reaches at all
        stayed, count = int((out == x)[moved].sum()), int(moved.sum())
        assert statistic(too_few(stayed, count), ALPHA, text="too few elements are left to the stream as they are",
                         got=f"{stayed} of {count}", expected="half, or more where the branch has dropout inside")


def too_few(hits: int, trials: int) -> float:
    """Chance that a fair coin shows so few heads (Hoeffding's bound)."""
    short = trials / 2 - hits
    return math.exp(-2 * short * short / trials) if trials and short > 0 else 1.0


@spec.holds("BLK-2", kills=("dropout_unscaled",), needs=("dropout", "training", "seed"), rests_on=(conduct["form"],), given=DROPOUT,
            examples=3, statistical=ALPHA)
def kept_elements_are_scaled(block: Subject, example: Example) -> None:
    """Over many seeds a branch with dropout has the mean of the branch without: what is kept is divided by 1 − p.

    The branch is projected on its own calm output; sums over elements of one seed are one draw, and the test is Student's.
    """
    alone = example.but(params=scaled(example.params, SILENT_ATTENTION, 0.0))
    branch = block.values(**alone) - example.x.double()
    size = float((branch * branch).sum())
    shares = torch.tensor([float(((block.values(**alone.but(dropout=0.5, training=True, seed=seed)) - example.x.double()) * branch)
                                 .sum()) / size for seed in range(48)])
    assert statistic(chance.student(shares, 1.0), ALPHA, text="the mean over seeds is not the branch without dropout",
                     got=f"{float(shares.mean()):.3g} of it", expected="all of it")
