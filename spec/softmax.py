"""What must hold of `softmax(x, *, dim=-1)`: SM-1 … SM-8."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

AXES = {"last": -1, "first": 0, "middle": 1, "second_last": -2, "only": 0}


class SoftmaxCases(Cases):
    """Rows of C entries, the normalised axis in any place; entries at −∞; huge logits."""

    kind = "softmax"
    dims = {"C": (3, 1, 2, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 127, 129, 257, 1025), "B": (2, 1, 3, 5, 0)}
    flags = {"axis": ("last", "first", "middle", "second_last", "only"), "masked": ("none", "some", "row")}
    families = ("integers", "normal", "peaked", "very_peaked", "positive", "small", "tiny", "cancelling", "heavy", "one_hot",
                "constant", "huge", "huge_negative")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        flags = configuration.flags
        if flags["masked"] == "row" and not (claims.claims("empty_rows") and claims.conventions["empty_row"] != "refused"):
            configuration = configuration.but(masked="none")
        if configuration.dims["B"] == 0 and not claims.claims("empty"):
            configuration = configuration.but(B=1)
        if flags["axis"] != "last" and ("dim" not in claims.keywords or not claims.allows("dim", AXES[flags["axis"]])):
            configuration = configuration.but(axis="last")
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        rows, width = configuration.dims["B"], configuration.dims["C"]
        axis = configuration.flags["axis"]
        shape, dim = {"last": (rows, width), "first": (width, rows), "middle": (rows, width, 3),
                      "second_last": (rows, 2, width, 2), "only": (width,)}[axis], AXES[axis]
        source = generator(configuration.seed, "x")
        x = _logits(configuration.family, shape, source, dtype)
        masked = configuration.flags["masked"]
        if masked != "none" and width > 1:
            hidden = torch.rand(shape, generator=source) < 0.4
            hidden = hidden & (torch.arange(width) != width - 1 - configuration.seed % width).reshape(
                [width if axis == dim % len(shape) else 1 for axis in range(len(shape))])
            x = x.masked_fill(hidden, -math.inf)
        if masked == "row":
            x = x.movedim(dim, -1).contiguous()
            x = torch.cat([torch.full_like(x[:1], -math.inf), x[1:]]) if x.dim() > 1 else torch.full_like(x, -math.inf)
            x = x.movedim(-1, dim)
        arguments: dict[str, Any] = {"x": x} if dim == -1 else {"x": x, "dim": dim}
        return Example(configuration, dtype, arguments, {"axis": dim})


def _logits(family: str, shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Huge logits stand on a grid of the type: 2¹⁴ or −2¹⁴ plus small steps."""
    if family.startswith("huge"):
        base = -16384.0 if family == "huge_negative" else 16384.0
        return (base + draw_values("normal", shape, source, torch.float64)).to(dtype)
    return draw_values(family, shape, source, dtype)


spec = Specification("softmax", SoftmaxCases())
conduct = add_conduct(spec)


def rows(example: Example) -> torch.Tensor:
    """Which entries along the axis belong to a row that has a finite entry."""
    return (example.x > -math.inf).any(example.axis, keepdim=True)


@spec.holds("SM-2", kills=("base_two", "negated", "not_normalised", "neighbouring_axis", "epsilon_in_normaliser",
                           "over_everything", "tail_of_16_unmasked", "computed_in_bfloat16", "hard_maximum",
                           "logarithm_returned", "extra_zero_entry"), rests_on=(conduct["form"],))
def output_is_the_formula(softmax: Subject, example: Example) -> None:
    """Every output is exp(z_i) / Σ_j exp(z_j) along the chosen axis."""
    assert softmax(**example) == softmax.exact(**example)


@spec.holds("SM-1", kills=("not_normalised", "neighbouring_axis", "dim_ignored", "over_everything", "zeros", "negated"),
            rests_on=(conduct["form"],), given={"masked": ("none", "some")})
def rows_sum_to_one(softmax: Subject, example: Example) -> None:
    """Outputs are non-negative and each row along the normalised axis sums to 1."""
    out = softmax(**example)
    assert fact(bool((out.value >= 0).all()), "an output is negative or NaN", check="outputs >= 0", decided=False)
    assert out.sum(example.axis) == 1


@spec.holds("SM-3", kills=("no_shift", "fixed_shift", "maximum_starts_at_zero", "minimum_subtracted"),
            rests_on=(output_is_the_formula,), given={"masked": ("none", "some"), "family": ("integers",)})
def adding_a_constant_changes_nothing(softmax: Subject, example: Example) -> None:
    """Adding a constant that is exact in the type, however large, changes nothing.

    Logits are small integers and the constant ±256 (bfloat16 holds integers up to 256 exactly, so ±128 there): sums are exact.
    """
    constant = 128.0 if example.dtype == torch.bfloat16 else 1024.0
    for shift in (constant, -constant):
        assert softmax(**example.but(x=example.x + shift)) == softmax.exact(**example)


@spec.holds("SM-6", kills=("infinity_made_finite", "masked_entries_get_a_trace"), rests_on=(conduct["form"],),
            given={"masked": "some", "C": lambda size: size > 1})
def minus_infinity_gets_probability_zero(softmax: Subject, example: Example) -> None:
    """An entry at −∞ gets probability exactly 0."""
    out, hidden = softmax(**example).value, example.x == -math.inf
    assert identical(out[hidden], 0.0, witness=bool((out[~hidden] != 0).any()))


@spec.holds("SM-6", kills=("gradient_reaches_masked",), rests_on=(conduct["form"],), gradient=True,
            given={"masked": "some", "C": lambda size: size > 2})
def minus_infinity_gets_no_gradient(softmax: Subject, example: Example) -> None:
    """An entry at −∞ receives gradient exactly 0."""
    gradient, hidden = softmax.gradients(**example)["x"].value, example.x == -math.inf
    assert identical(gradient[hidden], 0.0, witness=bool((gradient[~hidden] != 0).any()))


@spec.holds("SM-8", kills=("empty_row_spreads",), rests_on=(conduct["form"],), needs=("empty_rows",),
            given={"masked": "row", "B": lambda size: size > 1, "axis": "last"},
            conventions={"empty_row": ("zeros", "nan_row", "mean")})
def empty_row_has_the_declared_outcome(softmax: Subject, example: Example) -> None:
    """A row whose entries are all −∞ has the declared outcome, and no other row is touched."""
    out, want = softmax(**example), softmax.exact(**example)
    empty = ~rows(example).squeeze(-1)
    if softmax.conventions["empty_row"] == "mean":  # 1/n rounds
        assert out[empty] == want[empty]
    else:
        assert identical(out.value[empty], want.value[empty])
    assert out[~empty] == want[~empty]


@spec.holds("SM-4", kills=("gradient_without_row_sum", "gradient_zero", "gradient_is_upstream", "gradient_diagonal_only",
                           "gradient_over_last_axis"), rests_on=(output_is_the_formula,), gradient=True,
            given={"masked": ("none", "some")})
def gradient_is_the_formula(softmax: Subject, example: Example) -> None:
    """The gradient is p ⊙ (g − Σ p g): the Jacobian's diagonal p(1−p) and off-diagonal −p·p."""
    assert softmax.gradients(**example)["x"] == softmax.exact_gradients(**example)["x"]


@spec.holds("SM-4", kills=("gradient_without_row_sum", "gradient_is_upstream"), rests_on=(gradient_is_the_formula,),
            gradient=True, dtypes=("float64", "float32", "float16"), given={"masked": "none", "C": lambda size: size > 1})
def gradient_rows_sum_to_zero(softmax: Subject, example: Example) -> None:
    """Each row of the gradient sums to 0, whatever comes from above: probabilities can only trade mass."""
    gradient = softmax.gradients(**example)["x"]
    moved = gradient.movedim(example.axis, -1)
    assert moved[..., 1:].sum(-1) == -moved[..., 0]


@spec.holds("SM-5", kills=("gradient_never_saturates", "gradient_is_upstream"), rests_on=(gradient_is_the_formula,),
            gradient=True, given={"masked": "none", "family": ("peaked", "very_peaked"), "axis": "last",
                                  "C": lambda size: size > 1, "B": lambda size: size > 0})
def saturated_rows_have_no_gradient(softmax: Subject, example: Example) -> None:
    """Every entry of the Jacobian is at most (n−1)·e^(−Δ), Δ the gap between the two largest logits."""
    upstream = torch.zeros(example.x.shape, dtype=example.dtype)
    upstream[..., 0] = 1.0
    gradient = softmax.gradients(**example, upstream=(upstream,))["x"]
    top = example.x.double().topk(2, dim=-1).values
    limit = (example.x.shape[-1] - 1) * torch.exp(top[..., 1:] - top[..., :1])
    assert gradient.abs() <= limit


@spec.holds("SM-7", kills=("sign_wrong", "hard_maximum"), rests_on=(conduct["form"],),
            given={"masked": ("none", "some"), "axis": "last", "C": lambda size: size > 1})
def order_is_kept(softmax: Subject, example: Example) -> None:
    """A larger logit never gets a smaller probability, and equal logits get equal ones, within the bound."""
    out = softmax(**example)
    order = example.x.double().argsort(dim=-1, stable=True)
    ranked, logits = out.gather(-1, order), example.x.double().gather(-1, order)
    assert ranked[..., :-1] <= ranked[..., 1:]
    ties = logits[..., 1:] == logits[..., :-1]
    if bool(ties.any()):
        assert ranked[..., 1:][ties] == ranked[..., :-1][ties]
    exact = softmax.exact(**example).gather(-1, order)
    apart = exact.value[..., -1] - exact.value[..., 0] > 2 * out.bar.amax(-1)
    if bool(apart.any()):
        assert ranked[..., -1][apart] != ranked[..., 0][apart]


@spec.holds("SM-7", kills=("last_of_odd_length_dropped", "second_tile_not_rescaled"),
            rests_on=(conduct["form"],), given={"masked": ("none", "some"), "axis": "last", "C": lambda size: size > 1})
def permuting_a_row_permutes_the_output(softmax: Subject, example: Example) -> None:
    """Permuting the entries of a row permutes its probabilities, within the bound."""
    shuffle = example.permutation("row", example.x.shape[-1])
    assert softmax(**example.but(x=example.x[..., shuffle])) == softmax(**example)[..., shuffle]


@spec.holds("SM-2", kills=("uniform", "small_entries_dropped"), rests_on=(conduct["form"],),
            given={"masked": "none", "axis": "last", "C": lambda size: size > 1, "family": ("normal", "peaked", "heavy")},
            dtypes=("float32",))
def log_ratios_are_differences_of_logits(softmax: Subject, example: Example) -> None:
    """log p_i − log p_j = z_i − z_j wherever both probabilities are normal numbers."""
    out = softmax(**example)
    seen = out.value > 2.0**-100
    if not bool(seen.any()):
        fact(True, "", decided=False, check="some probability is a normal number")
        return
    top = example.x.double().argmax(-1, keepdim=True)
    ratio = out / out.gather(-1, top)
    expected = torch.exp(example.x.double() - example.x.double().gather(-1, top))
    assert ratio == expected


@spec.holds("SM-8", kills=("maximum_of_everything", "over_everything"), rests_on=(conduct["form"],),
            given={"masked": ("none", "some"), "axis": "last", "B": lambda size: size > 1, "C": lambda size: size > 1},
            conventions={"row_dependence": "none"})
def rows_do_not_touch_each_other(softmax: Subject, example: Example) -> None:
    """Replacing the other rows by others, far larger ones too, leaves a row equal bit for bit."""
    other = example.x.clone()
    other[1:] = (example.values("other rows", *other[1:].shape, family="normal").double() * 64 + 4096).to(example.dtype)
    before, after = softmax(**example).value, softmax(**example.but(x=other)).value
    assert identical(before[0], after[0], witness=bool((before[1:] != after[1:]).any()))
