"""What must hold of `sink_attention(q, k, v, sinks, *, causal, window, scale)`: X-SINK-1 … X-SINK-3."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.attention_cases import draw_operands, visible, within_budget
from assay.spec.conduct import add_conduct, nothing_upstream
from assay.subject import Subject

LOW, HIGH = -2.0**13, 6.0  # a sink far below every score; one above most of them


class SinkAttentionCases(Cases):
    """Lengths as attention has them; sinks drawn, all zero, far below, above, and different enough to tell heads apart."""

    kind = "sink_attention"
    dims = {
        "B": (1, 2, 3, 0), "H": (2, 1, 4, 3, 6), "G": (1, 2, 3, 4, 6), "Tq": (3, 1, 2, 4, 5, 8, 17, 33, 65, 0),
        "Tk": (3, 2, 1, 4, 5, 8, 16, 17, 33, 64, 65, 129, 0), "D": (2, 1, 3, 4, 8, 16, 64), "Dv": (2, 1, 3, 4, 8, 16),
    }
    flags = {"causal": (False, True, True), "window": (None, 2, None, 1, None, 3, None, 16), "scale": (None, 0.5, 0.3),
             "sinks": ("drawn", "zeros", "steps", "low", "high"), "lengths": ("free", "equal")}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), configuration.flags
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        if not claims.claims("cross_lengths") or flags["lengths"] == "equal":
            dims["Tq"] = dims["Tk"]
        dims = within_budget(dims, claims)
        if flags["lengths"] == "equal":
            dims["Tq"] = dims["Tk"] = min(dims["Tq"], dims["Tk"])
        if not claims.claims("empty_rows"):
            dims["Tk"] = max(1, dims["Tk"])
            dims["Tq"] = min(dims["Tq"], dims["Tk"])
        return replace(configuration, dims=dims)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        arguments: dict[str, Any] = {
            **draw_operands(configuration, dtype),
            "sinks": draw_sinks(flags["sinks"], d["H"], generator(seed, "sinks"), dtype),
        }
        arguments |= {name: flags[name] for name in ("window", "scale") if flags[name] is not None}
        if flags["causal"]:
            arguments["causal"] = True
        return Example(configuration, dtype, arguments)


def draw_sinks(sort: str, heads: int, source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """One logit a head: about as large as scores, all zero, each a step above the last, far below, or above."""
    fixed = {"zeros": 0.0, "low": LOW, "high": HIGH}
    if sort in fixed:
        return torch.full((heads,), fixed[sort], dtype=dtype)
    if sort == "steps":
        return (torch.arange(heads) - heads / 2).to(dtype)
    return draw_values("normal", (heads,), source, dtype)


SOME = {"B": at_least(1), "Tq": at_least(1), "Tk": at_least(1)}
PLAIN = {"causal": False, "window": None}
TOLD = {"sinks": ("drawn", "zeros", "steps")}  # sinks that take a good part of the weight
spec = Specification("sink_attention", SinkAttentionCases())
conduct = add_conduct(spec)


def mass(subject: Subject, example: Example) -> Bounded:
    """What the keys share among them (B,H,Tq,1): the output for values that are all 1."""
    return subject(**example.but(v=torch.ones_like(example.v)))[..., :1]


@spec.holds("X-SINK-1", kills=(
    "sinks_ignored", "sink_scaled", "sink_always_zero", "sink_negated", "sink_counted_twice", "sink_of_first_head",
    "sinks_by_group", "sinks_shifted_by_one_head", "sink_subtracts_its_logit", "sink_hidden_by_causality", "window_one_too_wide",
    "causal_strict", "scale_ignored", "gate_upside_down", "negated", "zeros"), rests_on=(conduct["form"],))
def output_is_the_formula(attention: Subject, example: Example) -> None:
    """Every output is Σ exp(s)·v / (exp(sink) + Σ exp(s)) over the visible keys: the sink takes weight and has no value."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("X-SINK-2", kills=("sink_always_zero", "sink_negated", "sink_clamped"), rests_on=(conduct["form"],), given=SOME)
def low_sinks_give_attention(attention: Subject, example: Example) -> None:
    """With sinks far below every score, the output is that of attention without sinks."""
    low = example.but(sinks=torch.full_like(example.sinks, LOW))
    plain = {name: value.double() if isinstance(value, torch.Tensor) else value for name, value in low.items() if name != "sinks"}
    expected = registry.reference("attention").attention(**plain, causal_alignment=attention.conventions["causal_alignment"])
    assert attention(**low) == expected


@spec.holds("X-SINK-1", kills=("sinks_ignored", "sink_counted_twice", "sink_hidden_by_causality"), rests_on=(conduct["form"],),
            given={**SOME, "family": "integers"})
def equal_scores_share_with_the_sink(attention: Subject, example: Example) -> None:
    """With queries and sinks of zero, a query that sees n keys gets the sum of their values over n + 1."""
    d, keep = example.dims, visible(example, attention.conventions["causal_alignment"]).double()
    even = example.but(q=torch.zeros_like(example.q), sinks=torch.zeros_like(example.sinks))
    v = example.v.double().repeat_interleave(d["H"] // d["G"], 1)
    assert attention(**even) == keep @ v / (keep.sum(-1, keepdim=True) + 1)


@spec.holds("X-SINK-1", kills=("sink_value_is_mean",), rests_on=(output_is_the_formula,),
            given={**SOME, **TOLD})
def sinks_scale_outputs_and_turn_none(attention: Subject, example: Example) -> None:
    """Another sink makes an output longer or shorter, in proportion to the weight that the keys keep, and nothing else."""
    other = example.but(sinks=example.sinks + 1)
    assert attention(**example) * mass(attention, other) == attention(**other) * mass(attention, example)


@spec.holds("X-SINK-1", kills=("sinks_ignored", "sink_always_zero", "sink_value_is_mean"), rests_on=(conduct["form"],),
            given={**SOME, **TOLD, "family": ("integers", "normal", "small", "positive"), "window": None, "lengths": "equal"})
def keys_share_less_than_one(attention: Subject, example: Example) -> None:
    """Weights of the keys sum to less than 1, and to less the higher the sink."""
    higher = example.but(sinks=example.sinks + 2)
    first, second = mass(attention, example), mass(attention, higher)
    assert first <= 1
    assert second <= first
    ones = torch.ones_like(example.v)
    kept, less = (attention.exact(**one.but(v=ones))[..., :1].value for one in (example, higher))
    if bool((1 - kept > 2 * first.bar).any()):
        assert first != 1
    if bool((kept - less > 2 * (first.bar + second.bar)).any()):
        assert second != first


@spec.holds("X-SINK-1", kills=("sink_of_first_head", "sinks_by_group", "sinks_shifted_by_one_head", "sinks_averaged"),
            rests_on=(conduct["form"],), given={**SOME, **TOLD, "H": at_least(2)}, conventions={"row_dependence": "none"})
def each_head_has_its_own_sink(attention: Subject, example: Example) -> None:
    """Another sink for one head changes that head, and no other in any bit."""
    head = example.integer("head", 0, example.dims["H"] - 1)
    sinks = example.sinks.clone()
    sinks[head] += 2
    before, after = attention(**example), attention(**example.but(sinks=sinks))
    others = torch.arange(example.dims["H"]) != head
    moved = bool(((before - after)[:, head].value.abs() > (before + after)[:, head].bar).any())
    assert identical(after.value[:, others], before.value[:, others], witness=moved)
    assert after[:, head] == attention.exact(**example.but(sinks=sinks))[:, head]


@spec.holds("X-SINK-1", kills=("sink_scaled", "sink_always_zero", "sink_clamped", "no_shift", "sink_left_out_of_maximum"),
            rests_on=(conduct["form"],), needs=("scale",),
            given={**SOME, **TOLD, "scale": 0.5, "D": at_least(2), "family": ("integers", "small", "positive")})
def shifting_scores_and_sinks_alike_changes_nothing(attention: Subject, example: Example) -> None:
    """A number added to every score and to every sink leaves the output as it is, also where exp alone would overflow."""
    for shift in (4.0, 16.0, -16.0) if example.dtype.itemsize < 4 else (4.0, 64.0, -64.0, 256.0):
        q, k, sinks = example.q.clone(), example.k.clone(), torch.full_like(example.sinks, shift)
        q[..., 0], k[..., 0] = 2.0, shift
        moved = example.but(q=q, k=k, sinks=sinks)
        assert attention(**moved) == attention.exact(**moved.but(k=torch.cat([0 * k[..., :1], k[..., 1:]], -1), sinks=0 * sinks))


@spec.holds("X-SINK-1", kills=("sink_left_out_of_maximum", "no_shift"), rests_on=(output_is_the_formula,),
            given={**SOME, "family": ("integers", "small")})
def high_sinks_do_not_overflow(attention: Subject, example: Example) -> None:
    """A sink so high that exp alone would overflow leaves its head next to nothing, and no NaN; other heads are as they were."""
    sinks = torch.full_like(example.sinks, 256.0)
    sinks[0] = 0.0
    high = example.but(sinks=sinks)
    assert attention(**high) == attention.exact(**high)


@spec.holds("X-SINK-2", kills=("empty_row_nan", "empty_row_mean"), rests_on=(conduct["form"],),
            needs=("empty_rows", "cross_lengths", "causal"),
            given={"causal": True, "lengths": "free", "B": at_least(1), "Tq": (3, 5, 8, 17), "Tk": (2, 1, 4)},
            conventions={"causal_alignment": "bottom_right"})
def queries_without_keys_give_zeros(attention: Subject, example: Example) -> None:
    """A query that sees no key leaves all its weight to the sink: zeros, and no NaN."""
    empty = ~visible(example).any(-1)
    out = attention(**example).value
    assert identical(out[empty], 0.0, witness=bool((out != 0).any()))


@spec.holds("X-SINK-1", kills=("grouped_heads_tiled", "sinks_by_group"), rests_on=(conduct["form"],), needs=("gqa",),
            given={"H": (4, 6), "G": (2, 3), **SOME, **TOLD})
def grouped_heads_share_keys_in_blocks(attention: Subject, example: Example) -> None:
    """Query heads that share a key head give what each gives with a copy of it, in blocks; sinks go by query head."""
    times = example.dims["H"] // example.dims["G"]
    repeated = example.but(k=example.k.repeat_interleave(times, 1), v=example.v.repeat_interleave(times, 1))
    assert attention(**example) == attention.exact(**repeated)


@spec.holds("X-SINK-1", kills=("last_key_dropped", "sink_in_place_of_first_key"), rests_on=(conduct["form"],),
            given={**PLAIN, **SOME})
def order_of_keys_does_not_matter(attention: Subject, example: Example) -> None:
    """Permuting keys and values together changes nothing."""
    shuffle = example.permutation("keys", example.dims["Tk"])
    moved = example.but(k=example.k[:, :, shuffle], v=example.v[:, :, shuffle])
    assert attention(**moved) == attention(**example)


@spec.holds("X-SINK-3", kills=("sinks_detached", "sink_gradient_negated", "sink_gradient_of_one_sample", "sink_gradient_averaged",
                               "row_sum_without_sink", "upstream_taken_for_ones", "grouped_key_gradient_not_summed"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of queries, keys, values and sinks are those of the formula, summed over all that share a sink."""
    found, exact = attention.gradients(**example), attention.exact_gradients(**example)
    for name in ("sinks", "v", "q", "k"):
        assert found[name] == exact[name]


@spec.holds("X-SINK-3", kills=("sinks_detached", "sink_gradient_negated", "sink_gradient_of_one_sample", "row_sum_without_sink"),
            rests_on=(gradients_are_the_formula,), gradient=True, needs=("scale",), dtypes=("float64", "float32"),
            given={**SOME, **TOLD, "G": "H", "scale": 0.5, "family": ("integers", "normal", "positive")})
def gradients_of_scores_and_sink_sum_to_zero(attention: Subject, example: Example) -> None:
    """A shift common to a head's scores and its sink changes nothing, so their gradients cancel.

    The first channel of every query is 2, at scale 1/2: the first channel of the keys' gradient is that of the scores.
    """
    q = example.q.clone()
    q[..., 0] = 2.0
    found = attention.gradients(**example.but(q=q), wrt=("k", "sinks"))
    assert found["k"][..., 0].sum((0, 2)) == -found["sinks"]


@spec.holds("X-SINK-3", kills=("upstream_taken_for_ones",), rests_on=(conduct["form"],), gradient=True, given=SOME)
def no_upstream_gradient_gives_none(attention: Subject, example: Example) -> None:
    """An upstream gradient of zeros gives gradients of exactly zero."""
    nothing_upstream(attention, example)
