"""What must hold of `gated_feed_forward(x, w_gate, w_up, w_down, *, activation)`: GLU-1, GLU-2, FFN-2, FFN-3, FFN-6, COST-2."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.feed_forward import ACTIVATIONS, SMOOTH_PLACES, draw_weight, even_part, tokens, within_budget
from assay.subject import Subject


class GatedCases(Cases):
    """B rows of T tokens of width C, hidden width F free of C."""

    kind = "gated_feed_forward"
    dims = {"B": (1, 2, 3, 0), "T": (3, 1, 2, 4, 5, 8, 17, 33), "C": (2, 1, 3, 4, 5, 8, 16, 17, 32),
            "F": (3, 1, 2, 4, 5, 6, 7, 8, 11, 16, 17, 33, 64, 65)}
    flags = {"activation": ("silu", "gelu", "gelu_tanh", "relu"), "flat": (False, True)}
    families = ("integers", "normal", "positive", "peaked", "small", "cancelling", "heavy", "one_hot", "constant", "large")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration.but(**within_budget(configuration.dims, claims))

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, seed, family = configuration.dims, configuration.seed, configuration.family
        arguments: dict[str, Any] = {"x": tokens(configuration, dtype)}
        for name, shape in (("w_gate", (d["F"], d["C"])), ("w_up", (d["F"], d["C"])), ("w_down", (d["C"], d["F"]))):
            arguments[name] = draw_weight(family, shape, generator(seed, name), dtype)
        return Example(configuration, dtype, arguments | {"activation": configuration.flags["activation"]})


assert set(GatedCases.flags["activation"]) == set(ACTIVATIONS)
spec = Specification("gated_feed_forward", GatedCases())
conduct = add_conduct(spec)
SOME = {"B": at_least(1)}
SEVERAL = {"B": at_least(1), "T": at_least(2)}
EXACT = ("integers", "normal", "peaked")


def branches(example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """x · w_gateᵀ and x · w_upᵀ in float64."""
    x = example.x.double()
    return x @ example.w_gate.double().T, x @ example.w_up.double().T


@spec.holds("GLU-1", "E21", "E26", kills=(
    "gate_and_up_swapped", "interleaved_packing", "both_activated", "product_activated", "nothing_activated", "sigmoid_gate",
    "branches_added", "always_silu", "silu_with_two_beta", "up_missing", "up_offset_by_one", "gate_clamped",
    "product_in_half", "last_hidden_units_lost", "tokens_leak", "remembers_the_weight", "reads_as_contiguous",
    "weight_read_as_packed", "indicator_of_the_last_weight"), rests_on=(conduct["form"],))
def output_is_the_formula(glu: Subject, example: Example) -> None:
    """Every token becomes (σ(x · w_gateᵀ) ⊙ x · w_upᵀ) · w_downᵀ: the gate is the activated branch, w_down a matrix product."""
    assert glu(**example) == glu.exact(**example)


@spec.holds("GLU-1", "E26", kills=("weight_not_transposed",), rests_on=(conduct["form"],),
            given={**SOME, "F": "C", "C": at_least(2)})
def weights_act_on_rows(glu: Subject, example: Example) -> None:
    """Also where F = C, so that a transposed weight fits, each row of w_gate and w_up meets the token."""
    assert glu(**example) == glu.exact(**example)


@spec.holds("FFN-6", kills=("silu_slope_of_sigmoid", "gate_without_gradient", "up_without_gradient", "gradient_of_one_branch",
                            "gradient_doubled", "gradient_of_the_wrong_sign"), rests_on=(output_is_the_formula,), gradient=True,
            given={**SOME, "family": SMOOTH_PLACES})
def gradients_are_the_formula(glu: Subject, example: Example) -> None:
    """The gradients of the tokens and of all three weights are those of the formula."""
    found, expected = glu.gradients(**example), glu.exact_gradients(**example)
    for name, gradient in found.items():
        assert gradient == expected[name]


@spec.holds("GLU-1", kills=("both_activated", "product_activated", "branches_added", "up_missing", "up_offset_by_one",
                            "gate_and_up_swapped"), rests_on=(conduct["form"],), given={**SOME, "family": EXACT})
def up_branch_is_linear(glu: Subject, example: Example) -> None:
    """Turning w_up round turns the output round, and twice w_up gives twice the output."""
    out = glu(**example)
    assert glu(**example.but(w_up=-example.w_up)) == -out
    assert glu(**example.but(w_up=2 * example.w_up)) == 2 * out


@spec.holds("GLU-1", kills=("branches_added", "sigmoid_gate"), rests_on=(conduct["form"],), given=SOME)
def zero_gate_lets_nothing_through(glu: Subject, example: Example) -> None:
    """A gate projection of 0 gives exactly 0: all four activations are 0 there."""
    usual = glu.values(**example)
    shut = glu.values(**example.but(w_gate=torch.zeros_like(example.w_gate)))
    assert identical(shut, 0.0, witness=bool((usual != 0).any()))


@spec.holds("GLU-1", "FFN-1", kills=("gelu_tanh_for_gelu",), rests_on=(output_is_the_formula,),
            given={**SOME, "family": ("normal",), "activation": ("gelu", "gelu_tanh")})
def gelu_is_the_one_named(glu: Subject, example: Example) -> None:
    """gelu is x·Φ(x) and gelu_tanh its approximation, 5·10⁻⁴ apart at most: on moderate gates the named one is found."""
    assert glu(**example) == glu.exact(**example)


@spec.holds("GLU-1", "FFN-5", kills=("gate_and_up_swapped", "nothing_activated", "both_activated", "always_silu"),
            rests_on=(conduct["form"],), given={**SOME, "family": EXACT})
def gate_is_the_activated_branch(glu: Subject, example: Example) -> None:
    """Output at w_gate less that at −w_gate is the plain product of both branches, their sum the activation's even part.

    σ(h) − σ(−h) = h for all four activations; the gate alone is turned.
    """
    gate, up = branches(example)
    down = example.w_down.double().T
    out, turned = glu(**example), glu(**example.but(w_gate=-example.w_gate))
    assert out - turned == (gate * up) @ down
    assert out + turned == (even_part(gate, example.activation) * up) @ down


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), conventions={"row_dependence": "none"}, given=SEVERAL)
def other_tokens_do_not_matter(glu: Subject, example: Example) -> None:
    """Replacing and reordering the other tokens leaves a token's output equal bit for bit."""
    kept = example.integer("kept", 0, example.dims["T"] - 1)
    other = example.values("other tokens", *example.x.shape, family="normal").flip(-2)
    other[..., kept, :] = example.x[..., kept, :]
    before, after = glu.values(**example), glu.values(**example.but(x=other))
    assert identical(before[..., kept, :], after[..., kept, :], witness=(before, after))


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), gradient=True, given={**SEVERAL, "family": SMOOTH_PLACES})
def gradient_stays_with_its_token(glu: Subject, example: Example) -> None:
    """What is asked of one token's output reaches no other token: their gradients are exactly 0."""
    kept = example.integer("kept", 1, example.dims["T"] - 1)
    upstream = torch.zeros_like(example.x)
    upstream[..., kept, :] = 1.0
    found = glu.gradients(**example, wrt=("x",), upstream=(upstream,))["x"].value
    others = torch.arange(example.dims["T"]) != kept
    assert identical(found[..., others, :], 0.0, witness=bool((found[..., ~others, :] != 0).any()))


@spec.holds("FFN-2", kills=("tokens_leak",), rests_on=(conduct["form"],), given=SEVERAL)
def splitting_the_tokens_changes_nothing(glu: Subject, example: Example) -> None:
    """Tokens in two calls give what they give in one, within the bound."""
    cut, out = example.integer("cut", 1, example.dims["T"] - 1), glu(**example)
    for part in (slice(None, cut), slice(cut, None)):
        assert glu(**example.but(x=example.x[..., part, :])) == out[..., part, :]


def units(example: Example, which: Any) -> Example:
    """Some hidden units, in some order, with their rows of w_gate and w_up and columns of w_down."""
    return example.but(w_gate=example.w_gate[which], w_up=example.w_up[which], w_down=example.w_down[:, which])


@spec.holds("FFN-3", kills=("last_hidden_units_lost", "interleaved_packing"), rests_on=(conduct["form"],),
            given={**SOME, "F": at_least(2)})
def order_of_hidden_units_does_not_matter(glu: Subject, example: Example) -> None:
    """Permuting hidden units in all three matrices changes nothing within the bound."""
    assert glu(**units(example, example.permutation("units", example.dims["F"]))) == glu(**example)


@spec.holds("FFN-3", kills=("last_hidden_units_lost", "interleaved_packing"), rests_on=(conduct["form"],),
            given={**SOME, "F": at_least(2)})
def hidden_units_add_up(glu: Subject, example: Example) -> None:
    """The layer is a sum over hidden units: its shards, given alone, add up to it."""
    cut = example.integer("cut", 1, example.dims["F"] - 1)
    assert glu(**units(example, slice(None, cut))) + glu(**units(example, slice(cut, None))) == glu(**example)


@spec.holds("GLU-2", "COST-2", "E2", kills=("hidden_width_twice", "hidden_width_rounded_down"), rests_on=(conduct["form"],),
            given={**SOME, "T": (1, 2, 3), "C": (1, 2, 3, 4, 5, 8)})
def two_thirds_of_four_times_the_width_are_taken(glu: Subject, example: Example) -> None:
    """At F = ⌊8C/3⌋ rounded up to a multiple, three matrices hold the 8C² parameters of a plain layer with 4C, and all count.

    The excess is less than a multiple's rows in three matrices; F comes from the weights, so whole multiples or not are the same.
    """
    c = example.dims["C"]
    for multiple in (1, 4, 8):
        width = -(-(8 * c // 3) // multiple) * multiple
        if not glu.declaration.allows("F", width):
            continue
        shapes = {"w_gate": (width, c), "w_up": (width, c), "w_down": (c, width)}
        sized = example.but(**{name: example.values(name, *shape, family="normal") for name, shape in shapes.items()})
        held = sum(sized[name].numel() for name in shapes)
        fact(-3 * c < held - 8 * c * c < 3 * c * multiple, "the three matrices do not hold 8C² parameters", decided=False)
        assert glu(**sized) == glu.exact(**sized)
