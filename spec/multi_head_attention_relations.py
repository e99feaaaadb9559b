"""What must hold of multi-head attention between calls, of its refusals and of its costs: MSK-5, MSK-13, GQA, SWA, XAT, MHA-11."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.errors import NotExercisedError
from assay.ledger import fact, identical
from assay.spec.multi_head_attention import (
    KEPT,
    PLAIN,
    SOME,
    alignment,
    conduct,
    gradients_are_the_formula,
    output_is_the_formula,
    seen,
    spec,
    unchanged,
)
from assay.spec.multi_head_attention_cases import draw_weight, visible
from assay.subject import Subject


# ------------------------------------------------------------------------------------------------ padding and masks
@spec.holds("MSK-5", "MSK-4", kills=("key_mask_ignored", "key_mask_inverted", "positions_of_first_row",
                                     "key_mask_replaces_causal"), rests_on=(conduct["form"],),
            needs=("key_mask", "padding"),
            given={**SOME, "context": False, "key_mask": ("right", "left"), "mask": "none", "window": None, "Tq": at_least(2),
                   "positions": ("none", "batch")})
def padded_batch_gives_what_each_sequence_gives_alone(heads: Subject, example: Example) -> None:
    """At its real tokens a padded batch, right or left, gives what each sequence gives alone, with its own positions."""
    whole = heads(**example)
    for b in range(example.dims["B"]):
        real = example.key_mask[b]
        alone = {"x": example.x[b:b + 1, real], "key_mask": None}
        if "positions" in example:
            alone["positions"] = example.positions[b:b + 1, real]
        assert whole[b:b + 1, real] == heads(**example.but(**alone))


@spec.holds("MSK-4", kills=("key_mask_ignored", "key_mask_inverted", "window_discards_masks"), rests_on=(conduct["form"],),
            needs=("key_mask", "padding"), given={**SOME, "context": False, "key_mask": ("right", "left", "holes"),
                                                  "Tq": at_least(2)})
def padded_tokens_do_not_matter(heads: Subject, example: Example) -> None:
    """A padded token of any finite content changes no output at real tokens, bit for bit."""
    real = example.key_mask
    other = example.values("other x", *example.x.shape, family="normal")
    changed = example.but(x=torch.where(real[..., None], example.x, 8 * other))
    elsewhere = heads.exact(**example.but(x=other)).value != heads.exact(**example).value
    unchanged(heads, example, changed, real, witness=bool(elsewhere.any()) and not bool(real.all()))


@spec.holds("MSK-13", "E19", kills=("mask_taken_for_padding",), rests_on=(conduct["form"],), needs=("mask", "key_mask"),
            given={**SOME, "context": False, "B": (2, 3, 4), "key_mask": ("none", "right"), "mask": ("none", "shared"),
                   "window": None, "positions": "none"})
def square_masks_are_told_apart_when_batch_equals_length(heads: Subject, example: Example) -> None:
    """With B = T a (T,T) mask is one over queries and keys, a (B,T) key_mask one over keys, and both together combine by and."""
    size = example.dims["B"]
    x = example.values("square x", size, size, example.x.shape[-1], family="normal")
    lower = torch.ones(size, size, dtype=torch.bool).tril()
    square = example.but(x=x).without("mask", "key_mask", "causal")
    by_flag = square.but(causal=True) if heads.declaration.claims("causal") else square.but(mask=lower)
    padding = torch.arange(size) < torch.arange(1, size + 1)[:, None]
    for options in ({}, {"key_mask": padding}):
        assert heads(**square.but(mask=lower, **options)) == heads.exact(**by_flag.but(**options))


@spec.holds("MSK-13", "E19", kills=("padding_taken_for_mask",), rests_on=(conduct["form"],), needs=("mask", "key_mask"),
            given={**PLAIN, "B": (2, 3, 4), "Tq": (5, 8, 17)})
def mask_of_another_shape_is_refused(heads: Subject, example: Example) -> None:
    """A (B,T) mask over keys in place of a (T,T) mask, and the other way round, is refused with a message where B ≠ T."""
    b, t = example.x.shape[:2]
    if b == t:
        fact(True, "", check="B = T", decided=False)
        return
    keys = torch.ones(b, t, dtype=torch.bool)
    heads.refuses(**example.but(mask=keys))
    heads.refuses(**example.but(key_mask=torch.ones(t, t, dtype=torch.bool)))


@spec.holds("MSK-9", kills=("empty_row_gives_mean",), rests_on=(conduct["form"],), needs=("mask", "empty_rows"),
            given={**SOME, "mask": "empty_rows", "b_o": (False, True)}, conventions={"empty_row": "zeros"})
def row_without_keys_gives_the_bias(heads: Subject, example: Example) -> None:
    """A query without any visible key gives zeros before w_o, so b_o alone; no other row is touched."""
    some = seen(heads, example)
    out, want = heads(**example), heads.exact(**example)
    bias = example.arguments.get("b_o", torch.zeros(out.shape[-1])).double()
    assert identical(out.value[~some], bias.expand(out.shape)[~some],
                     witness=bool((~some).any()) and bool((want.value[some] != 0).any()))
    assert out[some] == want[some]


@spec.holds("SWA-1", "SWA-5", "KV-1", kills=("window_one_too_wide", "window_ignored", "window_in_steps"),
            rests_on=(conduct["form"],), needs=("window", "context"), given={**PLAIN, "window": (2, 1, 3, 8), "Tq": at_least(2)})
def the_last_entries_of_a_cache_are_the_window(heads: Subject, example: Example) -> None:
    """One token against the last w tokens gives what full windowed attention gives at that token."""
    t = example.integer("token", 0, example.x.shape[1] - 1)
    start = max(0, t - example.window + 1)
    step = example.but(x=example.x[:, t:t + 1], context=example.x[:, start:t + 1]).without("window")
    assert heads(**step) == heads(**example)[:, t:t + 1]


@spec.holds("ROPE-3", "MHA-1", kills=("keys_not_turned",), rests_on=(conduct["form"],), needs=("positions",),
            given={**SOME, "positions": ("index", "batch")})
def only_distances_between_positions_matter(heads: Subject, example: Example) -> None:
    """Moving all positions by the same number changes nothing."""
    shift = example.integer("shift", 1, 40)
    assert heads(**example.but(positions=example.positions + shift)) == heads(**example)


# ------------------------------------------------------------------------------------------------ grouped heads
@spec.holds("GQA-1", "GQA-2", "GQA-4", kills=("grouped_heads_tiled", "keys_of_first_head"), rests_on=(conduct["form"],),
            needs=("gqa",), given={**SOME, "H": 4, "G": (2, 1)})
def grouped_projections_hold_a_block_a_group(heads: Subject, example: Example) -> None:
    """w_k and w_v of G·D rows give what H·D rows give that hold each group's block once for every query head."""
    assert heads(**example) == heads.exact(**repeated(example))


def repeated(example: Example) -> Example:
    """The call with its key and value heads repeated in the weights."""
    d = example.dims
    rows = torch.arange(d["G"] * d["D"]).reshape(d["G"], d["D"]).repeat_interleave(d["H"] // d["G"], 0).flatten()
    parts = {name: example[name][rows] for name in ("w_k", "w_v", "b_k", "b_v") if name in example}
    return example.but(**parts).without("num_kv_heads")


@spec.holds("GQA-5", kills=("grouped_gradient_averaged",), rests_on=(gradients_are_the_formula,), needs=("gqa",), gradient=True,
            given={**KEPT, "H": (2, 4), "G": (1, 2), "Tk": at_least(2)})
def shared_head_gets_the_sum_of_its_query_heads(heads: Subject, example: Example) -> None:
    """The gradient of a shared key or value head is the sum of those that its H/G query heads send."""
    d = example.dims
    up = heads.upstream(**example)
    found = heads.gradients(**example, wrt=("w_k", "w_v"), upstream=up)
    apart = heads.exact_gradients(**repeated(example), wrt=("w_k", "w_v"), upstream=up)
    for name in ("w_k", "w_v"):
        total = apart[name].reshape(d["G"], d["H"] // d["G"], d["D"], -1).sum(1).reshape(d["G"] * d["D"], -1)
        assert found[name] == total


# ------------------------------------------------------------------------------------------------ cross-attention
@spec.holds("XAT-1", kills=("values_from_queries", "context_ignored"), rests_on=(conduct["form"],), needs=("context",),
            given={**PLAIN, "context": True, "Tq": at_least(2)})
def other_queries_do_not_matter(heads: Subject, example: Example) -> None:
    """In cross-attention an output depends on its own query and the context alone: other queries can change, bit for bit."""
    own = torch.arange(example.x.shape[1]) == example.integer("row", 0, example.x.shape[1] - 1)
    other = torch.where(own[:, None], example.x, example.values("other x", *example.x.shape, family="normal"))
    changed = example.but(x=other)
    moved = heads.exact(**changed).value != heads.exact(**example).value
    unchanged(heads, example, changed, (slice(None), own), witness=bool(moved.any()))


@spec.holds("XAT-2", "ATT-10", kills=("cross_attention_causal", "context_detached"), rests_on=(conduct["form"],),
            needs=("context",), gradient=True, given={**PLAIN, "context": True, "key_mask": ("none", "right"), "Tk": at_least(2)})
def every_query_can_reach_every_source_token(heads: Subject, example: Example) -> None:
    """Cross-attention is not causal: the gradient of each output reaches every unpadded source position, and no padded one."""
    row = example.integer("row", 0, example.x.shape[1] - 1)
    (up,) = heads.upstream(**example)
    up = torch.where((torch.arange(up.shape[1]) == row)[:, None], up, torch.zeros_like(up))
    found = heads.gradients(**example, wrt=("context",), upstream=(up,))["context"]
    exact = heads.exact_gradients(**example, wrt=("context",), upstream=(up,))["context"]
    expected = (exact.value.abs() > 2 * found.bar).any(-1)
    reached = (found.value.abs() > found.bar).any(-1)
    fact(bool(reached[expected].all()),
         f"output {row} does not reach {int((expected & ~reached).sum())} source tokens that it sees",
         check="every source token is reached", decided=bool(expected.any()))
    hidden = ~visible(example, alignment(heads))[:, row]
    assert identical(found.value[hidden], 0.0, witness=bool(hidden.any()) and bool(expected.any()))


# ------------------------------------------------------------------------------------------------ costs
COUNTED = {**PLAIN, "B": 1, "Tq": 2, "family": "normal", "layout": "contiguous", "b_q": False, "b_k": False, "b_v": False,
           "b_o": False, "base": 10000.0}


def sized(heads: Subject, example: Example, length: int, width: int, groups: int | None = None) -> Example:
    """Self-attention of `length` tokens of this width, with the example's number of heads and all or few key heads."""
    allows = heads.declaration.allows
    count = example.dims["H"]
    if not all(allows(letter, size) for letter, size in (("C", width), ("D", width // count), ("Tq", length), ("Tk", length))):
        raise NotExercisedError(f"the declared limits leave out {length} tokens of width {width}")
    rows = {"w_q": width, "w_k": width // count * (groups or count), "w_v": width // count * (groups or count), "w_o": width}
    made = {name: draw_weight((size, width), "normal", example.generator(name), example.dtype) for name, size in rows.items()}
    options = {} if groups in (None, count) else {"num_kv_heads": groups}
    return example.without("num_kv_heads").but(x=example.values("long x", 1, length, width), **made, **options)


@spec.holds("MHA-11", "ATT-11", kills=("products_by_every_head",), rests_on=(output_is_the_formula,), examples=0,
            given={**COUNTED, "H": (1, 2, 4), "G": (1, 2, 4)})
def costs_do_not_depend_on_the_number_of_heads(heads: Subject, example: Example) -> None:
    """Parameters are 4C² and multiply-adds T·4C² + 2T²·C for any number of heads at fixed C (attention at most twice: scores
    may be recomputed)."""
    length, width = 128, 64
    made = sized(heads, example, length, width)
    parameters = sum(made[name].numel() for name in ("w_q", "w_k", "w_v", "w_o"))
    fact(parameters == 4 * width**2, f"{parameters} parameters", check="parameters", decided=False)
    within(heads.counts(**made)["multiply_adds"], length * parameters, 2 * length**2 * width)


def within(counted: int, projections: int, attention: int, pairs: int | None = None) -> None:
    """Decide multiply-adds: at least what is needed (else some are out of sight), attention at most twice."""
    if counted < projections + (attention if pairs is None else pairs):
        raise NotExercisedError("part of the products is out of the counter's sight: declare cost=")
    fact(counted <= projections + 2 * attention, f"{counted} multiply-adds", got=str(counted),
         expected=f"{projections} of projections and {attention}, at most twice that, of attention", check="multiply-adds")


@spec.holds("GQA-3", "GQA-4", "GQA-6", kills=("products_by_every_head",), rests_on=(output_is_the_formula,), examples=0,
            needs=("gqa",), given={**COUNTED, "H": 4, "G": (1, 2, 4)})
def sharing_heads_saves_parameters_and_cache(heads: Subject, example: Example) -> None:
    """With G key/value heads w_k, w_v and what they give (the cache) are H/G times smaller, and attention's products the same."""
    length, width, groups, count = 128, 64, example.dims["G"], example.dims["H"]
    made = sized(heads, example, length, width, groups)
    fact(made.w_k.numel() * count == made.w_q.numel() * groups, "w_k is not smaller by H/G", check="parameters", decided=False)
    parameters = sum(made[name].numel() for name in ("w_q", "w_k", "w_v", "w_o"))
    counted = heads.counts(**made)["multiply_adds"]
    spare = length * (4 * width**2 - parameters)  # an implementation may repeat the heads in the weights
    within(counted if counted <= length * parameters + 4 * length**2 * width else counted - spare, length * parameters,
           2 * length**2 * width)


@spec.holds("SWA-4", kills=("products_by_every_head",), rests_on=(output_is_the_formula,), examples=0, needs=("window",),
            given={**{name: rule for name, rule in COUNTED.items() if name != "window"}, "H": 4, "G": 4, "window": (2, 3, 8)})
def window_needs_the_products_of_its_pairs(heads: Subject, example: Example) -> None:
    """A window of w has w·T − w(w−1)/2 pairs, each of D+Dv multiply-adds a head: no fewer are done, and no more than twice those
    of the full square, which an implementation may compute and mask."""
    length, width = 128, 64
    made = sized(heads, example, length, width)
    w = example.window
    pairs = w * length - w * (w - 1) // 2
    back = torch.arange(length)[:, None] - torch.arange(length)
    fact(pairs == int(((back >= 0) & (back < w)).sum()), "the number of pairs is another", check="pairs", decided=False)
    within(heads.counts(**made)["multiply_adds"], 4 * length * width**2, 2 * length**2 * width, 2 * pairs * width)
