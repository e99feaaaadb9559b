"""What must hold of attention's values: ATT-1 … ATT-15, GQA-1, GQA-2. Masks and gradients have files of their own."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.errors import ExampleOverError
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.attention_cases import AttentionCases, visible
from assay.spec.conduct import add_conduct
from assay.subject import Subject

spec = Specification("attention", AttentionCases())
conduct = add_conduct(spec)


PLAIN = {"mask": "none", "bias": "none", "causal": False, "window": None}
NO_EMPTY = {"Tk": at_least(1), "Tq": at_least(1), "B": at_least(1)}
# Key lengths on both sides of tiles, beside sizes that leave room for them.
LONG = {"Tk": (3, 2, 5, 17, 33, 65, 129, 257), "Tq": (1, 2, 3, 5), "D": (2, 1, 4, 8, 16), "Dv": (2, 1, 4, 8),
        "lengths": "free"}


def alignment(attention: Subject) -> str:
    return attention.conventions["causal_alignment"]


def weights(attention: Subject, example: Example) -> Bounded:
    """The attention weights (B,H,Tq,Tk), read out with V = columns of the identity, keys in chunks of Dv.

    One evaluation of the formula with all columns at once gives the bars: a column's bar does not depend on its neighbours.
    """
    d = example.dims
    eye = torch.eye(d["Tk"], dtype=example.dtype)
    parts = []
    for start in range(0, d["Tk"], d["Dv"]):
        columns = eye[:, start:start + d["Dv"]]
        padded = torch.nn.functional.pad(columns, (0, d["Dv"] - columns.shape[1]))
        out = attention.values(**example.but(v=padded.expand(d["B"], d["G"], d["Tk"], d["Dv"]).clone()))
        parts.append(out[..., : columns.shape[1]])
    allowed = attention.bars(**example.but(v=eye.expand(d["B"], d["G"], d["Tk"], d["Tk"]).clone()))
    found = torch.cat(parts, -1)
    if found.shape != allowed.shape:
        fact(False, f"outputs for identity values have shape {tuple(found.shape)}", expected=str(tuple(allowed.shape)),
             check="shape of the output")
        raise ExampleOverError("wrong shape")
    return Bounded(found, allowed.bar)


@spec.holds("ATT-1", "ATT-5", "MSK-3", "E8", kills=(
    "scale_one_over_d", "scale_root_of_d_plus_one", "scale_root_of_value_width", "no_scale", "scale_argument_ignored",
    "scale_on_top_of_default", "scale_after_softmax", "softcap_ignored", "softcap_after_mask", "bias_ignored",
    "bias_before_scale", "bias_of_first_head", "mask_after_softmax", "mask_inverted", "mask_ignored_when_causal",
    "causal_ignored_with_mask", "causal_strict", "window_one_too_wide", "window_one_too_narrow", "grouped_heads_tiled",
    "negated", "zeros", "uniform_weights", "odd_heads_wrong", "softmax_over_heads", "softmax_over_queries",
    "extra_zero_key", "wrong_beyond_64_queries", "tail_of_64_unmasked", "values_of_next_sample",
    "square_keys_left_untransposed"), rests_on=(conduct["form"],))
def output_is_the_formula(attention: Subject, example: Example) -> None:
    """Every output is softmax(scale·q·kᵀ, capped, plus bias, masked) · v, the scale 1/√D unless given."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("ATT-2", "MSK-3", kills=("mask_after_softmax", "softmax_over_queries", "scale_after_softmax", "extra_zero_key",
                                     "epsilon_in_normaliser", "mean_for_sum", "tail_of_16_unmasked"), rests_on=(conduct["form"],),
            given={**NO_EMPTY, "mask": ("none", "shared", "padding", "full")})
def constant_values_come_back(attention: Subject, example: Example) -> None:
    """When every key holds the same value row, every query with a key gets that row: weights sum to 1."""
    d = example.dims
    row = (torch.arange(d["Dv"]) % 5 + 1).to(example.dtype)
    out = attention(**example.but(v=row.expand(d["B"], d["G"], d["Tk"], d["Dv"]).clone()))
    some = visible(example, alignment(attention)).any(-1)
    assert out[some] == row.double()


@spec.holds("ATT-2", "SM-1", kills=("mask_after_softmax", "softmax_over_queries", "last_value_of_odd_length_dropped",
                                    "softmax_over_heads"), rests_on=(conduct["form"],), given=NO_EMPTY)
def weights_sum_to_one(attention: Subject, example: Example) -> None:
    """Weights, read out with identity values, are non-negative and sum to 1 over the keys of every query that has a key."""
    found = weights(attention, example)
    some = visible(example, alignment(attention)).any(-1)
    fact(bool((found.value[some] >= 0).all()), "a weight is negative or NaN", check="weights >= 0", decided=False)
    assert found.sum(-1)[some] == 1


@spec.holds("ATT-2", kills=("extra_zero_key", "negated", "masked_values_leak", "scale_after_softmax"),
            rests_on=(conduct["form"],), given={**NO_EMPTY, "mask": ("none", "shared", "padding", "full")})
def output_lies_among_the_values(attention: Subject, example: Example) -> None:
    """Every output element lies between the smallest and the largest visible value of its channel."""
    see = visible(example, alignment(attention))
    some = see.any(-1)
    v = example.v.double().repeat_interleave(example.dims["H"] // example.dims["G"], 1)[:, :, None]
    high = v.masked_fill(~see[..., None], -torch.inf).amax(-2)
    low = v.masked_fill(~see[..., None], torch.inf).amin(-2)
    out = attention(**example)[some]
    assert out <= high[some]
    assert out >= low[some]


@spec.holds("ATT-5", kills=("scale_root_of_value_width", "scale_root_of_d_plus_one", "scale_root_of_model_width", "no_scale",
                            "scale_one_over_d"), rests_on=(conduct["form"],),
            given={**PLAIN, **NO_EMPTY, "scale": None, "softcap": None, "Tk": (2,), "Dv": (2, 3, 4, 8),
                   "family": ("normal",), "D": (1, 2, 3, 4, 8, 16, 64)})
def scores_are_divided_by_root_of_key_width(attention: Subject, example: Example) -> None:
    """For two keys that differ along one channel, the log-ratio of their weights is that difference times q over √D."""
    d = example.dims
    q, k = torch.zeros_like(example.q), torch.zeros_like(example.k)
    q[..., 0] = 2.0
    k[:, :, 1, 0] = 1.0
    found = weights(attention, example.but(q=q, k=k))
    expected = torch.tensor(2.0 / d["D"] ** 0.5, dtype=torch.float64).exp()
    assert found[..., 1] / found[..., 0] == expected


@spec.holds("MHA-8", "E24", kills=("uniform_weights", "softmax_over_heads"), rests_on=(conduct["form"],),
            given={**PLAIN, **NO_EMPTY, "scale": None, "softcap": None, "Tk": (2,), "Tq": (2,), "H": (2, 1, 4, 3)})
def scores_of_rank_one_give_weights_of_full_rank(attention: Subject, example: Example) -> None:
    """Scores ±s of rank 1 give two queries weights of determinant tanh(s), not 0: softmax does not collapse the matrix."""
    q, k = torch.zeros_like(example.q), torch.zeros_like(example.k)
    q[..., 0] = k[..., 0] = torch.tensor([1.0, -1.0])
    found = weights(attention, example.but(q=q, k=k))
    expected = torch.tensor(example.dims["D"] ** -0.5, dtype=torch.float64).tanh()
    assert found[..., 0, 0] * found[..., 1, 1] - found[..., 0, 1] * found[..., 1, 0] == expected


@spec.holds("ATT-8", kills=("last_key_of_odd_length_dropped", "last_value_of_odd_length_dropped", "tail_of_64_dropped",
                            "second_tile_not_rescaled"),
            rests_on=(conduct["form"],), given={**PLAIN, **LONG})
def order_of_keys_does_not_matter(attention: Subject, example: Example) -> None:
    """Permuting keys and values together changes nothing."""
    shuffle = example.permutation("keys", example.dims["Tk"])
    moved = example.but(k=example.k[:, :, shuffle], v=example.v[:, :, shuffle])
    assert attention(**moved) == attention(**example)


@spec.holds("ATT-8", "ATT-9", kills=("wrong_beyond_64_queries", "cross_lengths_made_causal"),
            rests_on=(conduct["form"],), given={**PLAIN, "Tq": at_least(2)})
def permuting_queries_permutes_outputs(attention: Subject, example: Example) -> None:
    """Permuting the queries permutes the outputs in the same way."""
    shuffle = example.permutation("queries", example.dims["Tq"])
    assert attention(**example.but(q=example.q[:, :, shuffle])) == attention(**example)[:, :, shuffle]


@spec.holds("ATT-12", kills=("constant",), rests_on=(output_is_the_formula,), given=NO_EMPTY)
def linear_in_values(attention: Subject, example: Example) -> None:
    """attention(q, k, 2v + u) = 2·attention(q, k, v) + attention(q, k, u)."""
    u = example.values("u", *example.v.shape, family="integers")
    v = example.values("v", *example.v.shape, family="integers")
    both = attention(**example.but(v=2 * v + u))
    assert both == 2 * attention(**example.but(v=v)) + attention(**example.but(v=u))


@spec.holds("ATT-13", "E15", kills=("cosine_scores", "scale_argument_ignored", "scale_inverted"), rests_on=(conduct["form"],),
            needs=("scale",), given={**NO_EMPTY, "scale": (0.5, 0.25), "softcap": None})
def scaling_the_query_is_scaling_the_scale(attention: Subject, example: Example) -> None:
    """Doubling q, or k, or the scale is the same thing: scores are dot products, not cosines."""
    doubled = attention(**example.but(scale=2 * example.scale))
    assert attention(**example.but(q=2 * example.q)) == doubled
    assert attention(**example.but(k=2 * example.k)) == doubled
    exact, other = attention.exact(**example), attention.exact(**example.but(scale=2 * example.scale))
    single = attention(**example)
    if bool(((exact.value - other.value).abs() > 2 * (single.bar + doubled.bar)).any()):
        assert single != doubled


@spec.holds("GQA-1", "GQA-2", kills=("grouped_heads_tiled", "grouped_values_tiled", "grouped_heads_read_first",
                                     "right_without_groups_only"), rests_on=(conduct["form"],), needs=("gqa",),
            given={"H": (2, 4, 3, 6), "G": (1, 2, 3), **NO_EMPTY})
def grouped_heads_share_keys_in_blocks(attention: Subject, example: Example) -> None:
    """Grouped heads give what every query head gives with a copy of its group's key and value head, in blocks, not tiled."""
    times = example.dims["H"] // example.dims["G"]
    repeated = example.but(k=example.k.repeat_interleave(times, 1), v=example.v.repeat_interleave(times, 1))
    assert attention(**example) == attention.exact(**repeated)


@spec.holds("ATT-1", kills=("no_shift", "fixed_shift"), rests_on=(output_is_the_formula,),
            given={**NO_EMPTY, **PLAIN, "softcap": None, "scale": None, "D": (1, 16)})
def large_scores_neither_overflow_nor_give_nan(attention: Subject, example: Example) -> None:
    """Scores of ±256 and a little more, where exp alone would overflow or vanish, give the softmax of their differences.

    Scores, scaled on either side, are exact in every type: bars stay narrow.
    """
    steps = torch.randint(0, 3, example.k.shape[:-1], generator=example.generator("steps"))
    for sign in (1.0, -1.0):
        q, k = torch.zeros_like(example.q), torch.zeros_like(example.k)
        q[..., 0] = sign * 16 * example.dims["D"] ** 0.5
        k[..., 0] = (16 + steps / 8).to(example.dtype)
        large = example.but(q=q, k=k)
        assert attention(**large) == attention.exact(**large)


@spec.holds("ATT-1", kills=("bfloat16_accumulator",), rests_on=(conduct["form"],),
            given={**PLAIN, "softcap": None, "Tk": (8, 16, 64, 128), "Tq": (1, 3), "family": "integers", "B": (1, 2)})
def sums_of_integers_are_exact(attention: Subject, example: Example) -> None:
    """With q = 0 and 2^k keys, integer values whose sum is representable come out exact, whatever the order of summation.

    Large values come first, then a small remainder, then what cancels the large ones: an accumulator of few bits loses the
    remainder. Weights are exact powers of two.
    """
    d = example.dims
    total = d["Tk"]
    v = torch.zeros(example.v.shape, dtype=torch.float64)
    v[:, :, : total // 4] = 8.0 * total
    v[:, :, total // 4 : total // 2] = total / 8
    v[:, :, total // 2 : 3 * total // 4] = -8.0 * total
    zero = example.but(q=torch.zeros_like(example.q), v=v.to(example.dtype))
    out = attention(**zero)
    mean = v.mean(2, keepdim=True).repeat_interleave(d["H"] // d["G"], 1).expand(out.value.shape)
    assert identical(out.value, mean)


@spec.holds("ATT-14", kills=("softmax_over_queries", "scale_after_softmax", "negated"), rests_on=(output_is_the_formula,),
            given={**PLAIN, **NO_EMPTY, "softcap": None, "Tk": at_least(2)})
def one_more_key_mixes_its_value_in(attention: Subject, example: Example) -> None:
    """With one key more, out = w₀·v₀ + (1−w₀)·(out without it), w₀ that key's weight."""
    without = attention(**example.but(k=example.k[:, :, 1:], v=example.v[:, :, 1:]))
    share = weights(attention, example)[..., :1]
    v = example.v.double().repeat_interleave(example.dims["H"] // example.dims["G"], 1)[:, :, :1]
    assert attention(**example) == share * v + (1 - share) * without
