"""Dropout in stacks of layers: BLK-2 of `encoder`, `decoder` and `encoder_decoder`.

Which elements a seed drops is the implementation's own. Seen are that evaluation drops none and training some, and that what is
dropped of a branch, in whatever layer, leaves the residual stream as it was.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.cases import Example
from assay.ledger import fact, identical, statistic
from assay.properties import Specification
from assay.spec import decoder, encoder, encoder_decoder
from assay.spec.block import too_few
from assay.spec.block_cases import SILENT_ATTENTION, SILENT_FEED, scaled
from assay.subject import Subject

ALPHA = 1e-9  # false alarms of one decision
RATE: Mapping[str, Any] = {"dropout": 0.5, "training": True}
GIVEN: Mapping[str, Any] = {"placement": "pre", "B": (2, 3), "T": (5, 8), "H": (2, 4), "D": (4, 3), "F": (6, 5), "biases": False,
                            "positions": "none", "family": "normal", "ffn": ("swiglu", "mlp")}
BRANCHES: Mapping[str, tuple[str, ...]] = {
    "self-attention": SILENT_ATTENTION, "cross-attention": ("cross.w_o", "cross.b_o"), "feed-forward network": SILENT_FEED,
}
EXAMPLES = 4  # drawn besides those of the boundary


def dropout_is_off_in_evaluation(subject: Subject, example: Example) -> None:
    """In evaluation a rate of dropout changes nothing, bit for bit; in training it does."""
    calm, trained = subject.values(**example), subject.values(**example.but(**RATE))
    assert fact(bool((calm != trained).any()), "dropout in training changed nothing", check="dropout acts in training")
    assert identical(subject.values(**example.but(dropout=0.5)), calm, witness=(calm, trained))


def dropped_elements_keep_the_stream(subject: Subject, example: Example) -> None:
    """Every branch of every layer has its dropout, before the add: what it drops leaves the stream as it was, bit for bit."""
    stream = "x" if "x" in example else "y"
    branches = {name: weights for name, weights in BRANCHES.items() if name != "cross-attention" or "memory" in example}
    for depth in range(len(example.layers)):
        for name, branch in branches.items():
            silent = tuple(weight for weights in branches.values() for weight in weights)
            layers = [scaled(params, tuple(w for w in silent if layer != depth or w not in branch), 0.0)
                      for layer, params in enumerate(example.layers)]
            alone = example.but(layers=layers)
            before, calm = example[stream].double(), subject.values(**alone)
            out = subject.values(**alone.but(**RATE, seed=example.integer("dropout", 1, 1000)))
            moved = calm != before  # elements that the branch reaches at all
            stayed, count = int((out == before)[moved].sum()), int(moved.sum())
            assert statistic(too_few(stayed, count), ALPHA, text=f"the {name} of layer {depth} drops too few elements",
                             got=f"{stayed} of {count}", expected="half, or more where the branch has dropout inside")


def _add(spec: Specification, check: Any, kills: tuple[str, ...], **options: Any) -> None:
    def prop(subject: Subject, example: Example) -> None:
        check(subject, example)

    prop.__name__, prop.__doc__, prop.__module__ = check.__name__, check.__doc__, __name__
    given = {name: choice for name, choice in GIVEN.items() if name in {*spec.cases.dims, *spec.cases.flags, "family"}}
    spec.holds("BLK-2", kills=kills, needs=("dropout", "training", *options.pop("needs", ())),
               rests_on=(f"{spec.kind}/output_is_the_formula",), examples=EXAMPLES,
               given={**given, **options.pop("given", {})}, **options)(prop)


BITS: Mapping[str, Any] = {"repeatability": "bitwise"}
for _spec in (encoder.spec, decoder.spec, encoder_decoder.spec):
    _add(_spec, dropout_is_off_in_evaluation, ("dropout_in_evaluation", "dropout_ignored"), conventions=BITS)
_add(encoder.spec, dropped_elements_keep_the_stream, ("dropout_in_first_layer_only", "dropout_ignored"),
     needs=("seed",), statistical=6 * ALPHA, given={"mask": "none", "L": (2, 3)})
_add(decoder.spec, dropped_elements_keep_the_stream, ("cross_attention_without_dropout", "dropout_ignored"),
     needs=("seed",), statistical=6 * ALPHA, given={"mask": "none", "memory_mask": "none", "L": (2, 1)})
