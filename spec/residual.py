"""What must hold of `residual(x, sublayer, norm, *, placement, alpha=1.0)`: RES-1, RES-2, PRE-1, DN-1."""
from __future__ import annotations

import math
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.hosting import Recipe
from assay.ledger import fact, identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

EPS = 1e-3
IDENTITY = Recipe("identity")


class ResidualCases(Cases):
    """Every placement, linear and bounded sub-layers, both norms; sub-layer and norm are described, not shipped."""

    kind = "residual"
    dims = {"C": (3, 2, 4, 1, 5, 8, 16, 17), "T": (2, 1, 3, 5, 0), "B": (1, 2, 3, 0)}
    flags = {
        "placement": ("pre", "post", "sandwich", "deepnorm"), "alpha": (2.0, 1.0, 0.5, 1.5),
        "sublayer": ("linear", "tanh_linear", "zero", "identity"), "norm": ("rms_norm", "layer_norm"),
    }
    families = ("integers", "normal", "positive", "small", "cancelling")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        found = configuration
        if not claims.claims("empty"):
            found = found.but(**{letter: max(1, size) for letter, size in found.dims.items()})
        if "placement" not in claims.keywords:
            found = found.but(placement=claims.conventions["placement"])
        return found if "alpha" in claims.keywords else found.but(alpha=1.0)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        shape = (d["B"], d["T"], d["C"])
        arguments: dict[str, Any] = {
            "x": draw_values(configuration.family, shape, generator(seed, "x"), dtype),
            "sublayer": sublayer(flags["sublayer"], d["C"], seed, dtype), "norm": norms(flags, d["C"], seed, dtype),
            "placement": flags["placement"],
        }
        if flags["placement"] == "deepnorm" and flags["alpha"] != 1.0:
            arguments["alpha"] = flags["alpha"]
        return Example(configuration, dtype, arguments)


def sublayer(name: str, width: int, seed: int, dtype: torch.dtype) -> Recipe:
    if name in ("zero", "identity"):
        return Recipe(name)
    weight = draw_values("normal", (width, width), generator(seed, "weight"), torch.float64) / math.sqrt(width)
    return Recipe(name, {"weight": weight.to(dtype), "bias": draw_values("normal", (width,), generator(seed, "bias"), dtype)})


def norms(flags: Any, width: int, seed: int, dtype: torch.dtype) -> Recipe:
    """One norm; for sandwich a pair, the second with other weights."""
    made = [Recipe(flags["norm"], {"weight": draw_values("positive", (width,), generator(seed, label), dtype) + 0.5, "eps": EPS})
            for label in ("before", "after")]
    return Recipe("pair", {"before": made[0], "after": made[1]}) if flags["placement"] == "sandwich" else made[0]


spec = Specification("residual", ResidualCases())
conduct = add_conduct(spec)

SOME = {"T": at_least(1), "B": at_least(1)}
BUSY = {**SOME, "C": at_least(2), "sublayer": ("linear", "tanh_linear")}


@spec.holds("PRE-1", "RES-1", kills=(
    "branch_alone", "added_twice", "post_for_pre", "pre_for_post", "pre_adds_the_normalised", "pre_without_norm",
    "post_without_norm", "post_normalises_the_branch", "sandwich_normalises_the_sum",
    "sandwich_without_the_second", "deepnorm_alpha_ignored", "deepnorm_alpha_inside", "deepnorm_alpha_on_both",
    "deepnorm_alpha_on_the_branch"), rests_on=(conduct["form"],))
def output_is_the_formula(residual: Subject, example: Example) -> None:
    """pre: x + f(norm(x)); post: norm(x + f(x)); sandwich: x + after(f(before(x))); deepnorm: norm(alpha·x + f(x))."""
    assert residual(**example) == residual.exact(**example)


@spec.holds("PRE-1", kills=("sandwich_norms_swapped", "sandwich_normalises_the_sum", "sandwich_without_the_second"),
            rests_on=(conduct["form"],), given={**BUSY, "placement": "sandwich"})
def sandwich_norms_stand_before_and_after(residual: Subject, example: Example) -> None:
    """Of the pair of norms the first stands before the sub-layer and the second behind it, on the branch alone."""
    assert residual(**example) == residual.exact(**example)


@spec.holds("RES-1", kills=("branch_alone", "added_twice", "post_for_pre", "pre_adds_the_normalised"),
            rests_on=(conduct["form"],), given={**SOME, "placement": ("pre", "sandwich"), "sublayer": "zero", "norm": "rms_norm"})
def zero_sublayer_leaves_the_input(residual: Subject, example: Example) -> None:
    """Pre-norm and sandwich with f = 0 give exactly the input: out = x + f, never f alone."""
    assert identical(residual(**example).value, example.x.double(), witness=bool((example.x != 0).any()))


@spec.holds("RES-1", "E27", kills=("added_twice", "branch_alone"), rests_on=(conduct["form"],), given={**SOME, "placement": "pre"})
def the_input_is_added_once(residual: Subject, example: Example) -> None:
    """With f and norm the identity, out = x + x: the branch brings no residual of its own, and there is one addition."""
    out = residual(**example.but(sublayer=IDENTITY, norm=IDENTITY))
    assert out == 2 * example.x.double()


@spec.holds("RES-2", kills=("skip_without_gradient", "branch_alone"), rests_on=(conduct["form"],), gradient=True,
            given={**SOME, "placement": ("pre", "sandwich"), "sublayer": "zero", "norm": "rms_norm"})
def zero_sublayer_passes_the_gradient(residual: Subject, example: Example) -> None:
    """With f = 0 the Jacobian of pre-norm and sandwich is exactly I: the upstream gradient comes through as it is."""
    up = residual.upstream(**example)
    gradient = residual.gradients(**example, upstream=up)["x"].value
    assert identical(gradient, up[0].double(), witness=bool((up[0] != 0).any()))


@spec.holds("RES-2", kills=("skip_without_gradient", "branch_without_gradient"), rests_on=(output_is_the_formula,), gradient=True)
def gradient_is_the_formula(residual: Subject, example: Example) -> None:
    """The gradient flows through the skip and through the branch: ∂out/∂x = I + J_f, with the norm where it stands."""
    assert residual.gradients(**example)["x"] == residual.exact_gradients(**example)["x"]


@spec.holds("RES-2", "E22", kills=("branch_without_gradient", "skip_without_gradient"), rests_on=(conduct["form"],),
            gradient=True, given={**SOME, "placement": "pre"})
def skip_and_branch_can_cancel(residual: Subject, example: Example) -> None:
    """With f(x) = −x the output and its gradient are exactly 0: the skip alone does not keep the derivative from 0."""
    width = example.x.shape[-1]
    opposite = Recipe("linear", {"weight": -torch.eye(width, dtype=example.dtype)})
    cancelled = example.but(sublayer=opposite, norm=IDENTITY)
    gradient = residual.gradients(**cancelled)["x"].value
    up = residual.upstream(**cancelled)[0]
    assert identical(gradient, 0.0, witness=bool((up != 0).any()))


@spec.holds("DN-1", kills=("deepnorm_alpha_on_the_branch", "deepnorm_as_pre_norm"), rests_on=(conduct["form"],),
            needs=("placement",), given={**BUSY, "placement": "deepnorm", "alpha": 1.0})
def deepnorm_with_alpha_one_is_post_norm(residual: Subject, example: Example) -> None:
    """DeepNorm with alpha = 1 is post-norm."""
    assert residual(**example) == residual.exact(**example.but(placement="post"))


@spec.holds("DN-1", kills=("deepnorm_alpha_ignored", "deepnorm_alpha_inside", "deepnorm_alpha_on_both",
                           "deepnorm_alpha_on_the_branch"), rests_on=(conduct["form"],), needs=("alpha",),
            given={**BUSY, "placement": "deepnorm", "alpha": (2.0, 0.5, 1.5)})
def alpha_multiplies_the_input_alone(residual: Subject, example: Example) -> None:
    """DeepNorm is norm(alpha·x + f(x)): with the norm the identity, the difference of two alphas is that times x."""
    bare = example.but(norm=IDENTITY)
    assert residual(**bare) == residual.exact(**bare)
    assert residual(**bare.but(alpha=2 * example.alpha)) - residual(**bare) == example.alpha * example.x.double()
    assert residual(**example) == residual.exact(**example)


@spec.holds("PRE-1", kills=("post_for_pre", "pre_for_post", "sandwich_without_the_second"), rests_on=(conduct["form"],),
            needs=("placement",), given={**BUSY, "placement": ("pre", "post", "sandwich"), "sublayer": "linear"})
def placements_are_told_apart(residual: Subject, example: Example) -> None:
    """Each placement's output differs from what the other placements give."""
    single = example.norm if example.placement != "sandwich" else example.norm.parameters["before"]
    pair = Recipe("pair", {"before": single, "after": single})
    others = [other for other in ("pre", "post", "sandwich") if other != example.placement]
    out, exact, told = residual(**example), residual.exact(**example), False
    for other in others:
        value = residual.exact(**example.but(placement=other, norm=pair if other == "sandwich" else single))
        apart = (exact.value - value.value).abs() > 2 * out.bar
        if bool(apart.any()):
            told = True
            assert out[apart] != value[apart]
    fact(True, "", decided=told, check="some placement gives something else")
