"""What must hold of `logits_filter(logits, *, temperature, top_k, top_p)`: GEN-1 … GEN-4, GEN-7.

Which entries stay is judged by margin: see `logits_filter_cases`.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from assay.cases import Example
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.logits_filter_cases import LogitsFilterCases, agree, few, filtered, temperatures
from assay.subject import Subject

spec = Specification("logits_filter", LogitsFilterCases())
conduct = add_conduct(spec, agree=agree, shown_by="logits_are_divided_by_the_temperature")
PLAIN: dict[str, Any] = {"top_k": None, "top_p": None}
WIDE = ("float64", "float32")


@spec.holds(
    "GEN-1",
    kills=(
        "temperature_multiplied",
        "temperature_ignored",
        "log_probabilities",
        "probabilities",
        "last_of_odd_vocabulary_dropped",
    ),
    needs=("temperature",),
    rests_on=(conduct["form"],),
    given=PLAIN | {"temperature": (0.5, 2.0, 0.7, 1.3)},
)
def logits_are_divided_by_the_temperature(subject: Subject, example: Example) -> None:
    """Without filters the result is logits / temperature."""
    found = filtered(subject, example)
    assert found.out[found.kept] == found.scaled[found.kept]


@spec.holds(
    "GEN-1",
    kills=("greedy_when_cold", "temperature_ignored"),
    needs=("temperature",),
    rests_on=(logits_are_divided_by_the_temperature,),
    given=PLAIN | {"family": ("integers", "normal", "peaked", "positive", "small")},
)
def cold_and_hot_logits_are_divided_too(subject: Subject, example: Example) -> None:
    """At temperatures of 1/80 and of 8, too, every logit is divided, and none is dropped."""
    for temperature in (0.0125, 8.0):
        found = filtered(subject, temperatures(example, temperature))
        assert found.out[found.kept] == found.scaled[found.kept]


@spec.holds(
    "GEN-1",
    kills=("log_probabilities", "probabilities", "kept_are_shifted"),
    rests_on=(conduct["form"],),
    given=PLAIN | {"temperature": 1.0},
)
def temperature_one_is_the_identity(subject: Subject, example: Example) -> None:
    """At temperature 1 the logits come back unchanged."""
    out = subject.values(**example)
    assert identical(out, example.logits, witness=bool((example.logits != 0).any()))


@spec.holds(
    "GEN-1",
    kills=("temperature_multiplied", "temperature_ignored"),
    needs=("temperature",),
    rests_on=(logits_are_divided_by_the_temperature,),
    dtypes=WIDE,
    given=PLAIN
    | {
        "family": ("normal", "peaked", "integers"),
        "V": lambda size: size > 1,
        "N": lambda size: size > 0,
        "masked": False,
    },
)
def low_temperature_sharpens(subject: Subject, example: Example) -> None:
    """Entropy grows with the temperature, and order is kept: no logit overtakes another."""
    order = example.logits.double().argsort(dim=-1, stable=True)
    entropies = []
    for temperature in (0.5, 1.0, 2.0):
        out = subject(**temperatures(example, temperature))
        ranked = out.gather(-1, order)
        assert ranked[..., :-1] <= ranked[..., 1:]
        entropies.append(_entropy(out))
    for sharp, flat in pairwise(entropies):
        assert sharp <= flat
    uneven = example.logits.double().std(-1, correction=0) > 0.5
    if bool(uneven.any()):
        assert entropies[0][uneven] != entropies[-1][uneven]


def _entropy(logits: Bounded) -> Bounded:
    """log Σ e^z − Σ p·z, after the largest is taken off."""
    z = logits - logits.value.amax(-1, keepdim=True)
    e = torch.exp(z)
    total = e.sum(-1)
    entropy: Bounded = torch.log(total) - (e * z).sum(-1) / total
    return entropy


@spec.holds(
    "GEN-1",
    kills=("temperature_multiplied", "temperature_ignored"),
    needs=("temperature",),
    rests_on=(logits_are_divided_by_the_temperature,),
    given=PLAIN | {"family": ("integers", "constant"), "V": lambda size: size > 1, "N": lambda size: size > 0},
)
def small_temperature_is_greedy(subject: Subject, example: Example) -> None:
    """As the temperature goes to 0 the largest logits take all probability, and share it where they tie."""
    out = subject(**temperatures(example, 2.0**-7))
    best = example.logits.double() == example.logits.double().amax(-1, keepdim=True)
    e = torch.exp(out - out.value.amax(-1, keepdim=True))
    share = e / e.sum(-1, keepdim=True)
    limit = best.shape[-1] * math.exp(-(2.0**7))
    assert share[~best] <= limit
    ties = best.sum(-1, keepdim=True).expand_as(best)
    assert share[best] == (1.0 / ties[best].double())


@spec.holds(
    "GEN-1",
    kills=("shifted_before_division", "kept_are_shifted"),
    needs=("temperature",),
    rests_on=(conduct["form"],),
    given=PLAIN | {"masked": False, "N": lambda size: size > 0},
)
def overflow_gives_no_nan(subject: Subject, example: Example) -> None:
    """Where logits / temperature overflows the result is infinite, never NaN."""
    big = torch.finfo(example.dtype).max / 2
    logits = example.logits.clone()
    logits[:, 0] = big
    out = subject.values(**example.but(logits=logits, temperature=0.25))
    assert fact(not bool(out.isnan().any()), "an entry is NaN where a logit overflows", check="no NaN")


@spec.holds(
    "GEN-1",
    kills=("nothing_refused",),
    needs=("temperature",),
    conventions={"temperature_zero": "refused"},
    given=PLAIN,
)
def temperature_zero_is_refused(subject: Subject, example: Example) -> None:
    """A temperature of 0, or below, is refused."""
    assert subject.refuses(**example.but(temperature=0.0))
    assert subject.refuses(**example.but(temperature=-1.0))


@spec.holds(
    "GEN-1",
    kills=("zero_keeps_everything",),
    needs=("temperature",),
    conventions={"temperature_zero": "greedy"},
    given=PLAIN | {"N": lambda size: size > 0},
)
def temperature_zero_is_greedy_where_declared(subject: Subject, example: Example) -> None:
    """At temperature 0 the largest logits alone keep a probability; a temperature below 0 is refused."""
    kept = subject.values(**example.but(temperature=0.0)) > -math.inf
    best = example.logits == example.logits.amax(-1, keepdim=True)
    assert fact(
        bool(kept.any(-1).all()) and not bool((kept & ~best).any()),
        "another entry than the largest is kept",
        got=few(kept[0]),
        expected=few(best[0]),
        check="kept entries at temperature 0",
    )
    assert subject.refuses(**example.but(temperature=-1.0))


@spec.holds(
    "GEN-2",
    kills=(
        "one_more_than_k",
        "one_less_than_k",
        "top_k_ignored",
        "ties_kept",
        "ties_dropped",
        "ordered_by_magnitude",
        "threshold_of_first_row",
    ),
    needs=("top_k",),
    rests_on=(conduct["form"],),
    given={"top_k": (2, 1, 3, 5, 40), "top_p": None},
)
def top_k_keeps_the_k_most_probable(subject: Subject, example: Example) -> None:
    """Top-k keeps the k most probable entries, ties as declared, and the rest become −∞."""
    agree(subject, example)


@spec.holds(
    "GEN-2",
    kills=("large_k_is_error", "last_of_odd_vocabulary_dropped", "log_probabilities"),
    needs=("top_k",),
    rests_on=(conduct["form"],),
    given={"top_k": 200, "top_p": None, "temperature": 1.0},
)
def large_k_is_the_identity(subject: Subject, example: Example) -> None:
    """k at V, or above it, changes nothing."""
    for k in (example.logits.shape[-1], example.logits.shape[-1] + 1, 200):
        assert identical(
            subject.values(**example.but(top_k=k)), example.logits, witness=bool((example.logits != 0).any())
        )


@spec.holds("GEN-2", kills=("nothing_refused",), needs=("top_k",), given=PLAIN)
def k_below_one_never_empties_a_row(subject: Subject, example: Example) -> None:
    """k = 0, or below, is refused, or still keeps the most probable token: no row is left without any.

    The statement asks for a refusal; right filters are known that read k < 1 as 1, or as no filter, and say so nowhere.
    """
    for k in (0, -1):
        answer = subject.attempt(**example.but(top_k=k))
        if answer.refusal is not None:
            fact(bool(answer.refusal.message or answer.refusal.not_implemented), "refused without a message", check=f"k = {k}")
            continue
        shape = tuple(answer.outputs[0].shape)
        if not fact(shape == tuple(example.logits.shape), f"k = {k} gives shape {shape}", check=f"shape at k = {k}", decided=False):
            continue
        best = answer.outputs[0].double().gather(-1, example.logits.double().argmax(-1, keepdim=True))
        kept = bool(best.isfinite().all())
        fact(kept, f"k = {k} drops the most probable token", check=f"k = {k} keeps a token", decided=best.numel() > 0)


@spec.holds(
    "GEN-3",
    kills=(
        "crossing_token_dropped",
        "one_token_too_many",
        "mask_not_scattered_back",
        "least_likely_kept",
        "top_p_ignored",
        "ordered_by_magnitude",
    ),
    needs=("top_p",),
    rests_on=(conduct["form"],),
    given={"top_k": None, "top_p": (0.9, 0.5, 0.3, 0.99)},
)
def top_p_keeps_the_smallest_set(subject: Subject, example: Example) -> None:
    """Top-p keeps the smallest set, from the most probable on, whose probabilities reach p."""
    agree(subject, example)


@spec.holds(
    "GEN-3",
    kills=("small_p_drops_everything", "one_token_too_many", "top_p_ignored"),
    needs=("top_p",),
    rests_on=(conduct["form"],),
    given={"top_k": None, "top_p": 0.3, "N": lambda size: size > 0},
)
def small_p_keeps_the_best(subject: Subject, example: Example) -> None:
    """However small p, the most probable entry stays, alone."""
    agree(subject, example.but(top_p=2.0**-30))


@spec.holds(
    "GEN-3",
    kills=("nearly_one_keeps_everything", "top_p_ignored"),
    needs=("top_p",),
    rests_on=(top_p_keeps_the_smallest_set,),
    given={"top_k": None, "top_p": 0.99, "N": lambda size: size > 0, "V": lambda size: size > 4},
)
def nearly_one_is_not_one(subject: Subject, example: Example) -> None:
    """At p = 0.998 the least probable entries still go."""
    agree(subject, example.but(top_p=0.998))


@spec.holds(
    "GEN-3",
    kills=("whole_mass_by_running_sum", "last_of_odd_vocabulary_dropped", "probabilities"),
    needs=("top_p",),
    rests_on=(conduct["form"],),
    given={"top_k": None, "top_p": 1.0, "temperature": 1.0},
)
def p_of_one_is_the_identity(subject: Subject, example: Example) -> None:
    """p = 1 keeps everything by rule, also what a running sum would no longer see."""
    assert identical(subject.values(**example), example.logits, witness=bool((example.logits != 0).any()))


@spec.holds(
    "GEN-3",
    "E13",
    kills=("exceeds_where_reach_is_declared", "top_p_ignored"),
    needs=("top_p",),
    rests_on=(conduct["form"],),
    given={"top_k": None, "top_p": 0.5, "temperature": 1.0, "V": lambda size: size > 1, "N": lambda size: size > 0},
)
def equality_is_as_declared(subject: Subject, example: Example) -> None:
    """Where the probabilities reach p exactly, one entry of two equal ones is kept at p = 1/2, or both where declared.

    Two equal logits have probability 1/2 each in any arithmetic; everything else is −∞.
    """
    logits = torch.full_like(example.logits, -math.inf)
    places = example.permutation("places", logits.shape[-1])[:2]
    logits[:, places] = 3.0
    kept = (subject.values(**example.but(logits=logits)) > -math.inf).sum(-1)
    wanted = 2 if subject.conventions["topp_boundary"] == "exceed" else 1
    assert fact(
        bool((kept == wanted).all()),
        "equality with p is not decided as declared",
        got=f"{kept.tolist()} entries kept",
        expected=f"{wanted}",
        check="entries kept at equality",
    )


@spec.holds(
    "GEN-4",
    kills=(
        "top_p_first",
        "top_p_not_renormalised",
        "temperature_last",
        "top_k_ignored_with_top_p",
        "top_k_ignored",
        "top_p_ignored",
    ),
    needs=("top_k", "top_p", "temperature"),
    rests_on=(conduct["form"],),
    given={"top_k": (2, 3, 5), "top_p": (0.9, 0.5, 0.3), "temperature": (0.5, 2.0, 0.7)},
)
def temperature_then_top_k_then_top_p(subject: Subject, example: Example) -> None:
    """Temperature comes first, then top-k, then top-p on the renormalised rest."""
    agree(subject, example)


@spec.holds(
    "GEN-4", kills=("small_p_drops_everything",), rests_on=(conduct["form"],), given={"N": lambda size: size > 0}
)
def result_is_a_distribution(subject: Subject, example: Example) -> None:
    """The softmax of the result is a distribution: every row keeps an entry, and none is NaN or +∞."""
    smallest = 2.0**-30 if "top_p" in example.arguments and example.top_p < 1 else None
    asked = example if smallest is None else example.but(top_p=smallest)
    out = subject.values(**asked)
    assert fact(
        bool(out.amax(-1).isfinite().all()), "a row keeps nothing, or holds NaN or +∞", check="rows are distributions"
    )


@spec.holds(
    "GEN-7",
    "E14",
    kills=(
        "dropped_are_zero",
        "dropped_are_small_positive",
        "dropped_are_finite",
        "probabilities",
        "kept_are_shifted",
        "log_probabilities",
    ),
    rests_on=(conduct["form"],),
    given={"temperature": 1.0, "top_k": (None, 2, 1, 3), "top_p": (0.9, 0.5, None), "V": lambda size: size > 3},
)
def kept_logits_are_untouched(subject: Subject, example: Example) -> None:
    """Kept logits are the input's, bit for bit, and dropped ones −∞: so kept probabilities keep their ratios and sum to 1."""
    found = filtered(subject, example)
    assert identical(
        found.out.value[found.kept], example.logits.double()[found.kept], witness=not bool(found.kept.all())
    )


@spec.holds(
    "GEN-7",
    kills=("cut_at_ten_thousand",),
    rests_on=(kept_logits_are_untouched,),
    given={"temperature": 1.0, "top_k": (None, 2), "top_p": None, "family": ("normal", "integers")},
    examples=3,
)
def large_logits_are_untouched(subject: Subject, example: Example) -> None:
    """Kept logits of some ten thousand are the input's too, bit for bit: nothing is cut to a range."""
    large = example.but(logits=example.logits * 2.0**13)
    found = filtered(subject, large)
    kept = large.logits.double()[found.kept]
    assert identical(found.out.value[found.kept], kept, witness=bool((kept != 0).any()))


@spec.holds(
    "GEN-2",
    "GEN-3",
    kills=("threshold_of_first_row",),
    rests_on=(conduct["form"],),
    conventions={"row_dependence": "none"},
    given={"N": lambda size: size > 1, "top_k": (2, 3, 5, None)},
)
def rows_do_not_touch_each_other(subject: Subject, example: Example) -> None:
    """Replacing the other rows leaves a row's result as it was."""
    other = example.logits.clone()
    other[1:] = example.values("other rows", *other[1:].shape, family="normal")
    other[:1], moved = example.logits[:1] * 1, torch.cat([other[1:], example.logits[:1]])
    before, after, last = (subject.values(**example.but(logits=one)) for one in (example.logits, other, moved))
    assert identical(after[0], before[0], witness=bool((after[1:] != before[1:]).any()))
    assert identical(last[-1], before[0], witness=bool((last[:-1] != before[1:]).any()))
