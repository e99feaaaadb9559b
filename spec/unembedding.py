"""What must hold of `unembedding(h, w_norm, w_out, *, eps, b_norm=None, norm="rms")`: LM-1."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class UnembeddingCases(Cases):
    """Each final norm and none; states of one to three axes; vocabularies of odd size; an ε far below and near the mean square."""

    kind = "unembedding"
    dims = {"V": (7, 2, 3, 1, 5, 16, 33, 65), "C": (4, 2, 3, 5, 8, 16, 17, 33), "T": (3, 1, 2, 5, 0), "B": (2, 1, 0)}
    flags = {"norm": ("rms", "layer", None), "bias": (False, True), "eps": (1e-5, 0.1, 1e-6), "axes": (3, 2, 1)}
    families = ("normal", "integers", "positive", "heavy", "peaked", "small")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        if not claims.claims("empty"):
            configuration = configuration.but(**{letter: max(1, configuration.dims[letter]) for letter in "BT"})
        if configuration.flags["norm"] != "layer" or not claims.claims("b_norm"):
            configuration = configuration.but(bias=False)
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        lead = {1: (), 2: (d["T"],), 3: (d["B"], d["T"])}[flags["axes"]]
        arguments: dict[str, Any] = {
            "h": 2 * draw_values(configuration.family, (*lead, d["C"]), generator(seed, "h"), dtype),
            "w_norm": draw_values("normal", (d["C"],), generator(seed, "w_norm"), dtype) + 1,
            "w_out": draw_values("normal", (d["V"], d["C"]), generator(seed, "w_out"), dtype), "eps": flags["eps"],
        }
        if flags["norm"] != "rms":
            arguments["norm"] = flags["norm"]
        if flags["bias"]:
            arguments["b_norm"] = draw_values("normal", (d["C"],), generator(seed, "b_norm"), dtype)
        return Example(configuration, dtype, arguments)


spec = Specification("unembedding", UnembeddingCases())
conduct = add_conduct(spec, shown_by="logits_are_the_formula")


SOME = {"B": at_least(1), "T": at_least(1)}


@spec.holds("LM-1", kills=(
    "without_final_norm", "norm_that_nobody_asked_for", "other_norm", "norm_bias_left_out", "norm_weight_left_out",
    "epsilon_ignored", "norm_after_projection", "cosine_for_dot_product", "scaled_by_the_width", "probabilities",
    "words_reversed", "last_words_unscored", "products_in_bfloat16"), rests_on=(conduct["form"],))
def logits_are_the_formula(unembedding: Subject, example: Example) -> None:
    """Logits are FinalNorm(h)·w_outᵀ; without a final norm h·w_outᵀ."""
    assert unembedding(**example) == unembedding.exact(**example)


@spec.holds("LM-1", kills=("words_reversed", "last_words_unscored", "cosine_for_dot_product", "probabilities"),
            rests_on=(conduct["form"],), given={**SOME, "V": at_least(2)})
def each_logit_belongs_to_its_word(unembedding: Subject, example: Example) -> None:
    """A word's logit is the dot product with that word's row: words in another order have their logits in that order,
    and a word of twice the row has twice the logit."""
    order = example.permutation("words", example.dims["V"])
    factors = (1.0 + torch.arange(example.dims["V"]) % 2)[:, None].to(example.dtype)
    out = unembedding(**example)
    assert unembedding(**example.but(w_out=example.w_out[order])) == out[..., order]
    assert unembedding(**example.but(w_out=example.w_out * factors)) == out * factors[:, 0].double()


@spec.holds("LM-1", kills=("norm_that_nobody_asked_for", "scaled_by_the_width"), rests_on=(conduct["form"],), needs=("norm",),
            given={**SOME, "norm": None})
def without_norm_the_identity_table_gives_the_state(unembedding: Subject, example: Example) -> None:
    """With norm None and the identity as table, the logits are h itself, bit for bit."""
    width = example.dims["C"]
    if not (unembedding.declaration.allows("V", width)):
        width = example.dims["V"]
    table = torch.eye(width, example.dims["C"], dtype=example.dtype)
    out = unembedding(**example.but(w_out=table)).value
    want = torch.zeros(out.shape, dtype=torch.float64)
    want[..., : example.dims["C"]] = example.h.double()[..., :width]
    assert identical(out, want, witness=bool((out != 0).any()))


@spec.holds("LM-1", kills=("without_final_norm", "other_norm"), rests_on=(conduct["form"],),
            given={**SOME, "norm": ("rms", "layer"), "family": ("normal", "integers"), "eps": (1e-5, 1e-6)})
def final_norm_takes_the_scale_out(unembedding: Subject, example: Example) -> None:
    """In a pre-norm model the state's scale does not reach the logits: a state many times as large is scored by its direction."""
    large = example.but(h=example.h * (4 if example.dtype == torch.float16 else 256))  # squares stay within the type
    assert unembedding(**large) == unembedding.exact(**large)


@spec.holds("LM-1", kills=("table_without_gradient", "gradient_past_the_norm"), rests_on=(logits_are_the_formula,),
            gradient=True)
def gradients_are_the_formula(unembedding: Subject, example: Example) -> None:
    """Gradients reach the state through the norm, the norm's weight, and the table."""
    got, want = unembedding.gradients(**example), unembedding.exact_gradients(**example)
    for name in got:
        assert got[name] == want[name]


@spec.holds("LM-1", kills=("tokens_mixed",), rests_on=(conduct["form"],), given={**SOME, "T": at_least(2), "axes": (2, 3)},
            conventions={"row_dependence": "none"})
def tokens_are_scored_alone(unembedding: Subject, example: Example) -> None:
    """Replacing every other token leaves a token's logits equal bit for bit."""
    other = example.h.clone()
    other[..., 1:, :] = example.values("other tokens", *other[..., 1:, :].shape, family="normal") * 3
    before, after = unembedding(**example).value, unembedding(**example.but(h=other)).value
    assert identical(before[..., 0, :], after[..., 0, :], witness=bool((before[..., 1:, :] != after[..., 1:, :]).any()))
