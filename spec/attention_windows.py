"""What must hold of attention under a window of two sides, where it is offered: X-WIN-1, X-WIN-2.

The pair (left, right) is drawn as a window w = left + 1 of one side and a number of keys ahead.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import torch

from assay.cases import Configuration, Example, at_least
from assay.properties import Specification
from assay.spec.attention import alignment, conduct, output_is_the_formula
from assay.spec.attention_cases import AttentionCases, visible
from assay.spec.attention_masks import garbage, unchanged
from assay.subject import Subject


class TwoSidedCases(AttentionCases):
    """Attention's, with a pair for a window: neither side, one side or both as wide as the sequence, and narrower."""

    flags = {**AttentionCases.flags, "causal": (False, False, True, False), "window": (2, 1, 3, 5, 2, 17, 41),
             "ahead": (1, 2, 0, 3, 1, 16, 5, 40), "softcap": (None, None, 2.0),
             "mask": ("none", "shared", "none", "padding", "full", "empty_rows")}

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        flags = configuration.flags
        return super().build(configuration, dtype).but(window=(flags["window"] - 1, flags["ahead"]))


def seen(attention: Subject, example: Example) -> torch.Tensor:
    """Which keys each query may attend to (B,H,Tq,Tk)."""
    d, (left, right) = example.dims, example.window
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    back = torch.arange(d["Tq"])[:, None] + shift - torch.arange(d["Tk"])[None, :]
    return visible(example.without("window"), alignment(attention)) & (back <= left) & (back >= -right)


def moved(where: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> bool:
    """Whether an output `where` differs."""
    return bool((before[where] != after[where]).any())


SOME = {"B": at_least(1), "Tq": at_least(1), "Tk": at_least(1)}
PLAIN: dict[str, Any] = {**SOME, "mask": "none", "bias": "none", "causal": False}
SQUARE = {**PLAIN, "lengths": "equal", "Tk": (3, 2, 5, 8, 17, 33), "Tq": (3, 2, 5, 8, 17, 33)}
OFFERED = ("two_sided_window",)
spec = Specification("attention", TwoSidedCases())


@spec.holds("X-WIN-1", kills=(
    "pair_sides_swapped", "pair_right_side_ignored", "pair_right_side_open", "pair_left_side_open", "pair_taken_for_symmetric",
    "pair_left_one_too_wide", "pair_right_one_too_wide", "pair_left_counts_the_query", "pair_right_one_too_narrow",
    "pair_forgets_causal", "pair_forgets_the_mask", "pair_aligned_top_left", "pair_of_the_blocks_first_query"),
    rests_on=(conduct["form"], output_is_the_formula), needs=OFFERED)
def two_sided_output_is_the_formula(attention: Subject, example: Example) -> None:
    """Under a window (left, right) query i attends to the keys i−left … i+right that mask and causality leave."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("X-WIN-1", kills=("pair_left_one_too_wide", "pair_right_one_too_wide", "pair_left_counts_the_query",
                              "pair_right_one_too_narrow", "pair_taken_for_symmetric"),
            rests_on=(two_sided_output_is_the_formula,), needs=OFFERED, examples=6, given={**SOME, "softcap": None, "bias": "none"})
def equal_scores_give_the_mean_of_both_sides(attention: Subject, example: Example) -> None:
    """With q = 0 every output is the mean of exactly the values in the window: both of its ends can be counted."""
    d, see = example.dims, seen(attention, example).double()
    some = see.any(-1)
    v = example.v.double().repeat_interleave(d["H"] // d["G"], 1)
    mean = see @ v / see.sum(-1, keepdim=True).clamp_min(1)
    assert attention(**example.but(q=torch.zeros_like(example.q)))[some] == mean[some]


@spec.holds("X-WIN-1", kills=("pair_right_one_too_wide", "pair_right_side_open", "pair_left_side_open", "pair_left_one_too_wide"),
            rests_on=(two_sided_output_is_the_formula,), needs=OFFERED, examples=6,
            given={**PLAIN, "Tk": at_least(4), "window": (2, 1, 3), "ahead": (1, 0, 2)})
def keys_beyond_either_side_do_not_matter(attention: Subject, example: Example) -> None:
    """Changing a key and value just beyond either end of a query's window leaves its output equal, bit for bit."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    at = example.integer("query", 0, d["Tq"] - 1) + shift
    for key in (at - example.window[0] - 1, at + example.window[1] + 1):
        place = min(max(key, 0), d["Tk"] - 1)
        hidden = (torch.arange(d["Tk"]) == place).expand(d["B"], d["G"], d["Tk"])
        changed = example.but(k=garbage(example, "k", hidden), v=garbage(example, "v", hidden))
        blind = ~seen(attention, example)[..., place]
        assert unchanged(attention, example, changed, blind, partial(moved, ~blind))


@spec.holds("X-WIN-1", kills=("pair_left_counts_the_query", "pair_left_side_open", "pair_sides_swapped"), needs=OFFERED, examples=6,
            rests_on=(two_sided_output_is_the_formula,), given={**SOME, "ahead": 0, "window": (2, 3, 5)})
def nothing_ahead_is_the_window_of_one_side(attention: Subject, example: Example) -> None:
    """The window (w−1, 0) is the window w, which looks back alone."""
    assert attention(**example) == attention.exact(**example.but(window=example.window[0] + 1))


@spec.holds("X-WIN-1", kills=("pair_forgets_causal",), needs=("two_sided_window", "causal"), examples=6,
            given={**SOME, "causal": True, "Tk": at_least(2), "ahead": (1, 2, 3)})
def causality_cuts_off_the_right_side(attention: Subject, example: Example) -> None:
    """With causal, what lies ahead is hidden, whatever the window says of it."""
    assert attention(**example) == attention.exact(**example.but(window=(example.window[0], 0)))


@spec.holds("X-WIN-1", kills=("pair_right_side_ignored", "pair_aligned_top_left"), needs=OFFERED, examples=6,
            rests_on=(two_sided_output_is_the_formula,), given={**SOME, "causal": False, "Tk": at_least(2)})
def a_window_as_wide_as_both_sequences_hides_nothing(attention: Subject, example: Example) -> None:
    """A window that reaches every key from the nearest query to each end, and no further, is attention without a window."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    left, right = max(0, d["Tq"] - 1 + shift), max(0, d["Tk"] - 1 - shift)
    assert attention(**example.but(window=(left, right))) == attention.exact(**example.without("window"))


@spec.holds("X-WIN-1", kills=("pair_sides_swapped", "pair_taken_for_symmetric", "pair_right_side_ignored"), needs=OFFERED,
            examples=6, rests_on=(two_sided_output_is_the_formula,), given=SQUARE)
def reading_backwards_swaps_the_sides(attention: Subject, example: Example) -> None:
    """Queries and keys in reverse order under (right, left) give the outputs under (left, right) in reverse order."""
    left, right = example.window
    turned = example.but(window=(right, left), **{name: example[name].flip(-2) for name in ("q", "k", "v")})
    assert attention(**turned) == attention.exact(**example).flip(-2)


@spec.holds("X-WIN-2", kills=("pair_gradient_of_the_past_alone", "pair_sides_swapped", "pair_right_side_ignored"), gradient=True,
            rests_on=(two_sided_output_is_the_formula,), needs=OFFERED)
def two_sided_gradients_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of queries, keys and values come through the keys of the window alone, ahead and behind."""
    found, exact = attention.gradients(**example), attention.exact_gradients(**example)
    for name in ("v", "q", "k"):
        assert found[name] == exact[name]
