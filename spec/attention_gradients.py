"""What must hold of attention's gradients: ATT-7, ATT-10, ATT-15, GQA."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.errors import NotExercisedError
from assay.ledger import fact
from assay.spec.attention import LONG, NO_EMPTY, PLAIN, alignment, conduct, output_is_the_formula, spec
from assay.spec.attention_cases import visible
from assay.spec.conduct import nothing_upstream
from assay.subject import Subject


@spec.holds("ATT-7", "E3", kills=(
    "gradient_without_row_sum", "gradient_of_scores_zero", "gradient_row_sum_unweighted", "weights_detached",
    "normaliser_detached", "gradient_of_keys_unscaled", "gradient_of_queries_scaled_twice", "gradient_of_keys_negated",
    "gradient_of_queries_zero", "gradient_of_last_value_dropped", "gradient_of_values_unnormalised", "gradient_always_causal",
    "gradient_wrong_under_mask", "gradient_without_softcap", "grouped_key_gradient_not_summed", "upstream_taken_for_ones",
    "upstream_strides_ignored", "gradient_of_queries_permuted"), rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(attention: Subject, example: Example) -> None:
    """∂V = Aᵀ∂O, ∂S = A⊙(∂A − rowsum(∂A⊙A)) with ∂A = ∂O·Vᵀ, ∂Q = ∂S·K·scale, ∂K = ∂Sᵀ·Q·scale, for any upstream gradient."""
    found, exact = attention.gradients(**example), attention.exact_gradients(**example)
    for name in ("v", "q", "k"):
        assert found[name] == exact[name]


@spec.holds("ATT-15", kills=("empty_row_gradient_nan",), rests_on=(conduct["form"],), gradient=True)
def gradients_have_the_form_of_their_inputs(attention: Subject, example: Example) -> None:
    """Gradients have their inputs' shapes and types and are finite, also with broadcast masks and grouped heads."""
    up = attention.upstream(**example)
    answer = attention.answer(_wrt=("q", "k", "v"), _upstream=up, **example)
    nan_row = attention.conventions["empty_row"] == "nan_row"  # such a row reaches every gradient
    empty = not bool(visible(example, alignment(attention)).any(-1).all())
    exact = attention.exact_gradients(**example, upstream=up)  # also tells whether this example may leave the type's range
    for name in ("q", "k", "v"):
        got = answer.gradients.get(name)
        zero = bool((exact[name].value == 0).all())
        fact(got is not None or zero, f"no gradient reaches {name}", check=f"gradient of {name} exists")
        if got is not None:
            fact(tuple(got.shape) == tuple(example[name].shape), f"the gradient of {name} has shape {tuple(got.shape)}",
                 expected=str(tuple(example[name].shape)), check=f"shape of the gradient of {name}")
            fact(got.dtype == example[name].dtype, f"the gradient of {name} is {got.dtype}",
                 check=f"type of the gradient of {name}")
            finite = bool(got.isfinite().all()) or not bool(exact[name].value.isfinite().all()) or (nan_row and empty)
            fact(finite, f"the gradient of {name} is not finite", check=f"gradient of {name} is finite", decided=got.numel() > 0)


@spec.holds("ATT-7", kills=("gradient_without_row_sum", "gradient_row_sum_unweighted"), rests_on=(gradients_are_the_formula,),
            gradient=True, dtypes=("float64", "float32"), given={**PLAIN, **NO_EMPTY, "softcap": None, "Tk": at_least(2),
                                  "family": ("normal", "integers", "positive")})
def key_gradients_sum_to_zero(attention: Subject, example: Example) -> None:
    """A shift common to all keys changes nothing, so the gradients of the keys sum to the zero vector."""
    found = attention.gradients(**example, wrt=("k",))["k"]
    assert found[:, :, 1:].sum(2) == -found[:, :, 0]


@spec.holds("ATT-7", kills=("upstream_taken_for_ones",), rests_on=(conduct["form"],), gradient=True,
            given=NO_EMPTY)
def no_upstream_gradient_gives_none(attention: Subject, example: Example) -> None:
    """An upstream gradient of zeros gives gradients of exactly zero."""
    if attention.conventions["empty_row"] == "nan_row" and not bool(visible(example, alignment(attention)).any(-1).all()):
        raise NotExercisedError("a row without keys is NaN, and so are the gradients")
    nothing_upstream(attention, example)


@spec.holds("ATT-10", kills=("last_key_dropped", "tail_of_64_dropped"),
            rests_on=(conduct["form"],), gradient=True,
            given={**NO_EMPTY, **LONG, "family": ("small", "tiny"), "bias": ("none", "infinite")})
def every_visible_key_is_reached(attention: Subject, example: Example) -> None:
    """Every output depends on every key that it may attend to, at any distance: its gradient there is not zero."""
    d = example.dims
    row = example.integer("row", 0, d["Tq"] - 1)
    up = torch.zeros(d["B"], d["H"], d["Tq"], d["Dv"], dtype=example.dtype)
    up[:, :, row] = 1.0
    found = attention.gradients(**example, wrt=("v",), upstream=(up,))["v"].value
    seen = visible(example, alignment(attention))[:, :, row].unflatten(1, (d["G"], d["H"] // d["G"])).any(2)
    fact(bool((found[seen] > 0).all()), "an output does not depend on a key that it may attend to",
         got=f"{int((~(found[seen] > 0)).sum())} of {found[seen].numel()} gradients not positive", decided=bool(seen.any()),
         check="gradient of visible values > 0")
