"""What must hold of `rms_norm(x, weight, *, eps)`: RMS-1 … RMS-5."""
from __future__ import annotations

import math

import torch

from assay.cases import Example, at_least
from assay.errors import NotExercisedError
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.norm_cases import (
    SOME,
    TOKENS,
    NormCases,
    exactly,
    mean_square,
    mean_zero,
    one_feature_grown,
    others_replaced,
    usual_eps,
    variance,
)
from assay.subject import Subject


class RmsNormCases(NormCases):
    """As for layer normalisation, with a weight alone."""

    kind = "rms_norm"


spec = Specification("rms_norm", RmsNormCases())
conduct = add_conduct(spec)


@spec.holds("RMS-1", "E1", kills=(
    "divides_by_the_norm", "divides_by_the_mean_square", "epsilon_ignored", "epsilon_fixed", "epsilon_beside_the_root",
    "weight_offset_by_one", "without_weight", "centred", "deviation_for_the_root", "loses_the_sign", "last_columns_left",
    "last_columns_not_counted", "statistics_of_the_batch", "rounds_before_the_weight", "squares_in_half",
    "sums_in_low_precision", "adds_an_unwritten_residual", "no_reduction"), rests_on=(conduct["form"],))
def output_is_the_formula(rms_norm: Subject, example: Example) -> None:
    """Every output is x_i / √(mean(x²) + eps) · weight_i: the mean of the squares, not their sum."""
    assert rms_norm(**example) == rms_norm.exact(**example)


@spec.holds("RMS-1", "E1", kills=("divides_by_the_norm", "no_reduction", "divides_by_the_mean_square",
                                  "weight_offset_by_one"), rests_on=(conduct["form"],), given={**SOME, "token": "drawn"})
def mean_square_becomes_one(rms_norm: Subject, example: Example) -> None:
    """With weight 1 the mean square of every output token is ms / (ms + eps), ms that of the input."""
    out = rms_norm(**example.but(weight=torch.ones_like(example.weight)))
    found = (out * out).sum(-1, keepdim=True) / example.x.shape[-1]
    ms = mean_square(example.x)
    assert found == ms / (ms + example.eps)


@spec.holds("RMS-1", kills=("no_reduction", "statistics_of_the_batch", "remembers_by_shape"), rests_on=(conduct["form"],),
            given={**SOME, "C": at_least(2), "family": ("integers", "normal", "positive"), "size": "unit"})
def one_large_feature_shrinks_the_others(rms_norm: Subject, example: Example) -> None:
    """When one feature of a token grows a hundredfold, all others shrink by the ratio of the roots."""
    grown, left = one_feature_grown(example, 100.0)
    before = rms_norm(**example) * (mean_square(example.x) + example.eps).sqrt()
    after = rms_norm(**grown) * (mean_square(grown.x) + example.eps).sqrt()
    assert after[..., left] == before[..., left]


@spec.holds("RMS-1", kills=("epsilon_ignored", "epsilon_fixed", "epsilon_beside_the_root", "squares_in_half"),
            rests_on=(conduct["form"],), given={**SOME, "size": ("root_eps", "below_eps")})
def epsilon_is_inside_the_root(rms_norm: Subject, example: Example) -> None:
    """On tokens as small as √eps, and so small that only eps is left, the divisor is √(ms + eps) with the eps that was given."""
    assert rms_norm(**example) == rms_norm.exact(**example)


@spec.holds("RMS-1", kills=("epsilon_ignored",), rests_on=(conduct["form"],),
            given={**SOME, "token": "zero", "eps": usual_eps, "C": at_least(2)})
def zero_token_gives_zero(rms_norm: Subject, example: Example) -> None:
    """A token of zeros gives exactly 0, not NaN."""
    out, other = rms_norm(**example), rms_norm(**example.but(x=example.x + 1))
    zero = (example.x == 0).all(-1)
    assert identical(out.value[zero], 0.0, witness=bool((other.value != 0).any()))


@spec.holds("RMS-1", kills=("weight_offset_by_one", "without_weight", "adds_an_unwritten_residual"),
            rests_on=(conduct["form"],), given={**SOME, "eps": usual_eps})
def zero_weight_gives_zero(rms_norm: Subject, example: Example) -> None:
    """The weight multiplies as it is: weight 0 gives exactly 0, whatever the token."""
    out, some = rms_norm(**example.but(weight=example.weight * 0)), rms_norm(**example)
    assert identical(out.value, 0.0, witness=bool((some.value != 0).any()))


@spec.holds("RMS-2", kills=("epsilon_beside_the_root", "divides_by_the_mean_square", "no_reduction", "epsilon_ignored"),
            rests_on=(conduct["form"],), given=SOME)
def scaling_a_token_changes_nothing_but_epsilon(rms_norm: Subject, example: Example) -> None:
    """Scaling a token by s changes its output by √((ms + eps) / (ms + eps/s²)) alone: not at all when eps is negligible."""
    before = rms_norm(**example) * (mean_square(example.x) + example.eps).sqrt()
    for scale in (4.0, 16.0):
        after = rms_norm(**example.but(x=example.x * scale))
        assert after * (mean_square(example.x) + example.eps / scale**2).sqrt() == before


@spec.holds("RMS-2", kills=("loses_the_sign",), rests_on=(conduct["form"],), given=SOME)
def negating_a_token_negates_the_output(rms_norm: Subject, example: Example) -> None:
    """rms_norm(−x) = −rms_norm(x), bit for bit."""
    before, after = rms_norm(**example), rms_norm(**example.but(x=-example.x))
    assert identical(after.value, -before.value, witness=bool((before.value != 0).any()))


@spec.holds("RMS-2", kills=("centred",), rests_on=(conduct["form"],),
            given={**SOME, "C": at_least(2), "token": "drawn", "size": "unit", "family": ("integers", "normal", "positive")})
def shifting_a_token_changes_the_output(rms_norm: Subject, example: Example) -> None:
    """Adding a constant to all features of a token changes its output: nothing is centred."""
    moved = example.but(x=example.x + 4)
    before, after = rms_norm(**example), rms_norm(**moved)
    apart = (rms_norm.exact(**example).value - rms_norm.exact(**moved).value).abs() > 2 * (before.bar + after.bar)
    if not bool(apart.any()):
        fact(True, "", check="the shift is seen in the exact output", decided=False)
        return
    assert before[apart] != after[apart]


@spec.holds("RMS-3", kills=("divides_by_the_norm", "loses_the_sign"), rests_on=(conduct["form"],),
            given={**SOME, "C": at_least(2)})
def on_tokens_of_mean_zero_it_is_layer_norm(rms_norm: Subject, example: Example) -> None:
    """On tokens of mean 0 it equals layer normalisation with the same eps, the same weight and bias 0."""
    x = mean_zero(example.x)
    layer_norm = (exactly(x) - exactly(x).sum(-1, keepdim=True)) / (variance(x) + example.eps).sqrt() * exactly(example.weight)
    assert rms_norm(**example.but(x=x)) == layer_norm


@spec.holds("RMS-1", kills=("last_columns_left", "last_columns_not_counted"), rests_on=(conduct["form"],),
            given={**SOME, "C": at_least(2)})
def permuting_features_permutes_the_output(rms_norm: Subject, example: Example) -> None:
    """Permuting the features of all tokens and of the weight together permutes the output."""
    shuffle = example.permutation("features", example.x.shape[-1])
    moved = example.but(x=example.x[..., shuffle], weight=example.weight[shuffle])
    assert rms_norm(**moved) == rms_norm(**example)[..., shuffle]


@spec.holds("RMS-1", kills=("statistics_of_the_batch",), rests_on=(conduct["form"],), conventions={"row_dependence": "none"},
            given={**TOKENS, "T": at_least(2), "token": "drawn", "size": "unit"})
def tokens_do_not_touch_each_other(rms_norm: Subject, example: Example) -> None:
    """Replacing all other tokens by far larger ones leaves a token's output equal bit for bit."""
    width = example.x.shape[-1]
    before, after = rms_norm(**example), rms_norm(**others_replaced(example))
    one, two = before.value.reshape(-1, width), after.value.reshape(-1, width)
    assert identical(one[0], two[0], witness=bool((one[1:] != two[1:]).any()))


@spec.holds("RMS-5", kills=("computes_a_mean_nobody_needs",), rests_on=(conduct["form"],), dtypes=("float32",), examples=2,
            given={**SOME, "C": at_least(4)})
def no_mean_is_computed(rms_norm: Subject, example: Example) -> None:
    """Every element enters one sum over the features, not two as in layer normalisation: no mean is computed.

    Sums that a kernel takes where torch does not see them are not exercised; so is a sum written as single additions.
    """
    counts = rms_norm.answer(_count=True, **example).counts
    summed = counts.get("summed", 0) + counts.get("multiply_adds", 0)  # a dot product of the token with itself is a sum
    if summed == 0:
        raise NotExercisedError("no sum of this implementation can be counted")
    limit = 2 * example.x.numel()
    fact(summed < limit, f"{summed} elements are summed, {example.x.numel()} are enough", check="one sum over the features",
         got=str(summed), expected=f"fewer than {limit}")


@spec.holds("RMS-4", kills=(
    "backward_without_the_scale", "backward_with_a_wrong_sign", "backward_without_the_weight", "weight_gradient_of_raw_input",
    "contiguous_path_without_gradient"), rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(rms_norm: Subject, example: Example) -> None:
    """∂x = r·(h − x̂·mean(h·x̂)) with h = weight·upstream, x̂ = x·r; ∂weight = Σ over tokens of upstream·x̂."""
    found, exact = rms_norm.gradients(**example), rms_norm.exact_gradients(**example)
    for name in ("x", "weight"):
        assert found[name] == exact[name]


@spec.holds("RMS-4", kills=("backward_without_the_scale", "backward_with_a_wrong_sign"),
            rests_on=(gradients_are_the_formula,), gradient=True, dtypes=("float64", "float32"),
            given={**SOME, "C": at_least(2), "size": ("unit", "large"), "token": "drawn", "eps": (1e-5, 1e-6)})
def gradient_is_orthogonal_to_the_token(rms_norm: Subject, example: Example) -> None:
    """Σ x·∂x is the share eps/(ms + eps) of what it would be without the norm's own derivative: 0 as eps vanishes."""
    up = rms_norm.upstream(**example)
    gradient = rms_norm.gradients(**example, upstream=up, wrt=("x",))["x"]
    along = (gradient * exactly(example.x)).sum(-1, keepdim=True)
    ms = mean_square(example.x) + example.eps
    plain = (exactly(up[0]) * exactly(example.weight) * exactly(example.x)).sum(-1, keepdim=True) / ms.sqrt()
    last = (gradient * exactly(example.x))[..., -1:]
    assert along - last == plain * example.eps / ms - last


@spec.holds("RMS-4", kills=("zero_token_stops_the_gradient",), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "token": "zero", "eps": usual_eps})
def zero_token_has_a_finite_gradient(rms_norm: Subject, example: Example) -> None:
    """At a token of zeros the gradient is weight·upstream/√eps: finite, and not 0."""
    zero = (example.x == 0).all(-1)
    up = rms_norm.upstream(**example)
    gradient = rms_norm.gradients(**example, upstream=up, wrt=("x",))["x"][zero]
    assert gradient == (exactly(example.weight) * exactly(up[0]))[zero] / math.sqrt(example.eps)
