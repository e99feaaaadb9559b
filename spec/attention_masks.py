"""What must hold of attention's masks, values and gradients: MSK-1 … MSK-12, SWA-1, SWA-2."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from assay.cases import Example, at_least
from assay.ledger import Decision, equal, fact, identical, provably_differ
from assay.numbers.bound import Bounded
from assay.spec.attention import NO_EMPTY, alignment, conduct, output_is_the_formula, spec, weights
from assay.spec.attention_cases import visible
from assay.subject import Subject


def unchanged(attention: Subject, before: Example, after: Example, where: Any, witness: Callable[[Any, Any], bool]) -> Decision:
    """The outputs `where` are equal bit for bit; within the bar where the implementation declares that rounding may depend on
    other rows."""
    first, second = attention(**before), attention.values(**after)
    if second.shape != first.shape:
        return fact(False, f"the output has shape {tuple(second.shape)}", check="shape of the output")
    if attention.conventions["row_dependence"] == "rounding":
        return equal(Bounded(second[where], first.bar[where]), attention.exact(**before)[where])
    return identical(first.value[where], second[where], witness=witness(first.value, second))


def garbage(example: Example, name: str, hidden: torch.Tensor) -> torch.Tensor:
    """The argument with its hidden key rows (B,G,Tk) replaced by other finite values, up to a thousand times larger: as large
    as keeps every score finite in the type under test."""
    value: torch.Tensor = example[name]
    other = example.values(f"garbage {name}", *value.shape, family="normal")
    reach = example.q.double().abs().sum(-1).amax().clamp_min(1) * other.double().abs().amax().clamp_min(1)
    room = torch.finfo(example.dtype).max / (8 * float(reach) * max(1.0, abs(example.arguments.get("scale") or 1.0)))
    factor = 2.0 ** math.floor(math.log2(min(1024.0, room)))
    return torch.where(hidden[..., None], other * factor, value)


CAUSAL = {**NO_EMPTY, "causal": True, "mask": ("none", "shared"), "bias": ("none", "shared"), "window": (None, 2, 4),
          "Tk": at_least(2)}


@spec.holds("MSK-1", kills=("causal_sees_next", "causal_ignored_with_mask", "causal_keeps_future", "causal_in_groups_of_four",
                            "causal_ignored_without_mask"), rests_on=(conduct["form"],),
            needs=("causal",), given=CAUSAL)
def future_is_invisible(attention: Subject, example: Example) -> None:
    """Replacing every key and value after a position by other finite values leaves the outputs up to it equal, bit for bit."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    cut = example.integer("cut", 0, d["Tk"] - 2)  # the last key that stays
    hidden = (torch.arange(d["Tk"]) > cut).expand(d["B"], d["G"], d["Tk"])
    changed = example.but(k=garbage(example, "k", hidden), v=garbage(example, "v", hidden))
    rows = max(0, min(d["Tq"], cut - shift + 1))
    assert unchanged(attention, example, changed, (slice(None), slice(None), slice(rows)),
                     lambda before, after: rows == d["Tq"] or bool((before[:, :, rows:] != after[:, :, rows:]).any()))


@spec.holds("MSK-2", kills=("gradient_leaks_a_little", "gradient_without_masks", "causal_sees_next"),
            rests_on=(conduct["form"],), needs=("causal",), gradient=True, given=CAUSAL)
def future_gets_no_gradient(attention: Subject, example: Example) -> None:
    """The gradient of an output with respect to every later key and value is exactly 0."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    row = example.integer("row", 0, d["Tq"] - 1)
    (up,) = attention.upstream(**example)
    up = torch.where((torch.arange(d["Tq"]) == row)[:, None], up, torch.zeros_like(up))
    found = attention.gradients(**example, wrt=("k", "v"), upstream=(up,))
    last = max(0, min(d["Tk"], row + shift + 1))
    for name in ("k", "v"):
        past, future = found[name].value[:, :, :last], found[name].value[:, :, last:]
        assert identical(future, 0.0, witness=bool((past != 0).any()) or last == 0)


PADDED = {**NO_EMPTY, "mask": ("padding", "shared", "padding", "full", "padding"), "Tk": at_least(2), "bias": ("none", "shared")}


def unseen(attention: Subject, example: Example) -> torch.Tensor:
    """Keys that no query of any head of their group may attend to (B,G,Tk)."""
    d = example.dims
    seen = visible(example, alignment(attention)).any(-2)
    return ~seen.unflatten(1, (d["G"], d["H"] // d["G"])).any(2)


@spec.holds("MSK-4", kills=("mask_ignored", "mask_inverted", "masked_values_leak", "mask_of_first_sample"),
            rests_on=(conduct["form"],), needs=("mask",), given=PADDED)
def hidden_keys_do_not_matter(attention: Subject, example: Example) -> None:
    """A key that no query may attend to can hold any finite key and value: no output changes, bit for bit."""
    hidden = unseen(attention, example)
    changed = example.but(k=garbage(example, "k", hidden), v=garbage(example, "v", hidden))
    other = example.but(v=example.values("other values", *example.v.shape, family="normal"))
    reached = bool(hidden.any()) and provably_differ(attention.exact(**other), attention.exact(**example))
    assert unchanged(attention, example, changed, ..., lambda before, after: reached)


@spec.holds("MSK-3", "MSK-4", "E5", kills=("finite_sentinel_ten_thousand", "finite_sentinel_hundred_thousand",
                                         "additive_ten_thousand"), rests_on=(conduct["form"],), needs=("mask",),
            given={**PADDED, "mask": ("padding", "shared", "full"), "bias": "none", "softcap": None, "D": (1, 16), "scale": None,
                   "causal": False, "window": None})
def hidden_keys_stay_hidden_below_any_score(attention: Subject, example: Example) -> None:
    """However negative the visible scores are (−2¹⁷; −2¹⁵ in float16), a hidden key gets no weight: a finite sentinel would."""
    d = example.dims
    q, k = torch.zeros_like(example.q), torch.zeros_like(example.k)
    q[..., 0] = 2.0 ** (7 if example.dtype == torch.float16 else 9)
    k[..., 0] = -(2.0**8) * d["D"] ** 0.5
    k[unseen(attention, example)] = 0  # scores far above those of the visible keys: an addend cannot hide them
    some = visible(example, alignment(attention)).any(-1)
    low = example.but(q=q, k=k)
    assert attention(**low)[some] == attention.exact(**low)[some]


@spec.holds("MSK-4", kills=("gradient_without_masks", "gradient_leaks_a_little", "mask_ignored", "mask_after_softmax"),
            rests_on=(conduct["form"],), needs=("mask",), gradient=True, given=PADDED)
def hidden_keys_get_no_gradient(attention: Subject, example: Example) -> None:
    """A key that no query may attend to gets gradient exactly 0 in k and v."""
    hidden = unseen(attention, example)
    found = attention.gradients(**example, wrt=("k", "v"))
    for name in ("k", "v"):
        value = found[name].value
        assert identical(value[hidden], 0.0, witness=bool((value[~hidden] != 0).any()) and bool(hidden.any()))


@spec.holds("MSK-1", "MSK-4", "MSK-11", "SWA-1", "E25", kills=(
    "causal_strict", "causal_sees_next", "window_one_too_wide", "window_looks_ahead", "window_ignored_unless_causal",
    "window_counts_visible_keys", "mask_ignored_with_window", "masks_combined_by_or", "last_mask_bit_not_read",
    "mask_of_first_head", "mask_repeated_batch_major", "causal_top_left"), rests_on=(conduct["form"],),
            given={**NO_EMPTY, "Tk": at_least(2), "family": ("integers", "normal", "small", "positive")})
def exactly_the_visible_keys_get_weight(attention: Subject, example: Example) -> None:
    """Weights, read out with identity values, are exactly 0 where mask, causal, window or bias hide a key, and not 0 elsewhere."""
    found, see = weights(attention, example), visible(example, alignment(attention))
    some = see.any(-1, keepdim=True)
    shown = found[see]
    assert identical(found.value[~see & some], 0.0, witness=bool((shown.value != 0).any()))
    assert shown == attention_weights_exact(attention, example)[see]


def attention_weights_exact(attention: Subject, example: Example) -> torch.Tensor:
    """The formula's own weights, with a bar of zero."""
    d = example.dims
    eye = torch.eye(d["Tk"], dtype=example.dtype).expand(d["B"], d["G"], d["Tk"], d["Tk"])
    found: torch.Tensor = attention.exact(**example.but(v=eye.clone()))
    return found


@spec.holds("MSK-11", "SWA-1", kills=("causal_strict", "window_one_too_wide", "window_one_too_narrow", "mean_for_sum",
                                      "last_key_of_odd_length_dropped", "tail_of_16_unmasked"), rests_on=(conduct["form"],),
            given={**NO_EMPTY, "softcap": None, "bias": "none"})
def equal_scores_give_the_mean_of_visible_values(attention: Subject, example: Example) -> None:
    """With q = 0 every output is the mean of exactly the visible values: the window and the diagonal can be counted."""
    see = visible(example, alignment(attention))
    some = see.any(-1)
    d = example.dims
    v = example.v.double().repeat_interleave(d["H"] // d["G"], 1)
    mean = see.double() @ v / see.sum(-1, keepdim=True).clamp_min(1)
    assert attention(**example.but(q=torch.zeros_like(example.q)))[some] == mean[some]


@spec.holds("MSK-8", kills=("causal_strict", "causal_sees_next"), rests_on=(conduct["form"],), needs=("causal",),
            given={**NO_EMPTY, "causal": True, "mask": "none", "bias": ("none", "shared"), "Tq": "Tk", "Tk": at_least(2)})
def first_query_gets_the_first_value(attention: Subject, example: Example) -> None:
    """Under a causal mask the first query sees the first key alone: its output is the first value row."""
    v = example.v.double().repeat_interleave(example.dims["H"] // example.dims["G"], 1)
    assert attention(**example)[:, :, 0] == v[:, :, 0]


@spec.holds("MSK-6", kills=("bias_ignored", "mask_inverted", "mask_ignored"),
            rests_on=(conduct["form"],), needs=("mask", "bias"),
            given={**NO_EMPTY, "mask": ("shared", "full"), "bias": "none"})
def boolean_and_additive_masks_agree(attention: Subject, example: Example) -> None:
    """A boolean mask, True = keep, and the additive mask of 0 and −∞ give the same."""
    additive = torch.zeros(example.mask.shape, dtype=example.dtype).masked_fill(~example.mask, -torch.inf)
    some = visible(example, alignment(attention)).any(-1)
    added = attention(**example.but(mask=None, bias=additive))
    assert added[some] == attention(**example)[some]
    assert added[some] == attention.exact(**example)[some]


@spec.holds("MSK-7", kills=("causal_ignored_with_mask", "mask_ignored_when_causal", "masks_combined_by_or"),
            rests_on=(conduct["form"],), needs=("mask", "causal"),
            given={**NO_EMPTY, "mask": ("shared", "full"), "causal": True, "window": None})
def causal_and_mask_combine_by_and(attention: Subject, example: Example) -> None:
    """A causal flag beside a mask gives what the one mask gives that holds where both hold."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment(attention) == "bottom_right" else 0
    lower = torch.arange(d["Tk"])[None, :] <= torch.arange(d["Tq"])[:, None] + shift
    both = example.but(mask=example.mask & lower, causal=False)
    some = visible(example, alignment(attention)).any(-1)
    assert attention(**example)[some] == attention(**both)[some]


EMPTY = {"mask": ("empty_rows", "padding_left"), "Tk": at_least(1), "Tq": at_least(1), "B": at_least(1)}


@spec.holds("MSK-9", kills=("empty_row_gives_mean", "empty_row_gives_nan", "empty_row_spreads", "additive_ten_thousand"),
            rests_on=(conduct["form"],), needs=("mask", "empty_rows"), given=EMPTY,
            conventions={"empty_row": ("zeros", "mean", "nan_row")})
def empty_row_has_the_declared_outcome(attention: Subject, example: Example) -> None:
    """A query without any visible key has the declared outcome (zeros, mean of the values, NaN), and no other row is touched."""
    empty = ~visible(example, alignment(attention)).any(-1)
    out, want = attention(**example), attention.exact(**example)
    if attention.conventions["empty_row"] == "mean":
        assert out[empty] == want[empty]
    else:
        assert identical(out.value[empty], want.value[empty], witness=bool((out.value[~empty] != 0).any()))
    assert out[~empty] == want[~empty]


@spec.holds("MSK-9", kills=("empty_row_gradient_nan", "empty_row_gives_mean", "gradient_without_masks"),
            rests_on=(empty_row_has_the_declared_outcome,), needs=("mask", "empty_rows"), gradient=True, given=EMPTY,
            conventions={"empty_row": "zeros"})
def empty_row_has_no_gradient(attention: Subject, example: Example) -> None:
    """A query without any visible key gets and sends gradient exactly 0; everything stays finite."""
    empty = ~visible(example, alignment(attention)).any(-1)
    found = attention.gradients(**example)
    assert identical(found["q"].value[empty], 0.0, witness=bool(empty.any()) and bool((found["v"].value != 0).any()))
    (up,) = attention.upstream(**example)
    from_empty = torch.where(empty[..., None], up, torch.zeros_like(up))
    for value in attention.gradients(**example, upstream=(from_empty,)).values():
        assert identical(value.value, 0.0, witness=bool(empty.any()))


@spec.holds("MSK-10", kills=("causal_top_left", "causal_aligned_one_too_late", "right_for_square_only",
                             "causal_ignored_with_more_keys", "window_one_too_wide_with_cache"), rests_on=(conduct["form"],),
            needs=("causal", "cross_lengths"),
            given={**NO_EMPTY, "causal": True, "mask": "none", "bias": "none", "Tk": at_least(3), "Tq": at_least(1)})
def causal_alignment_is_the_declared_one(attention: Subject, example: Example) -> None:
    """With fewer queries than keys the last query lines up with the last key (or the first with the first, where declared):
    the outputs are those rows of the full causal square."""
    d = example.dims
    full = example.values("full q", d["B"], d["H"], d["Tk"], d["D"])
    few = min(d["Tq"], d["Tk"] - 1)
    part = full[:, :, -few:] if alignment(attention) == "bottom_right" else full[:, :, :few]
    square = attention(**example.but(q=full))
    rows = square[:, :, -few:] if alignment(attention) == "bottom_right" else square[:, :, :few]
    assert attention(**example.but(q=part)) == rows


@spec.holds("SWA-2", kills=("window_looks_ahead", "window_ignored_unless_causal", "window_one_too_narrow"),
            rests_on=(conduct["form"],), needs=("window", "causal"),
            given={**NO_EMPTY, "window": None, "causal": True, "Tq": "Tk", "mask": ("none", "shared")})
def window_as_wide_as_the_sequence_is_causal(attention: Subject, example: Example) -> None:
    """A window of T or more, with or without the causal flag, gives full causal attention."""
    length = example.dims["Tk"]
    causal = attention(**example)
    if attention.declaration.allows("window", length):
        assert attention(**example.but(window=length)) == causal
        assert attention(**example.but(window=length, causal=False)) == causal
    if attention.declaration.allows("window", length + 3):
        assert attention(**example.but(window=length + 3)) == causal


@spec.holds("SWA-1", kills=("window_one_too_wide", "window_ignored", "window_looks_ahead",
                            "window_row_off_with_cache"), rests_on=(output_is_the_formula,), needs=("window",),
            given={**NO_EMPTY, "window": (1, 2, 3, 4, 16), "mask": "none", "bias": "none", "Tk": at_least(2)})
def window_hides_what_lies_further_back(attention: Subject, example: Example) -> None:
    """Changing a key and value that lie outside a query's window leaves its output equal, bit for bit."""
    d = example.dims
    last = d["Tk"] - 1 - example.integer("back", 0, min(d["Tq"], d["Tk"]) - 1)
    key = max(0, last - example.window)  # just outside the window of one of the queries
    hidden = (torch.arange(d["Tk"]) == key).expand(d["B"], d["G"], d["Tk"])
    changed = example.but(k=garbage(example, "k", hidden), v=garbage(example, "v", hidden))
    blind = ~visible(example, alignment(attention))[..., key]
    assert unchanged(attention, example, changed, blind,
                     lambda before, after: bool((before[~blind] != after[~blind]).any()))


@spec.holds("MSK-12", "E20", kills=("integer_mask_negated",), rests_on=(output_is_the_formula,), needs=("mask",),
            given={**NO_EMPTY, "mask": ("shared", "full"), "Tk": at_least(2)})
def integer_mask_is_refused_or_read_as_nonzero_keeps(attention: Subject, example: Example) -> None:
    """A mask of integers 0 and 1 is refused, or read as non-zero = keep; never inverted with a bitwise not."""
    answer = attention.attempt(**example.but(mask=example.mask.long()))
    if answer.refusal is not None:
        fact(True, "", check="an integer mask is refused")
        return
    out, allowed = answer.outputs[0], attention.bars(**example)
    if out.shape != allowed.shape:
        fact(False, f"the output has shape {tuple(out.shape)}", check="shape of the output")
        return
    assert Bounded(out.double(), allowed.bar) == attention.exact(**example)
