"""What must hold of `feed_forward(x, w_in, b_in, w_out, b_out, *, activation)`: FFN-1 … FFN-6, COST-2."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

BUDGET = 20_000  # multiply-adds of one projection
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
SMOOTH_PLACES = ("normal", "positive", "peaked", "small", "cancelling")  # relu has no gradient at exactly 0


def draw_tokens(family: str, shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Tokens; "large" ones reach hidden values beyond 65504 in types that can hold them."""
    if family == "large":
        scale = 2.0**6 if dtype == torch.float16 else 2.0**18
        return (scale * draw_values("normal", shape, source, torch.float64)).to(dtype)
    return draw_values(family, shape, source, dtype)


def draw_weight(family: str, shape: tuple[int, int], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """A projection, scaled by a power of two so that its products have about the size of its input."""
    plain = family if family in ("integers", "positive", "cancelling") else "normal"
    scale = 2.0 ** -math.ceil(math.log2(max(1, shape[1])) / 2)
    return draw_values(plain, shape, source, dtype) * scale


class FeedForwardCases(Cases):
    """B rows of T tokens of width C, hidden width F free of C; biases both, either, neither, or zero."""

    kind = "feed_forward"
    dims = {"B": (1, 2, 3, 0), "T": (3, 1, 2, 4, 5, 8, 17, 33), "C": (2, 1, 3, 4, 5, 8, 16, 17, 32),
            "F": (3, 1, 2, 4, 5, 6, 7, 8, 11, 16, 17, 33, 64, 65)}
    flags = {"activation": ACTIVATIONS, "biases": ("both", "none", "in", "out", "zero"), "flat": (False, True)}
    families = ("integers", "normal", "positive", "peaked", "small", "cancelling", "heavy", "one_hot", "constant", "large")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration.but(**within_budget(configuration.dims, claims))

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed, family = configuration.dims, configuration.flags, configuration.seed, configuration.family
        sort = flags["biases"]

        def bias(name: str, size: int, given: tuple[str, ...]) -> torch.Tensor | None:
            drawn = draw_values("normal", (size,), generator(seed, name), dtype)
            return drawn if sort in given else torch.zeros_like(drawn) if sort == "zero" else None

        arguments: dict[str, Any] = {
            "x": tokens(configuration, dtype),
            "w_in": draw_weight(family, (d["F"], d["C"]), generator(seed, "w_in"), dtype),
            "b_in": bias("b_in", d["F"], ("both", "in")),
            "w_out": draw_weight(family, (d["C"], d["F"]), generator(seed, "w_out"), dtype),
            "b_out": bias("b_out", d["C"], ("both", "out")), "activation": flags["activation"],
        }
        return Example(configuration, dtype, arguments)


def tokens(configuration: Configuration, dtype: torch.dtype) -> torch.Tensor:
    """x: (B,T,C), or (T,C) where it is flat."""
    d = configuration.dims
    shape = (d["T"], d["C"]) if configuration.flags["flat"] else (d["B"], d["T"], d["C"])
    return draw_tokens(configuration.family, shape, generator(configuration.seed, "x"), dtype)


def within_budget(dims: Any, claims: Declaration) -> dict[str, int]:
    """Fewer and narrower tokens until one example is cheap; what is not claimed to be empty is not."""
    found = dict(dims)
    if not claims.claims("empty"):
        found["B"] = max(1, found["B"])
    for letter in ("B", "T", "F", "C"):
        while found["B"] * found["T"] * found["C"] * found["F"] > BUDGET and found[letter] > 1:
            if not claims.allows(letter, found[letter] // 2):
                break
            found[letter] //= 2
    return found


spec = Specification("feed_forward", FeedForwardCases())
conduct = add_conduct(spec)
SOME = {"B": at_least(1)}
SEVERAL = {"B": at_least(1), "T": at_least(2)}


def hidden(example: Example) -> torch.Tensor:
    """x · w_inᵀ in float64."""
    return example.x.double() @ example.w_in.double().T


@spec.holds("FFN-1", "E26", kills=(
    "projection_in_half_before_the_bias", "hidden_in_half", "gelu_tanh_for_gelu", "gelu_for_gelu_tanh", "quick_gelu",
    "silu_by_hard_swish", "silu_with_two_beta", "sigmoid_for_silu", "leaky_relu", "no_activation", "always_relu",
    "activation_twice", "activation_at_the_end", "first_bias_left_out", "second_bias_left_out", "bias_after_activation",
    "bias_once_a_shard", "last_hidden_units_lost", "tokens_leak", "adds_its_input", "remembers_the_weight", "reads_as_contiguous",
    "weight_read_as_packed"), rests_on=(conduct["form"],))
def output_is_the_formula(ffn: Subject, example: Example) -> None:
    """Every token becomes σ(x · w_inᵀ + b_in) · w_outᵀ + b_out: rows are tokens."""
    assert ffn(**example) == ffn.exact(**example)


@spec.holds("FFN-1", "E26", kills=("weight_not_transposed",), rests_on=(conduct["form"],),
            given={**SOME, "F": "C", "C": at_least(2)})
def weights_act_on_rows(ffn: Subject, example: Example) -> None:
    """Also where F = C, so that a transposed weight fits, each row of w_in meets the token."""
    assert ffn(**example) == ffn.exact(**example)


@spec.holds("FFN-6", kills=(
    "gelu_slope_without_the_density", "silu_slope_of_sigmoid", "slope_one_below_zero", "first_bias_without_gradient",
    "weight_gradient_of_mean", "gradient_of_the_wrong_sign"), rests_on=(output_is_the_formula,), gradient=True,
    given={**SOME, "family": SMOOTH_PLACES})
def gradients_are_the_formula(ffn: Subject, example: Example) -> None:
    """The gradients of the tokens, both weights and both biases are those of the formula."""
    found, expected = ffn.gradients(**example), ffn.exact_gradients(**example)
    for name, gradient in found.items():
        assert gradient == expected[name]


@spec.holds("FFN-1", kills=("gelu_tanh_for_gelu", "gelu_for_gelu_tanh", "quick_gelu", "silu_by_hard_swish", "leaky_relu",
                            "sigmoid_for_silu", "silu_with_two_beta"), rests_on=(conduct["form"],),
            given={"C": 1, "F": 1, "biases": "none", "flat": True, "family": "normal"}, dtypes=("float64", "float32"))
def activation_has_its_values(ffn: Subject, example: Example) -> None:
    """Through weights of 1, the activation takes its known values, at ±2.7 (where exact and tanh GELU part) and far out too."""
    points = torch.tensor([-100.0, -8.0, -2.75, -1.0, -0.5, 0.0, 0.125, 0.5, 1.0, 2.75, 8.0, 100.0],
                          dtype=example.dtype)[:, None]
    one = torch.ones(1, 1, dtype=example.dtype)
    assert ffn(**example.but(x=points, w_in=one, w_out=one)) == even_part(points.double(), example.activation) / 2 + points / 2


def even_part(h: torch.Tensor, activation: str) -> torch.Tensor:
    """σ(h) + σ(−h) of each activation, in float64: σ(h) − σ(−h) is h for all four."""
    if activation == "relu":
        return h.abs()
    if activation == "gelu":
        return h * torch.erf(h * math.sqrt(0.5))
    if activation == "gelu_tanh":
        return h * torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))
    return h * torch.tanh(h / 2)


@spec.holds("FFN-5", kills=("no_activation", "always_relu", "silu_by_hard_swish", "activation_at_the_end"),
            rests_on=(conduct["form"],), given={**SOME, "biases": "none", "family": ("integers", "normal", "peaked")})
def layer_is_not_linear(ffn: Subject, example: Example) -> None:
    """FFN(x) + FFN(−x) is not 0 as of a linear map, but the even part of the activation through w_out."""
    both = ffn(**example) + ffn(**example.but(x=-example.x))
    assert both == even_part(hidden(example), example.activation) @ example.w_out.double().T


@spec.holds("FFN-5", kills=("leaky_relu", "sigmoid_for_silu", "adds_its_input"), rests_on=(conduct["form"],),
            given={**SOME, "biases": "none", "family": ("integers", "normal", "peaked", "small")})
def odd_part_is_the_one_linear_map(ffn: Subject, example: Example) -> None:
    """FFN(x) − FFN(−x) is x through both weights, the one map that is left without an activation: σ(h) − σ(−h) = h."""
    both = ffn(**example) - ffn(**example.but(x=-example.x))
    assert both == hidden(example) @ example.w_out.double().T


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), conventions={"row_dependence": "none"}, given=SEVERAL)
def other_tokens_do_not_matter(ffn: Subject, example: Example) -> None:
    """Replacing and reordering the other tokens leaves a token's output equal bit for bit."""
    kept = example.integer("kept", 0, example.dims["T"] - 1)
    other = example.values("other tokens", *example.x.shape, family="normal").flip(-2)
    other[..., kept, :] = example.x[..., kept, :]
    before, after = ffn.values(**example), ffn.values(**example.but(x=other))
    assert identical(before[..., kept, :], after[..., kept, :], witness=(before, after))


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), gradient=True, given={**SEVERAL, "family": SMOOTH_PLACES})
def gradient_stays_with_its_token(ffn: Subject, example: Example) -> None:
    """What is asked of one token's output reaches no other token: their gradients are exactly 0."""
    kept = example.integer("kept", 1, example.dims["T"] - 1)
    upstream = torch.zeros_like(example.x)
    upstream[..., kept, :] = 1.0
    found = ffn.gradients(**example, wrt=("x",), upstream=(upstream,))["x"].value
    others = torch.arange(example.dims["T"]) != kept
    assert identical(found[..., others, :], 0.0, witness=bool((found[..., ~others, :] != 0).any()))


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), given=SEVERAL)
def splitting_the_tokens_changes_nothing(ffn: Subject, example: Example) -> None:
    """Tokens in two calls give what they give in one, and in another order the same in that order, within the bound."""
    cut, out = example.integer("cut", 1, example.dims["T"] - 1), ffn(**example)
    for part in (slice(None, cut), slice(cut, None)):
        assert ffn(**example.but(x=example.x[..., part, :])) == out[..., part, :]
    order = example.permutation("tokens", example.dims["T"])
    assert ffn(**example.but(x=example.x[..., order, :])) == out[..., order, :]


def units(example: Example, which: Any) -> Example:
    """Some hidden units, in some order, with their rows of w_in, b_in and columns of w_out."""
    bias = example.b_in if example.b_in is None else example.b_in[which]
    return example.but(w_in=example.w_in[which], b_in=bias, w_out=example.w_out[:, which])


@spec.holds("FFN-3", kills=("last_hidden_units_lost",), rests_on=(conduct["form"],), given={**SOME, "F": at_least(2)})
def order_of_hidden_units_does_not_matter(ffn: Subject, example: Example) -> None:
    """Permuting hidden units in both matrices changes nothing within the bound: keys keep their values."""
    assert ffn(**units(example, example.permutation("units", example.dims["F"]))) == ffn(**example)


@spec.holds("FFN-3", kills=("bias_once_a_shard", "last_hidden_units_lost", "activation_at_the_end"), rests_on=(conduct["form"],),
            given={**SOME, "F": at_least(2)})
def hidden_units_add_up(ffn: Subject, example: Example) -> None:
    """The layer is a sum over hidden units: its shards, given alone, add up to it, b_out counted once."""
    cut = example.integer("cut", 1, example.dims["F"] - 1)
    both = ffn(**units(example, slice(None, cut))) + ffn(**units(example, slice(cut, None)))
    twice = 0.0 if example.b_out is None else example.b_out.double()
    assert both - twice == ffn(**example)


@spec.holds("COST-2", "E2", kills=("hidden_width_four_times", "hidden_width_of_llama"), rests_on=(conduct["form"],),
            given={**SOME, "C": (1, 2, 3, 4, 5), "T": (1, 2, 3)})
def hidden_width_is_that_of_the_weights(ffn: Subject, example: Example) -> None:
    """The shapes come from the weights alone: 4C, one less or more and a prime width all give the formula."""
    c = example.dims["C"]
    for width in (4 * c, 4 * c - 1, 4 * c + 1, 8 * c // 3 + 1, 29):
        if not ffn.declaration.allows("F", width):
            continue
        bias = example.b_in if example.b_in is None else example.values("b_in", width, family="normal")
        wide = example.but(w_in=example.values("w_in", width, c, family="normal"), b_in=bias,
                           w_out=example.values("w_out", c, width, family="normal"))
        assert ffn(**wide) == ffn.exact(**wide)
