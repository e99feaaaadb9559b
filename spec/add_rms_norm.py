"""What must hold of `add_rms_norm(x, residual, weight, *, eps)`: X-ADDN-1 … X-ADDN-4."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Configuration, Example, at_least, draw_values, generator
from assay.ledger import identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct, formula, nothing_upstream
from assay.spec.norm_cases import SOME, TOKENS, NormCases, exactly, factor, on_a_grid, others_replaced, shape_of, usual_eps
from assay.subject import Subject


class AddRmsNormCases(NormCases):
    """As for RMS normalisation, of a sum.

    balance: the residual as large as x, eight times that, or nearly opposite, so that little is left of the sum.
    token: as drawn, all features of the first sum equal, or all zero, though neither addend is.
    """

    kind = "add_rms_norm"
    flags = {**NormCases.flags, "balance": ("drawn", "far", "opposite")}

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        flags, seed, width = configuration.flags, configuration.seed, configuration.dims["C"]
        x, residual = (self._drawn(configuration, label) for label in ("x", "residual"))
        residual = {"drawn": residual, "far": 8 * residual, "opposite": residual / 16 - x}[flags["balance"]]
        scale = factor(flags["size"], flags["eps"], dtype)
        x, residual = of_sum(flags["token"], (x * scale).to(dtype), (residual * scale).to(dtype))
        weight = on_a_grid(draw_values("normal", (width,), generator(seed, "weight"), torch.float64), dtype)
        weight = weight if flags["weights"] == "drawn" else torch.ones_like(weight)
        return Example(configuration, dtype, {"x": x, "residual": residual, "weight": weight, "eps": flags["eps"]})

    def _drawn(self, configuration: Configuration, label: str) -> torch.Tensor:
        return draw_values(configuration.family, shape_of(configuration), generator(configuration.seed, label), torch.float64)


def of_sum(token: str, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The addends, the first token's such that its sum is constant or zero where that is asked."""
    if token == "drawn" or x.numel() == 0:
        return x, residual
    rows, others = (one.reshape(-1, one.shape[-1]).clone() for one in (x, residual))
    if token == "equal":
        rows[0] = rows[0, 0]
        others[0] = others[0, 0]
    else:
        others[0] = -rows[0]
    return rows.reshape(x.shape), others.reshape(x.shape)


spec = Specification("add_rms_norm", AddRmsNormCases())
conduct = add_conduct(spec)
PLAIN = {**SOME, "token": "drawn", "size": "unit", "balance": "drawn"}


def total(example: Example) -> Any:
    """The sum, exactly."""
    return exactly(example.x) + exactly(example.residual)


def mean_square(summed: Bounded) -> Any:
    return (summed * summed).sum(-1, keepdim=True) / summed.shape[-1]


def both(example: Example, change: Any) -> Example:
    """The same change of both addends."""
    return example.but(x=change(example.x), residual=change(example.residual))


@spec.holds("X-ADDN-2", kills=(
    "norm_of_x_alone", "norm_of_the_residual_alone", "statistics_of_x_alone", "residual_twice_in_the_norm", "residual_subtracted",
    "residual_left_out", "sum_in_half", "divides_by_the_norm", "divides_by_the_mean_square", "no_reduction", "epsilon_ignored",
    "epsilon_fixed", "epsilon_beside_the_root", "weight_offset_by_one", "without_weight", "centred", "statistics_of_the_batch",
    "last_columns_left", "last_columns_not_counted", "squares_in_half", "adds_an_unwritten_residual"), rests_on=(conduct["form"],))
def output_is_the_formula(add_rms_norm: Subject, example: Example) -> None:
    """Outputs are s_i / √(mean(s²) + eps) · weight_i with s = x + residual, and s itself."""
    formula(add_rms_norm, example)


@spec.holds("X-ADDN-1", kills=("residual_returned_for_the_sum", "x_returned_for_the_sum", "normalised_returned_for_the_sum",
                               "residual_twice", "residual_subtracted", "residual_left_out", "sum_in_half", "sum_weighted"),
            rests_on=(conduct["form"],), given=SOME)
def sum_comes_back_as_it_is(add_rms_norm: Subject, example: Example) -> None:
    """The second result is x + residual, rounded once, not normalised or weighted: it is the next step's residual."""
    assert add_rms_norm(**example)[1] == total(example)


@spec.holds("X-ADDN-2", kills=("norm_of_x_alone", "norm_of_the_residual_alone", "statistics_of_x_alone",
                               "residual_twice_in_the_norm", "normalised_returned_for_the_sum", "residual_returned_for_the_sum"),
            rests_on=(conduct["form"],), given={**SOME, "token": "drawn", "eps": usual_eps})
def what_is_normalised_is_the_sum_that_comes_back(add_rms_norm: Subject, example: Example) -> None:
    """y · √(mean(s²) + eps) = s · weight, y and s as they came back together, before or after s was rounded."""
    y, summed = add_rms_norm(**example)
    assert y * (mean_square(summed) + example.eps).sqrt() == summed * exactly(example.weight)


@spec.holds("X-ADDN-2", kills=("divides_by_the_norm", "no_reduction", "divides_by_the_mean_square", "weight_offset_by_one",
                               "statistics_of_x_alone"), rests_on=(conduct["form"],), given={**SOME, "token": "drawn"})
def mean_square_becomes_one(add_rms_norm: Subject, example: Example) -> None:
    """With weight 1 the mean square of every normalised token is ms / (ms + eps), ms that of the sum."""
    y, _ = add_rms_norm(**example.but(weight=torch.ones_like(example.weight)))
    ms = mean_square(total(example))
    assert mean_square(y) == ms / (ms + example.eps)


@spec.holds("X-ADDN-2", kills=("epsilon_ignored", "epsilon_fixed", "epsilon_beside_the_root", "squares_in_half"),
            rests_on=(conduct["form"],), given={**SOME, "size": ("root_eps", "below_eps"), "balance": ("drawn", "opposite")})
def epsilon_is_inside_the_root(add_rms_norm: Subject, example: Example) -> None:
    """On sums as small as √eps, and so small that only eps is left, the divisor is √(ms + eps) with the eps that was given."""
    assert add_rms_norm(**example)[0] == add_rms_norm.exact(**example)[0]


@spec.holds("X-ADDN-3", kills=("norm_of_x_alone", "norm_of_the_residual_alone", "residual_returned_for_the_sum",
                               "x_returned_for_the_sum", "residual_twice", "residual_subtracted"),
            rests_on=(conduct["form"],), given=PLAIN)
def addends_may_be_exchanged(add_rms_norm: Subject, example: Example) -> None:
    """x and residual count alike: exchanged, they give the same results."""
    before = add_rms_norm(**example)
    after = add_rms_norm(**example.but(x=example.residual, residual=example.x))
    assert after[0] == before[0]
    assert after[1] == before[1]


@spec.holds("X-ADDN-3", kills=("sum_in_half", "residual_in_half", "x_returned_for_the_sum", "normalised_returned_for_the_sum"),
            rests_on=(conduct["form"],), given=PLAIN)
def zero_residual_leaves_x_and_its_norm(add_rms_norm: Subject, example: Example) -> None:
    """Beside zeros the sum is the other addend bit for bit, whichever that is, and is normalised as by RMS normalisation."""
    zeros = torch.zeros_like(example.x)
    for given in (example.but(residual=zeros), example.but(x=zeros, residual=example.x)):
        y, summed = add_rms_norm(**given)
        assert identical(summed.value, example.x.double(), witness=bool((example.x != 0).any()))
        alone = exactly(example.x)
        assert y * (mean_square(alone) + example.eps).sqrt() == alone * exactly(example.weight)


@spec.holds("X-ADDN-3", kills=("norm_of_x_alone", "residual_left_out", "residual_twice", "epsilon_ignored",
                               "x_returned_for_the_sum"),
            rests_on=(conduct["form"],), given={**SOME, "token": "zero", "balance": "drawn", "eps": usual_eps, "C": at_least(2)})
def opposite_addends_give_zero(add_rms_norm: Subject, example: Example) -> None:
    """Where residual = −x both results are exactly 0, not NaN, though neither addend is 0."""
    zero, there = (total(example).value == 0).all(-1), bool((example.x != 0).any())
    for result in add_rms_norm(**example):
        assert identical(result.value[zero], 0.0, witness=there)


@spec.holds("X-ADDN-1", kills=("weight_offset_by_one", "without_weight", "sum_weighted"), rests_on=(conduct["form"],),
            given={**SOME, "eps": usual_eps})
def zero_weight_silences_the_norm_and_not_the_sum(add_rms_norm: Subject, example: Example) -> None:
    """Under a weight of 0 the normalised result is exactly 0, and the sum is what it was."""
    y, summed = add_rms_norm(**example.but(weight=example.weight * 0))
    some, _ = add_rms_norm(**example)
    assert identical(y.value, 0.0, witness=bool((some.value != 0).any()))
    assert summed == total(example)


@spec.holds("X-ADDN-2", kills=("epsilon_beside_the_root", "divides_by_the_mean_square", "no_reduction", "epsilon_ignored"),
            rests_on=(conduct["form"],), given=SOME)
def scaling_both_changes_nothing_but_epsilon(add_rms_norm: Subject, example: Example) -> None:
    """Scaling both addends by c changes y by √((ms + eps) / (ms + eps/c²)) alone: not at all when eps is negligible."""
    ms = mean_square(total(example))
    before = add_rms_norm(**example)[0] * (ms + example.eps).sqrt()
    for scale in (4.0, 16.0):
        after = add_rms_norm(**both(example, lambda one, scale=scale: one * scale))[0]
        assert after * (ms + example.eps / scale**2).sqrt() == before


@spec.holds("X-ADDN-2", kills=("loses_the_sign",), rests_on=(conduct["form"],), given=SOME)
def negating_both_negates_both_results(add_rms_norm: Subject, example: Example) -> None:
    """add_rms_norm(−x, −residual) is −add_rms_norm(x, residual), bit for bit."""
    before, after = add_rms_norm(**example), add_rms_norm(**both(example, torch.neg))
    for one, other in zip(before, after, strict=True):
        assert identical(other.value, -one.value, witness=bool((one.value != 0).any()))


@spec.holds("X-ADDN-2", kills=("last_columns_left", "last_columns_not_counted"), rests_on=(conduct["form"],),
            given={**SOME, "C": at_least(2)})
def permuting_features_permutes_both_results(add_rms_norm: Subject, example: Example) -> None:
    """Permuting the features of both addends and of the weight together permutes both results."""
    shuffle = example.permutation("features", example.x.shape[-1])
    moved = both(example, lambda one: one[..., shuffle]).but(weight=example.weight[shuffle])
    for one, other in zip(add_rms_norm(**example), add_rms_norm(**moved), strict=True):
        assert other == one[..., shuffle]


@spec.holds("X-ADDN-2", kills=("statistics_of_the_batch",), rests_on=(conduct["form"],), conventions={"row_dependence": "none"},
            given={**TOKENS, "T": at_least(2), "token": "drawn", "size": "unit"})
def tokens_do_not_touch_each_other(add_rms_norm: Subject, example: Example) -> None:
    """Replacing all other tokens by far larger ones leaves a token's results equal bit for bit."""
    width = example.x.shape[-1]
    for one, other in zip(add_rms_norm(**example), add_rms_norm(**others_replaced(example)), strict=True):
        before, after = one.value.reshape(-1, width), other.value.reshape(-1, width)
        assert identical(before[0], after[0], witness=bool((before[1:] != after[1:]).any()))


@spec.holds("X-ADDN-4", kills=(
    "sum_without_gradient", "sum_gradient_twice", "sum_gradient_into_the_residual_alone", "norm_gradient_into_x_alone",
    "residual_without_gradient", "x_without_gradient", "sum_gradient_under_the_norm", "backward_without_the_scale",
    "backward_with_a_wrong_sign", "backward_without_the_weight", "backward_of_x_alone", "weight_gradient_of_the_raw_sum",
    "contiguous_path_without_gradient"), rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(add_rms_norm: Subject, example: Example) -> None:
    """∂x = ∂residual = ∂s + r·(h − ŝ·mean(h·ŝ)) with h = weight·∂y, ŝ = s·r; ∂weight = Σ over tokens of ∂y·ŝ."""
    found, exact = add_rms_norm.gradients(**example), add_rms_norm.exact_gradients(**example)
    for name in ("x", "residual", "weight"):
        assert found[name] == exact[name]


@spec.holds("X-ADDN-4", kills=("residual_without_gradient", "x_without_gradient", "sum_gradient_into_the_residual_alone",
                               "norm_gradient_into_x_alone"), rests_on=(conduct["form"],), gradient=True, given=SOME)
def both_addends_have_one_gradient(add_rms_norm: Subject, example: Example) -> None:
    """The gradients of x and of residual are the same."""
    found = add_rms_norm.gradients(**example, wrt=("x", "residual"))
    assert found["x"] == found["residual"]


@spec.holds("X-ADDN-4", kills=("sum_without_gradient", "sum_gradient_twice", "sum_gradient_under_the_norm",
                               "sum_gradient_into_the_residual_alone"), rests_on=(conduct["form"],), gradient=True, given=PLAIN)
def gradient_of_the_sum_goes_straight_through(add_rms_norm: Subject, example: Example) -> None:
    """Where nothing comes from y, both addends get the sum's own gradient, and the weight gets none."""
    up = add_rms_norm.upstream(**example)
    found = add_rms_norm.gradients(**example, upstream=(torch.zeros_like(up[0]), up[1]))
    for name in ("x", "residual"):
        assert found[name] == exactly(up[1])
    assert found["weight"] == 0.0


@spec.holds("X-ADDN-4", kills=("backward_without_the_scale", "backward_with_a_wrong_sign", "backward_of_x_alone"),
            rests_on=(gradients_are_the_formula,), gradient=True, dtypes=("float64", "float32"),
            given={**SOME, "C": at_least(2), "size": ("unit", "large"), "token": "drawn", "eps": (1e-5, 1e-6)})
def gradient_of_the_norm_is_orthogonal_to_the_sum(add_rms_norm: Subject, example: Example) -> None:
    """Where nothing comes from s, Σ s·∂x is the share eps/(ms + eps) of what it would be without the norm's own derivative."""
    up = add_rms_norm.upstream(**example)
    gradient = add_rms_norm.gradients(**example, upstream=(up[0], torch.zeros_like(up[1])), wrt=("x",))["x"]
    summed = total(example)
    along = (gradient * summed).sum(-1, keepdim=True)
    ms = mean_square(summed) + example.eps
    plain = (exactly(up[0]) * exactly(example.weight) * summed).sum(-1, keepdim=True) / ms.sqrt()
    last = (gradient * summed)[..., -1:]
    assert along - last == plain * example.eps / ms - last


@spec.holds("X-ADDN-4", kills=("zero_sum_stops_the_gradient",), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "token": "zero", "balance": "drawn", "eps": usual_eps})
def zero_sum_has_a_finite_gradient(add_rms_norm: Subject, example: Example) -> None:
    """Where residual = −x the gradient of both is weight·∂y/√eps + ∂s: finite, and not 0."""
    zero = (total(example).value == 0).all(-1)
    up = add_rms_norm.upstream(**example)
    found = add_rms_norm.gradients(**example, upstream=up, wrt=("x", "residual"))
    expected = exactly(example.weight) * exactly(up[0]) / math.sqrt(example.eps) + exactly(up[1])
    for gradient in found.values():
        assert gradient[zero] == expected[zero]


@spec.holds("X-ADDN-4", kills=("upstream_taken_for_ones",), rests_on=(conduct["form"],), gradient=True, given=PLAIN)
def nothing_upstream_gives_no_gradient(add_rms_norm: Subject, example: Example) -> None:
    """Upstream gradients of zeros give gradients of exactly zero."""
    nothing_upstream(add_rms_norm, example)
