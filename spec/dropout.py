"""What must hold of `dropout(x, *, p, training, seed)`: FFN-4.

Which elements a seed drops is the implementation's own. Judged is what can be seen: the zeros that it made, what became of the
other elements, and the statistics of the zeros, by exact binomial tests.
"""
from __future__ import annotations

from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.hosting import Answer
from assay.ledger import fact, identical, statistic
from assay.numbers.bound import Bounded
from assay.numbers.evaluate import evaluate
from assay.properties import Specification
from assay.spec.chance import binomials
from assay.spec.conduct import add_conduct
from assay.subject import Subject

ALPHA = 1e-9  # false alarms of one decision
DRAWS = (256, 129)  # rows and columns of a statistical example
SEEDS = 40  # that one element is never dropped in so many seeds at p = 1/2 is a chance of 2⁻⁴⁰


class DropoutCases(Cases):
    """Rows of C elements, a few or none dropped up to all of them, in training and in evaluation."""

    kind = "dropout"
    dims = {"B": (2, 1, 3, 5, 0), "T": (3, 1, 2, 8, 17), "C": (4, 1, 2, 3, 5, 8, 17, 33, 65)}
    flags = {"p": (0.5, 0.1, 0.25, 0.9, 0.0, 1.0, 0.003), "training": (True, False, True)}
    families = ("normal", "integers", "positive", "peaked", "small", "heavy", "cancelling")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if configuration.dims["B"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(B=1)
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        x = draw_values(configuration.family, (d["B"], d["T"], d["C"]), generator(seed, "x"), dtype)
        arguments: dict[str, Any] = {"x": x, "p": flags["p"], "training": flags["training"], "seed": seed}
        return Example(configuration, dtype, arguments)


def kept_value(subject: Subject, x: torch.Tensor, p: float) -> Bounded:
    """x / (1 − p) with the bar that its rounding is allowed."""
    forms = registry.reference("dropout").KEPT_FORMS
    found = evaluate(forms, {"x": x, "p": p}, subject.dtype, subject.declaration.arithmetic).outputs[0]
    assert isinstance(found, Bounded)
    return found


def output(answer: Answer, example: Example) -> torch.Tensor:
    """The output as it came, in float64; a wrong shape is recorded and ends the example."""
    out = answer.outputs[0]
    shaped = isinstance(out, torch.Tensor) and out.shape == example.x.shape
    assert fact(shaped, "the output has not the shape of x", check="shape of out", decided=False)
    found: torch.Tensor = out.double()
    return found


def is_dropout(subject: Subject, example: Example) -> None:
    """Every element is x/(1−p), or 0 where training may drop it; in evaluation, and for p = 0, it is x."""
    out = output(subject.answer(**example), example)
    if not example.training or example.p == 0:
        identical(out, example.x.double(), check="out is x")
        return
    kept = (out != 0) | out.isnan()
    bounded = kept_value(subject, example.x, example.p)
    assert fact(not bool(out.isnan().any()), "an output is NaN", check="outputs are finite", decided=False)
    if example.p == 1 or not bool(kept.any()):
        fact(not bool(kept.any()) or example.p < 1, "p = 1 keeps an element", check="p = 1 keeps nothing", decided=example.p == 1)
        return
    measured = Bounded(out[kept], bounded.bar[kept])
    assert measured == bounded.value[kept]


spec = Specification("dropout", DropoutCases())
conduct = add_conduct(spec, agree=is_dropout, shown_by="elements_are_dropped_or_scaled")
TRAINED = {"training": True, "B": lambda size: size > 0}
DROPPING = {**TRAINED, "p": (0.5, 0.1, 0.25, 0.9, 0.003)}


@spec.holds("FFN-4", kills=("not_scaled", "scaled_by_p", "p_one_gives_nan", "half_the_rate"), rests_on=(conduct["form"],),
            given=TRAINED)
def elements_are_dropped_or_scaled(dropout: Subject, example: Example) -> None:
    """In training each element is 0 or x/(1−p): what is kept makes up for what is dropped, so the mean is kept."""
    is_dropout(dropout, example)


@spec.holds("FFN-4", kills=("on_in_evaluation", "scaled_in_evaluation"), rests_on=(conduct["form"],), given={"training": False})
def evaluation_is_the_identity(dropout: Subject, example: Example) -> None:
    """In evaluation the output is x, bit for bit, whatever p."""
    assert identical(output(dropout.answer(**example), example), example.x.double())


@spec.holds("FFN-4", kills=("drops_without_a_rate",), rests_on=(conduct["form"],), given={**TRAINED, "p": 0.0})
def rate_zero_is_the_identity(dropout: Subject, example: Example) -> None:
    """In training with p = 0 the output is x, bit for bit."""
    assert identical(output(dropout.answer(**example), example), example.x.double())


@spec.holds("FFN-4", kills=("seed_and_a_counter",), rests_on=(conduct["form"],), given={**DROPPING, "C": lambda size: size > 7})
def same_seed_gives_the_same_elements(dropout: Subject, example: Example) -> None:
    """The same seed drops the same elements of another input of that shape, and of this one again."""
    ones = example.but(x=torch.ones_like(example.x))
    first = output(dropout.answer(**ones), ones)
    twice = example.but(x=torch.full_like(example.x, 2.0))
    assert identical(output(dropout.answer(**ones), ones), first)
    assert identical(output(dropout.answer(**twice), twice) == 0, first == 0)


@spec.holds("FFN-4", kills=("drops_the_smallest",), rests_on=(conduct["form"],),
            given={**DROPPING, "B": lambda size: size > 1, "C": lambda size: size > 7})
def other_rows_do_not_matter(dropout: Subject, example: Example) -> None:
    """Replacing the other rows leaves a row's output equal bit for bit: what is dropped does not hang on what is there."""
    other = example.x.clone()
    other[1:] = 7 * example.values("other rows", *other[1:].shape, family="normal")
    before = output(dropout.answer(**example), example)
    after = output(dropout.answer(**example.but(x=other)), example)
    assert identical(before[0], after[0], witness=bool((before[1:] != after[1:]).any()))


@spec.holds("FFN-4", kills=("gradient_undropped", "gradient_unscaled", "other_mask_in_the_backward"), rests_on=(conduct["form"],),
            gradient=True, given=DROPPING)
def gradient_passes_where_the_element_did(dropout: Subject, example: Example) -> None:
    """The gradient is g/(1−p) at the elements that this very call kept and exactly 0 at those it dropped."""
    ones = example.but(x=torch.ones_like(example.x))
    upstream = draw_values("positive", tuple(example.x.shape), example.generator("upstream"), example.dtype) + 1
    answer = dropout.answer(_wrt=("x",), _upstream=(upstream,), **ones)
    kept, gradient = output(answer, ones) != 0, answer.gradients["x"]
    assert fact(gradient is not None and gradient.shape == example.x.shape, "no gradient of the shape of x", decided=False)
    assert gradient is not None
    found, bounded = gradient.double(), kept_value(dropout, upstream, example.p)
    identical(found[~kept], 0.0, witness=bool(kept.any()))
    assert Bounded(found[kept], bounded.bar[kept]) == bounded.value[kept]


# ------------------------------------------------------------------------------------------------ statistics
STATISTICAL = {**DROPPING, "B": (1,), "T": (1,), "C": (4,), "family": "normal"}


def dropped(dropout: Subject, example: Example, seed: int) -> torch.Tensor:
    """Which of a large table of ones this seed drops."""
    table = example.but(x=torch.ones(DRAWS, dtype=example.dtype), seed=seed)
    return output(dropout.answer(**table), table) == 0


def frequency(counts: torch.Tensor, trials: int) -> str:
    """The count furthest from the rest, as a share."""
    return f"{float(counts.min()) / trials:.3g} to {float(counts.max()) / trials:.3g}"


@spec.holds("FFN-4", kills=("half_the_rate", "keeps_with_rate_p", "never_drops", "rate_of_eight_bits"),
            rests_on=(elements_are_dropped_or_scaled,), given=STATISTICAL, statistical=ALPHA)
def zeros_come_with_rate_p(dropout: Subject, example: Example) -> None:
    """The share of zeros is p, by an exact binomial test of 33024 elements.

    A rate that is off by 20 % is found out with a probability above 1 − 10⁻⁶ for every p of a tenth or more that is tried; at
    p = 0.003, which 8 bits make 0 or 0.0039, one of zero or of three times as many.
    """
    lost = dropped(dropout, example, example.seed)
    count = lost.sum().reshape(1)
    assert statistic(binomials(count, lost.numel(), example.p), ALPHA, text="the share of zeros is not p",
                     got=frequency(count, lost.numel()), expected=f"{example.p:g}")


@spec.holds("FFN-4", kills=("whole_rows", "last_column_kept"), rests_on=(zeros_come_with_rate_p,), given=STATISTICAL,
            statistical=ALPHA)
def every_row_and_column_drops_with_rate_p(dropout: Subject, example: Example) -> None:
    """No row and no column drops more or fewer elements than rate p allows, each by an exact binomial test."""
    lost = dropped(dropout, example, example.seed)
    for axis, name in ((1, "row"), (0, "column")):
        count = lost.sum(axis)
        assert statistic(binomials(count, lost.shape[axis], example.p), ALPHA, text=f"a {name} drops with another rate",
                         got=frequency(count, lost.shape[axis]), expected=f"about {example.p:g}")


@spec.holds("FFN-4", kills=("evenly_spread", "whole_rows"), rests_on=(zeros_come_with_rate_p,), given=STATISTICAL,
            statistical=ALPHA)
def neighbours_drop_independently(dropout: Subject, example: Example) -> None:
    """Neighbours are dropped together with rate p², by an exact binomial test of separate pairs."""
    pairs = dropped(dropout, example, example.seed).flatten()[: DRAWS[0] * DRAWS[1] // 2 * 2].reshape(-1, 2)
    both = pairs.all(-1).sum().reshape(1)
    assert statistic(binomials(both, len(pairs), example.p**2), ALPHA, text="neighbours do not drop independently",
                     got=frequency(both, len(pairs)), expected=f"{example.p**2:g}")


@spec.holds("FFN-4", kills=("tail_of_four_kept",), rests_on=(elements_are_dropped_or_scaled,), statistical=ALPHA, examples=2,
            given={"training": True, "p": 0.5, "B": 1, "T": 1, "C": (5, 3, 17, 33), "family": "normal", "layout": "contiguous"})
def each_element_of_a_small_input_drops(dropout: Subject, example: Example) -> None:
    """Over many seeds every single element of a small input, the last ones too, drops with rate p, by an exact binomial test."""
    ones = example.but(x=torch.ones_like(example.x))
    several = [ones.but(seed=seed) for seed in range(example.seed, example.seed + SEEDS)]
    count = torch.stack([output(dropout.answer(**one), one) == 0 for one in several]).sum(0).flatten()
    assert statistic(binomials(count, SEEDS, example.p), ALPHA, text="an element drops with another rate",
                     got=frequency(count, SEEDS), expected=f"about {example.p:g}")


@spec.holds("FFN-4", kills=("same_mask_for_every_seed", "eight_bits_of_the_seed", "seed_moves_the_mask"),
            rests_on=(zeros_come_with_rate_p,), given=STATISTICAL, statistical=6 * ALPHA)
def seeds_drop_independently(dropout: Subject, example: Example) -> None:
    """Two seeds, close or far, drop the same element, or neighbours, with rate p², by exact binomial tests."""
    first = dropped(dropout, example, example.seed).flatten()
    following = dropped(dropout, example, example.seed + 1).flatten()
    pairs = [(first, following), (first[1:], following[:-1]), (first[:-1], following[1:])]
    pairs += [(first, dropped(dropout, example, example.seed + far).flatten()) for far in (2, 256, 65536)]
    for one, other in pairs:
        both = (one & other).sum().reshape(1)
        assert statistic(binomials(both, len(one), example.p**2), ALPHA, text="two seeds do not drop independently",
                         got=frequency(both, len(one)), expected=f"{example.p**2:g}")
