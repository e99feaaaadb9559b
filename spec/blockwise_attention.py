"""What must hold of blockwise attention: FLA-1 … FLA-4, ATT-11 and what it shares with attention."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from assay.cases import Example, at_least
from assay.errors import NotExercisedError
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.attention_cases import visible
from assay.spec.blockwise_attention_cases import BlockwiseAttentionCases
from assay.spec.conduct import add_conduct
from assay.subject import Subject

spec = Specification("blockwise_attention", BlockwiseAttentionCases())
conduct = add_conduct(spec, shown_by="output_is_attention")

Part = tuple[Any, Any]  # output and lse, measured


def exactly(size: int) -> Any:
    """That size where the declared limits admit it, else any."""
    return lambda value: value == size


NO_EMPTY = {"Tk": at_least(1), "Tq": at_least(1), "B": at_least(1)}
PLAIN = {**NO_EMPTY, "mask": "none", "causal": False}


def alignment(blockwise: Subject) -> str:
    return blockwise.conventions["causal_alignment"]


@spec.holds("FLA-1", "ATT-1", "MSK-10", kills=(
    "output_not_rescaled", "sum_not_rescaled", "tiles_averaged", "tail_unmasked", "last_tile_dropped", "first_tile_alone",
    "empty_tile_is_nan", "causal_by_tiles", "causal_ignored", "causal_top_left", "causal_strict", "mask_ignored", "mask_inverted",
    "causal_ignored_with_mask", "scale_ignored", "scale_one_over_d", "grouped_heads_tiled", "last_query_tile_left_out",
    "divided_twice", "values_of_next_sample"), rests_on=(conduct["form"],))
def output_is_attention(blockwise: Subject, example: Example) -> None:
    """For any block sizes the output is that of plain attention, softmax(q·kᵀ·scale, masked) · v."""
    assert blockwise(**example)[0] == blockwise.exact(**example)[0]


@spec.holds("FLA-1", kills=(
    "sum_not_rescaled", "tail_unmasked", "lse_in_base_two", "lse_without_maximum", "sum_in_place_of_lse", "lse_is_maximum",
    "last_query_tile_left_out", "scale_ignored"), rests_on=(conduct["form"],))
def lse_is_the_logarithm_of_the_sum(blockwise: Subject, example: Example) -> None:
    """The second result is the natural logarithm of each query's sum of exponentials, −∞ where it sees no key."""
    assert blockwise(**example)[1] == blockwise.exact(**example)[1]


@spec.holds("FLA-1", kills=("output_not_rescaled", "tiles_averaged", "last_tile_dropped", "tail_unmasked"),
            rests_on=(conduct["form"],), given=NO_EMPTY)
def block_sizes_do_not_matter(blockwise: Subject, example: Example) -> None:
    """One tile that holds everything gives what many tiles give."""
    d, allows = example.dims, blockwise.declaration.allows
    whole = example.but(**{name: size for name, size in (("block_q", max(16, d["Tq"])), ("block_k", max(16, d["Tk"])))
                           if allows(name, size)})
    for one, other in zip(blockwise(**example), blockwise(**whole), strict=True):
        assert one == other


@spec.holds("FLA-1", "ATT-2", kills=("tiles_averaged", "tail_unmasked", "causal_strict", "lse_in_base_two"),
            rests_on=(conduct["form"],), given=NO_EMPTY)
def equal_scores_count_the_visible_keys(blockwise: Subject, example: Example) -> None:
    """With q = 0 the output is the mean of the visible values, and lse the logarithm of their number."""
    see = visible(example, alignment(blockwise))
    some, number = see.any(-1), see.sum(-1).double()
    v = example.v.double().repeat_interleave(example.dims["H"] // example.dims["G"], 1)
    out, lse = blockwise(**example.but(q=torch.zeros_like(example.q)))
    assert out[some] == (see.double() @ v / number[..., None])[some]
    assert lse[some] == number.log()[some]


@spec.holds("FLA-1", kills=("no_shift", "maximum_starts_at_zero"), rests_on=(output_is_attention,),
            given={**PLAIN, "scale": None, "D": (1, 4, 16, 64)})
def large_scores_neither_overflow_nor_give_nan(blockwise: Subject, example: Example) -> None:
    """Scores of ±256 and a little more, where exp alone would overflow or vanish, give the softmax of their differences."""
    steps = torch.randint(0, 3, example.k.shape[:-1], generator=example.generator("steps"))
    for sign in (1.0, -1.0):
        q, k = torch.zeros_like(example.q), torch.zeros_like(example.k)
        q[..., 0] = sign * 16 * example.dims["D"] ** 0.5
        k[..., 0] = (16 + steps / 8).to(example.dtype)
        large = example.but(q=q, k=k)
        for one, other in zip(blockwise(**large), blockwise.exact(**large), strict=True):
            assert one == other


# ------------------------------------------------------------------------------------------------ merging
def merged(parts: Sequence[Part]) -> Part:
    """Attention over several sets of keys from that over each: outputs weighed by e^lse."""
    top = torch.stack([lse.value for _, lse in parts]).amax(0)
    top = top.masked_fill(top == -torch.inf, 0.0)
    shares = [(lse - top).exp() for _, lse in parts]
    total = sum(shares[1:], shares[0])
    weighed = [share.unsqueeze(-1) * out for share, (out, _) in zip(shares, parts, strict=True)]
    return sum(weighed[1:], weighed[0]) / total.unsqueeze(-1), total.log() + top


def halves_and_rest(example: Example) -> list[slice]:
    """Three runs of keys; the middle one may be short, the last takes the rest."""
    length = example.dims["Tk"]
    first = example.integer("first", 1, max(1, length - 2))
    second = example.integer("second", first + 1, max(first + 1, length - 1))
    return [slice(0, first), slice(first, second), slice(second, length)]


@spec.holds("FLA-4", kills=("lse_in_base_two", "lse_without_maximum", "lse_is_maximum", "sum_in_place_of_lse"),
            rests_on=(conduct["form"],), given={**PLAIN, "Tk": at_least(3)})
def partial_results_merge_in_any_order(blockwise: Subject, example: Example) -> None:
    """Outputs and lse over parts of the keys merge to those over all keys, in any order and grouping."""
    a, b, c = (blockwise(**example.but(k=example.k[:, :, one], v=example.v[:, :, one])) for one in halves_and_rest(example))
    whole = blockwise(**example)
    for found in (merged((a, b, c)), merged((merged((c, a)), b))):
        for one, other in zip(found, whole, strict=True):
            assert one == other


@spec.holds("FLA-4", "MSK-9", kills=("empty_lse_positive", "empty_lse_zero", "empty_row_is_nan"), rests_on=(conduct["form"],),
            needs=("mask", "empty_rows"), conventions={"empty_row": "zeros"},
            given={**NO_EMPTY, "mask": ("empty_rows", "full", "shared"), "causal": False, "Tk": at_least(2), "Tq": at_least(2)})
def part_without_keys_changes_no_merge(blockwise: Subject, example: Example) -> None:
    """A part in which a query sees no key merges to the result of the other part alone."""
    d = example.dims
    cut = example.integer("cut", 1, d["Tk"] - 1)
    mask = example.mask.expand(d["B"], d["H"], d["Tq"], d["Tk"]).clone()
    mask[:, :, ::2, :cut] = False
    mask[:, :, 1::2, cut:] = False
    sides = [example.but(k=example.k[:, :, part], v=example.v[:, :, part], mask=mask[..., part])
             for part in (slice(0, cut), slice(cut, d["Tk"]))]
    some = mask.any(-1)
    left, right = ([one[some] for one in blockwise(**side)] for side in sides)
    whole = [one[some] for one in blockwise(**example.but(mask=mask))]
    for one, other in zip(merged(((left[0], left[1]), (right[0], right[1]))), whole, strict=True):
        assert one == other


@spec.holds("MSK-9", kills=("empty_lse_positive", "empty_lse_zero", "empty_row_is_nan"), rests_on=(conduct["form"],),
            needs=("mask", "empty_rows"), given={**NO_EMPTY, "mask": ("empty_rows", "padding_left")},
            conventions={"empty_row": ("zeros", "nan_row")})
def empty_row_has_the_declared_outcome(blockwise: Subject, example: Example) -> None:
    """A query without any visible key has the declared outcome and lse −∞, and no other row is touched."""
    empty = ~visible(example, alignment(blockwise)).any(-1)
    (out, lse), (want, log) = blockwise(**example), blockwise.exact(**example)
    shown = bool(empty.any()) and bool((out.value[~empty] != 0).any())
    assert identical(out.value[empty], want.value[empty], witness=shown)
    assert identical(lse.value[empty], log.value[empty], witness=shown)
    assert out[~empty] == want[~empty]


# ------------------------------------------------------------------------------------------------ gradients
@spec.holds("FLA-1", "ATT-7", kills=(
    "gradient_not_causal", "gradient_of_keys_unscaled", "gradient_of_last_tile_dropped", "gradient_of_queries_overwritten"),
            rests_on=(output_is_attention,), gradient=True)
def gradients_are_those_of_attention(blockwise: Subject, example: Example) -> None:
    """Gradients of q, k and v, through the output and through lse, are those of plain attention."""
    found, exact = blockwise.gradients(**example), blockwise.exact_gradients(**example)
    for name in ("v", "q", "k"):
        assert found[name] == exact[name]


@spec.holds("FLA-1", "FLA-4", kills=("gradient_of_lse_ignored",), rests_on=(lse_is_the_logarithm_of_the_sum,), gradient=True,
            given={**NO_EMPTY, "Tk": at_least(2)})
def gradient_of_lse_is_the_weights(blockwise: Subject, example: Example) -> None:
    """∂lse/∂score is the weight: the gradient that comes through lse alone reaches q and k, and not v."""
    out, lse = blockwise.upstream(**example)
    up = (torch.zeros_like(out), lse)
    found, exact = blockwise.gradients(**example, upstream=up), blockwise.exact_gradients(**example, upstream=up)
    for name in ("q", "k"):
        assert found[name] == exact[name]
    assert identical(found["v"].value, 0.0, witness=bool((found["q"].value != 0).any()))


# ------------------------------------------------------------------------------------------------ costs
ONE_HEAD = {"B": 1, "H": 1, "G": 1, "Tq": exactly(4), "Tk": exactly(4), "mask": "none", "scale": None, "family": "normal",
            "layout": "contiguous"}


def longer(blockwise: Subject, example: Example, length: int) -> Example:
    """The example with `length` queries and keys."""
    if not (blockwise.declaration.allows("Tq", length) and blockwise.declaration.allows("Tk", length)):
        raise NotExercisedError(f"the declared limits leave out {length} queries and keys")
    d = example.dims
    return example.but(q=example.values("long q", 1, 1, length, d["D"]), k=example.values("long k", 1, 1, length, d["D"]),
                       v=example.values("long v", 1, 1, length, d["Dv"]))


@spec.holds("FLA-2", "FLA-3", kills=("whole_matrix", "tiles_joined"), rests_on=(output_is_attention,), examples=0,
            given={**ONE_HEAD, "block_q": exactly(64), "block_k": exactly(64), "D": (4, 8, 16), "Dv": (4, 8, 2)})
def memory_grows_with_the_length_and_not_its_square(blockwise: Subject, example: Example) -> None:
    """For fixed blocks, twice the length takes at most twice the memory, and nothing of Tq·Tk elements is ever made.

    Memory is that of tensors made during the call and alive at once. What is at most a + b·T at most doubles with T.
    """
    length = 8 * max(example.block_q, example.block_k)
    short, long = (blockwise.counts(**longer(blockwise, example, times * length)) for times in (1, 2))
    square = (2 * length) ** 2
    fact(long["largest_bytes"] < square, f"a tensor of {long['largest_bytes']} bytes is made", got=str(long["largest_bytes"]),
         expected=f"less than Tq·Tk = {square}", check="largest intermediate")
    fact(long["peak_bytes"] <= 2 * short["peak_bytes"], "memory more than doubles with the length",
         got=f"{long['peak_bytes']} bytes for twice the length", expected=f"at most twice {short['peak_bytes']}",
         check="peak memory")


@spec.holds("FLA-2", kills=("backward_of_the_whole_matrix",), rests_on=(gradients_are_those_of_attention,), examples=0,
            gradient=True, given={**ONE_HEAD, "block_q": exactly(64), "block_k": exactly(64), "D": (4, 8, 16), "Dv": (4, 8, 2)})
def gradients_make_nothing_of_square_size(blockwise: Subject, example: Example) -> None:
    """Also with gradients nothing of Tq·Tk elements is ever made at once.

    Autograd through a blockwise forward keeps every tile, one by one: that is not judged here.
    """
    length = 8 * max(example.block_q, example.block_k)
    counted = blockwise.counts(**longer(blockwise, example, length), gradients=True)
    fact(counted["largest_bytes"] < length**2, f"a tensor of {counted['largest_bytes']} bytes is made",
         got=str(counted["largest_bytes"]), expected=f"less than Tq·Tk = {length**2}", check="largest intermediate")


@spec.holds("FLA-3", kills=("keys_read_for_every_query",), rests_on=(output_is_attention,), examples=0,
            given={**ONE_HEAD, "block_q": exactly(8), "block_k": exactly(8), "D": (4, 8, 16), "Dv": (4, 8, 2), "causal": False})
def keys_are_read_once_for_each_tile_of_queries(blockwise: Subject, example: Example) -> None:
    """Keys and values are read in ⌈Tq/block_q⌉ passes, each element at most twice a pass."""
    length = 8 * max(example.block_q, example.block_k)
    counted = blockwise.counts(**longer(blockwise, example, length))
    for name, width in (("k", example.dims["D"]), ("v", example.dims["Dv"])):
        read = counted[f"read/{name}"]
        if read == 0:
            raise NotExercisedError(f"no read of {name} can be seen: declare cost=")
        passes = length // example.block_q
        fact(read <= 2 * passes * length * width, f"{name} is read {read / (length * width):.4g} times", got=str(read),
             expected=f"{passes} times {length * width}, at most twice that", check=f"reads of {name}")


@spec.holds("ATT-11", kills=("all_queries_for_every_tile",), rests_on=(output_is_attention,), examples=0,
            given={**ONE_HEAD, "block_q": exactly(16), "block_k": exactly(16), "D": (4, 8, 16), "Dv": (4, 8, 2)})
def products_are_those_of_attention(blockwise: Subject, example: Example) -> None:
    """Multiply-adds are Tq·Tk·(D+Dv), at most twice that (scores may be recomputed), at least those of the visible pairs."""
    length = 4 * max(example.block_q, example.block_k)
    counted = blockwise.counts(**longer(blockwise, example, length))["multiply_adds"]
    width = example.dims["D"] + example.dims["Dv"]
    pairs = length * (length + 1) // 2 if example.arguments.get("causal") else length**2
    if counted < pairs * width:
        raise NotExercisedError("part of the products is out of the counter's sight: declare cost=")
    fact(counted <= 2 * length**2 * width, f"{counted} multiply-adds", got=str(counted),
         expected=f"Tq·Tk·(D+Dv) = {length**2 * width}, at most twice that", check="multiply-adds")
