"""What must hold of `layer_norm(x, weight, bias, *, eps)`: LN-1 … LN-8."""
from __future__ import annotations

import math

import torch

from assay.cases import Configuration, Example, at_least
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.norm_cases import (
    SOME,
    TOKENS,
    NormCases,
    centred,
    exactly,
    mean_square,
    mean_zero,
    one_feature_grown,
    others_replaced,
    shape_of,
    usual_eps,
    variance,
)
from assay.subject import Subject


class LayerNormCases(NormCases):
    """Weight 1 and bias 0 on one side, drawn ones on the other. Never one single number: group norms refuse to centre it."""

    kind = "layer_norm"
    vectors = ("weight", "bias")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        found = super().adapt(configuration, claims)
        if found is not None and math.prod(shape_of(found)) == 1:
            return found.but(rank="tokens", T=2) if claims.allows("T", 2) else found.but(C=2)
        return found


spec = Specification("layer_norm", LayerNormCases())
conduct = add_conduct(spec, entries={"C": at_least(2)})  # an entry alone may be one token

# Relations between two calls need bars far below the signal, also where sums are declared to round to the input's type.
DRAWN = {**SOME, "token": "drawn", "C": (4, 3, 2, 5, 6, 7, 8, 9), "family": ("integers", "normal", "positive", "peaked")}


def plain(example: Example) -> Example:
    """The same tokens with weight 1 and bias 0."""
    return example.but(weight=torch.ones_like(example.weight), bias=torch.zeros_like(example.bias))


def without_bias(example: Example) -> Example:
    return example.but(bias=torch.zeros_like(example.bias))


@spec.holds("LN-1", "E9", kills=(
    "epsilon_beside_the_deviation", "epsilon_as_a_floor", "epsilon_ignored", "epsilon_left_out", "unbiased_variance",
    "not_centred", "centred_after_the_scale_is_taken", "without_bias", "weight_offset_by_one", "statistics_of_the_batch",
    "statistics_of_the_first_token", "last_columns_left", "last_columns_not_counted", "sums_in_low_precision",
    "epsilon_lost_in_half"), rests_on=(conduct["form"],))
def output_is_the_formula(layer_norm: Subject, example: Example) -> None:
    """Every output is weight·(x − mean)/√(variance + eps) + bias over the features, the variance the biased one."""
    assert layer_norm(**example) == layer_norm.exact(**example)


@spec.holds("LN-2", kills=("not_centred", "statistics_of_the_batch", "last_columns_left"), rests_on=(conduct["form"],),
            given=DRAWN, dtypes=("float64", "float32", "float16"))
def mean_becomes_zero(layer_norm: Subject, example: Example) -> None:
    """With weight 1 and bias 0 the features of every output token sum to 0."""
    out = layer_norm(**plain(example))
    assert out[..., 1:].sum(-1) == -out[..., 0]


@spec.holds("LN-2", "E9", kills=("unbiased_variance", "epsilon_as_a_floor", "epsilon_left_out",
                                 "centred_after_the_scale_is_taken", "weight_offset_by_one"),
            rests_on=(conduct["form"],), given=DRAWN)
def variance_becomes_one(layer_norm: Subject, example: Example) -> None:
    """With weight 1 and bias 0 the mean square of every output token is v/(v + eps), v the token's biased variance."""
    out = layer_norm(**plain(example))
    found = (out * out).sum(-1, keepdim=True) / example.x.shape[-1]
    v = variance(example.x)
    assert found == v / (v + example.eps)


@spec.holds("LN-3", kills=("not_centred", "centred_after_the_scale_is_taken"), rests_on=(conduct["form"],),
            given={**DRAWN, "family": "integers", "size": ("unit", "large")})
def adding_a_constant_changes_nothing(layer_norm: Subject, example: Example) -> None:
    """Adding a constant to all features of a token changes nothing; tokens are on a grid on which the sum is exact."""
    for constant in (64.0, -128.0) if example.dtype.itemsize > 2 else (2.0, -4.0):
        assert layer_norm(**example.but(x=example.x + constant * spacing(example))) == layer_norm(**example)


def spacing(example: Example) -> float:
    """The grid of the example's integers, after `size` scaled them."""
    smallest = example.x.abs().double()
    return float(smallest[smallest > 0].min()) if bool((smallest > 0).any()) else 1.0


@spec.holds("LN-3", kills=("epsilon_beside_the_deviation", "epsilon_ignored"), rests_on=(conduct["form"],), given=DRAWN)
def scaling_a_token_changes_nothing_but_epsilon(layer_norm: Subject, example: Example) -> None:
    """Scaling a token by s changes y − bias by √((v + eps)/(v + eps/s²)) alone: not at all when eps is negligible."""
    v = variance(example.x)
    before = layer_norm(**without_bias(example)) * (v + example.eps).sqrt()
    for scale in (4.0, 16.0):
        after = layer_norm(**without_bias(example).but(x=example.x * scale))
        assert after * (v + example.eps / scale**2).sqrt() == before


@spec.holds("LN-1", kills=("magnitudes_normalised",), rests_on=(conduct["form"],), given=DRAWN)
def negating_a_token_negates_the_output(layer_norm: Subject, example: Example) -> None:
    """Without bias, layer_norm(−x) = −layer_norm(x), bit for bit."""
    before = layer_norm(**without_bias(example))
    after = layer_norm(**without_bias(example).but(x=-example.x))
    assert identical(after.value, -before.value, witness=bool((before.value != 0).any()))


@spec.holds("LN-4", kills=("statistics_of_the_batch",), rests_on=(conduct["form"],), conventions={"row_dependence": "none"},
            given={**TOKENS, "T": at_least(2), "C": at_least(2), "token": "drawn"})
def tokens_do_not_touch_each_other(layer_norm: Subject, example: Example) -> None:
    """Replacing all other tokens by far larger ones leaves a token's output equal bit for bit."""
    width = example.x.shape[-1]
    before, after = layer_norm(**example), layer_norm(**others_replaced(example))
    one, two = before.value.reshape(-1, width), after.value.reshape(-1, width)
    assert identical(one[0], two[0], witness=bool((one[1:] != two[1:]).any()))


@spec.holds("LN-4", kills=("statistics_of_the_first_token",), rests_on=(conduct["form"],),
            given={**DRAWN, "rank": ("tokens", "batch", "deep"), "T": at_least(2)})
def permuting_tokens_permutes_the_output(layer_norm: Subject, example: Example) -> None:
    """Permuting the tokens of a sequence permutes the output."""
    shuffle = example.permutation("tokens", example.x.shape[-2])
    x = example.x[..., shuffle, :]
    assert layer_norm(**example.but(x=x)) == layer_norm(**example)[..., shuffle, :]


@spec.holds("LN-4", "BN-2", kills=("statistics_of_the_batch",), rests_on=(conduct["form"],),
            given={**DRAWN, "rank": ("tokens", "batch", "deep"), "T": at_least(2)})
def number_of_tokens_does_not_matter(layer_norm: Subject, example: Example) -> None:
    """The first token alone gives what it gives among others: the statistics know no batch size."""
    if not layer_norm.declaration.allows("T", 1):
        fact(True, "", check="one token is within the limits", decided=False)
        return
    assert layer_norm(**example.but(x=example.x[..., :1, :])) == layer_norm(**example)[..., :1, :]


@spec.holds("LN-5", "E23", kills=("without_bias", "weight_offset_by_one", "unbiased_variance", "not_centred"),
            rests_on=(conduct["form"],), given={**DRAWN, "eps": (1e-5, 1e-3, 0.5), "size": ("unit", "root_eps")})
def weight_and_bias_undo_one_token_alone(layer_norm: Subject, example: Example) -> None:
    """With weight √(v + eps) and bias the mean of one token it is the identity on that token, and not on others."""
    rounding, token = undoing(example)
    out = layer_norm(**rounding)
    width = example.x.shape[-1]
    flat, x = out.reshape(-1, width), exactly(example.x).reshape(-1, width)
    v, mean = variance(token), exactly(token).sum(-1, keepdim=True) / width
    given = exactly(rounding.weight) / (v + example.eps).sqrt()  # 1 but for the rounding of the weight to its type
    assert flat[0] == given * centred(token) + exactly(rounding.bias) + (x[0] - centred(token) - mean)
    other = layer_norm.exact(**rounding).value.reshape(-1, width)[1:]
    apart = (other - x.value[1:]).abs() > 2 * out.bar.reshape(-1, width)[1:]
    if bool(apart.any()):
        assert flat[1:][apart] != x[1:][apart]


def undoing(example: Example) -> tuple[Example, torch.Tensor]:
    """Weight and bias that undo the norm of the first token, rounded to the type under test; and that token."""
    token = example.x.reshape(-1, example.x.shape[-1])[0]
    root = (token.double().var(correction=0) + example.eps).sqrt()
    weight, bias = torch.zeros_like(example.weight) + root.to(example.dtype), torch.zeros_like(example.bias)
    return example.but(weight=weight, bias=bias + token.double().mean().to(example.dtype)), token


@spec.holds("LN-6", kills=("constant_tokens_give_zero", "epsilon_left_out", "without_bias"), rests_on=(conduct["form"],),
            given={**SOME, "token": "equal", "eps": usual_eps, "weights": "drawn"})
def constant_token_gives_the_bias(layer_norm: Subject, example: Example) -> None:
    """A token whose features are all equal gives the bias, within the rounding of its mean.

    Not bit for bit even where the sum is exact: x·r − mean·r in one fused multiply-add leaves the rounding of one product.
    """
    equal = (example.x == example.x[..., :1]).all(-1)
    out = layer_norm(**example)
    assert out[equal] == exactly(example.bias).expand(out.shape)[equal]


@spec.holds("LN-6", kills=("epsilon_left_out", "constant_tokens_stop_the_gradient"), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "token": "equal", "eps": usual_eps, "size": ("unit", "below_eps", "root_eps"), "C": at_least(2)})
def constant_token_has_a_finite_gradient(layer_norm: Subject, example: Example) -> None:
    """At a token whose features are all equal the gradient is (h − mean h)/√eps with h = weight·upstream: finite."""
    equal = (example.x == example.x[..., :1]).all(-1)
    up = layer_norm.upstream(**example)
    gradient = layer_norm.gradients(**example, upstream=up, wrt=("x",))["x"]
    h = (exactly(example.weight) * exactly(up[0]))[equal]
    assert gradient[equal] == (h - h.sum(-1, keepdim=True) / h.shape[-1]) / math.sqrt(example.eps)


@spec.holds("LN-7", kills=("one_pass_variance", "one_pass_variance_clamped"), rests_on=(conduct["form"],),
            dtypes=("float32", "float64"), given={**DRAWN, "family": ("normal",), "size": "unit",
                                                  "weights": "drawn", "eps": (1e-5, 1e-6)})
def a_large_mean_costs_no_more_than_its_digits(layer_norm: Subject, example: Example) -> None:
    """From mean = deviation to mean = 10⁴ deviations the error grows as the mean, not as its square: E[x²] − mean² does."""
    for rung in range(5):
        x = (example.x.double() + 10.0**rung).to(example.dtype)
        steep = without_bias(example.but(x=x))
        assert layer_norm(**steep) == layer_norm.exact(**steep)


@spec.holds("LN-1", kills=("no_reduction", "statistics_of_the_batch", "remembers_by_shape"), rests_on=(conduct["form"],),
            given={**DRAWN, "C": (4, 3, 5, 6, 7, 8), "size": "unit"}, dtypes=("float64", "float32", "float16"))
def one_large_feature_shrinks_the_others(layer_norm: Subject, example: Example) -> None:
    """When one feature of a token grows a hundredfold, differences between the others shrink by the ratio of deviations."""
    grown, left = one_feature_grown(plain(example), 100.0)
    before = layer_norm(**plain(example)) * (variance(example.x) + example.eps).sqrt()
    after = layer_norm(**grown) * (variance(grown.x) + example.eps).sqrt()
    assert differences(after[..., left]) == differences(before[..., left])


def differences(y: Bounded) -> Bounded:
    found: Bounded = y[..., 1:] - y[..., :-1]
    return found


@spec.holds("LN-1", "E9", kills=("epsilon_beside_the_deviation", "epsilon_as_a_floor", "epsilon_ignored", "epsilon_left_out"),
            rests_on=(conduct["form"],), given={**SOME, "size": ("root_eps", "below_eps"), "C": at_least(2)})
def epsilon_is_inside_the_root(layer_norm: Subject, example: Example) -> None:
    """On tokens as small as √eps, and so small that only eps is left, the divisor is √(v + eps) with the eps that was given."""
    small = without_bias(example)
    assert layer_norm(**small) == layer_norm.exact(**small)


@spec.holds("LN-1", kills=("weight_offset_by_one", "without_bias"), rests_on=(conduct["form"],),
            given={**SOME, "eps": usual_eps, "weights": "drawn"})
def zero_weight_gives_the_bias(layer_norm: Subject, example: Example) -> None:
    """The weight multiplies as it is: weight 0 gives exactly the bias, whatever the token."""
    out = layer_norm(**example.but(weight=example.weight * 0))
    assert identical(out.value, example.bias.double().expand(out.value.shape), witness=bool((example.bias != 0).any()))


@spec.holds("LN-1", kills=("last_columns_left", "last_columns_not_counted"), rests_on=(conduct["form"],), given=DRAWN)
def permuting_features_permutes_the_output(layer_norm: Subject, example: Example) -> None:
    """Permuting the features of all tokens, of weight and of bias together permutes the output."""
    shuffle = example.permutation("features", example.x.shape[-1])
    moved = example.but(x=example.x[..., shuffle], weight=example.weight[shuffle], bias=example.bias[shuffle])
    assert layer_norm(**moved) == layer_norm(**example)[..., shuffle]


@spec.holds("RMS-3", kills=("epsilon_beside_the_deviation", "unbiased_variance"), rests_on=(conduct["form"],), given=DRAWN)
def on_tokens_of_mean_zero_it_is_rms_norm(layer_norm: Subject, example: Example) -> None:
    """On tokens of mean 0, without bias, it equals root-mean-square normalisation with the same eps and weight."""
    x = mean_zero(example.x)
    rms_norm = exactly(x) / (mean_square(x) + example.eps).sqrt() * exactly(example.weight)
    assert layer_norm(**without_bias(example).but(x=x)) == rms_norm


@spec.holds("LN-8", kills=(
    "backward_without_the_mean", "backward_without_the_scale", "backward_with_a_wrong_sign", "backward_without_the_weight",
    "weight_gradient_of_raw_input", "upstream_taken_for_contiguous"), rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(layer_norm: Subject, example: Example) -> None:
    """∂x = r·(h − mean h − x̂·mean(h·x̂)) with h = weight·upstream; ∂weight = Σ upstream·x̂, ∂bias = Σ upstream over tokens."""
    found, exact = layer_norm.gradients(**example), layer_norm.exact_gradients(**example)
    for name in ("x", "weight", "bias"):
        assert found[name] == exact[name]


@spec.holds("LN-8", kills=("backward_without_the_mean",), rests_on=(gradients_are_the_formula,), gradient=True, given=DRAWN,
            dtypes=("float64", "float32", "float16"))
def gradient_sums_to_zero(layer_norm: Subject, example: Example) -> None:
    """A shift of a token changes nothing, so ∂x is orthogonal to the vector of ones."""
    gradient = layer_norm.gradients(**example, wrt=("x",))["x"]
    assert gradient[..., 1:].sum(-1) == -gradient[..., 0]


@spec.holds("LN-8", kills=("backward_without_the_scale", "backward_with_a_wrong_sign"), rests_on=(gradients_are_the_formula,),
            gradient=True, dtypes=("float64", "float32"), given={**DRAWN, "size": ("unit", "large"), "eps": (1e-5, 1e-6)})
def gradient_is_orthogonal_to_the_token(layer_norm: Subject, example: Example) -> None:
    """Σ (x − mean)·∂x is the share eps/(v + eps) of what it would be without the norm's own derivative: 0 as eps vanishes."""
    up = layer_norm.upstream(**example)
    gradient = layer_norm.gradients(**example, upstream=up, wrt=("x",))["x"]
    deviation, v = centred(example.x), variance(example.x) + example.eps
    product = gradient * deviation
    share = (exactly(up[0]) * exactly(example.weight) * deviation).sum(-1, keepdim=True) / v.sqrt() * example.eps / v
    assert product[..., 1:].sum(-1) == share[..., 0] - product[..., 0]


@spec.holds("LN-8", kills=("bias_gradient_averaged", "upstream_taken_for_contiguous"), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "family": "integers", "size": "unit"})
def bias_gradient_of_integers_is_their_sum(layer_norm: Subject, example: Example) -> None:
    """∂bias is the sum of the upstream gradient over tokens, exactly so for small integers."""
    up = layer_norm.upstream(**example)
    gradient = layer_norm.gradients(**example, upstream=up, wrt=("bias",))["bias"].value
    total = up[0].double().reshape(-1, example.x.shape[-1]).sum(0)
    assert identical(gradient, total, witness=bool((total != 0).any()))
