"""Parts of a causal language model, where it offers them: each by the specification's formula, on what it really receives.

parts: `parts(ids, skip=0)` gives a list as JSON and tensors, as `harness/parts.py` makes them: the modules of one call, in the
order in which they end, those from `skip` on with their tensors, as many as are handed over at a time.
"""
from __future__ import annotations

from assay.cases import Example
from assay.errors import NotExercisedError
from assay.ledger import equal
from assay.numbers.bound import Bounded
from assay.recognition import Part
from assay.spec.causal_lm import logits_score_every_word, spec
from assay.spec.causal_lm_cases import Model, model_of
from assay.spec.part_verdicts import gathered, judged
from assay.subject import Subject

FEW = {"B": (1, 2), "T": (3, 5), "S": 2, "padding": "none"}


def parts_of(model: Model, example: Example) -> list[Part]:
    """All parts of one full pass."""
    ids = model.ids(example)
    return gathered(lambda skip: model.ask("parts", {"ids": ids, "skip": skip}, grad_mode=False).outputs)


@spec.holds("ATT-1", "ROPE-1", "LN-1", "RMS-1", "FFN-1", "GLU-1", "LM-1",
            kills=("norm_of_second_layer_centred", "gate_of_second_layer_unactivated", "norms_without_a_root"),
            needs=("parts",), rests_on=(logits_score_every_word,), given=FEW, examples=3)
def every_part_gives_its_formula(lm: Subject, example: Example) -> None:
    """Every part that is recognised gives what its formula gives, by its own weights on what it receives inside the model.

    Norms, feed-forward networks, experts, embeddings, heads, rotary tables and turns, attention functions: each with the proven
    bound of its kind. The first part out of its bound, in the order of the pass, is named. What is not recognised is listed by
    `assay check hf:TYPE --parts`.
    """
    verdicts = judged(parts_of(model_of(lm, example), example))
    if not any(one.status != "unrecognised" for one in verdicts):
        raise NotExercisedError("no part of this model is recognised")
    for one in verdicts:
        if one.want is not None and one.got is not None and one.status != "unrecognised":
            assert equal(Bounded(one.got.double(), one.want.bar), Bounded(one.want.value, one.want.bar * 0), check=one.check)
